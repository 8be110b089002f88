"""The doctor's whole report, by command and by call: fit, template, tokenizer, drafts, environment, and exit codes."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import doctor
from app.catalog import Catalog
from app.doctor import Doctor, DoctorReport, environment_problems
from app.settings import ASSETS
from engine.config import GIB
from tests.app.harness import MODEL, Client, give_templates, make_home, make_settings, serving
from tests.app.test_serve import run
from tests.engine.packed_headers import packed_checkpoint
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

SMALL, LARGE, FOREIGN, BROKEN = "small", "large", "foreign", "broken"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of two sizes with one tokenizer, one with another, one without weights."""
    home = make_home(tmp_path_factory.mktemp("doctor"))
    models = home / "models"
    tiny_llama_checkpoint(models / SMALL, num_hidden_layers=1)
    tiny_llama_checkpoint(models / LARGE, num_hidden_layers=3)
    tokenizer = tiny_llama_checkpoint(models / FOREIGN, num_hidden_layers=1) / "tokenizer.json"
    text = tokenizer.read_text(encoding="utf-8")
    tokenizer.write_text(text.replace('"<|im_start|>"', '"<|begin|>"'), encoding="utf-8")
    (tiny_llama_checkpoint(models / BROKEN) / "model.safetensors").unlink()
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    with serving(make_settings(home)) as client:
        yield client


def examine(home: Path, model: str = MODEL, free: int = 4 * GIB) -> DoctorReport:
    catalog = Catalog(home, ASSETS, home / "no-cache")
    return Doctor(catalog.local, lambda: ("cpu", free, 8 * GIB)).examine_model(catalog.resolve(model))


def test_a_sound_model(home: Path) -> None:
    report = examine(home)
    assert (report.model_id, report.problem, report.checkpoint.verdict) == (MODEL, "", "sound")
    assert (report.tokenizer.readable, report.tokenizer.num_tokens) == (True, 320)
    assert report.chat_template is not None
    assert (report.chat_template.present, report.chat_template.accepted, report.chat_template.limits) == (
        True,
        True,
        (),
    )
    assert report.fit is not None
    assert (report.fit.fits, report.fit.max_model_len) == (True, 512)
    assert report.environment == ()


def test_what_does_not_fit_is_no_problem_of_the_checkpoint(home: Path) -> None:
    report = examine(home, free=GIB // 4)
    assert report.fit is not None
    assert not report.fit.fits
    assert "short by" in report.fit.message
    assert report.problem == ""


def test_drafts_are_the_smaller_models_with_the_same_tokenizer(home: Path) -> None:
    drafts = {draft.model_id: draft for draft in examine(home).drafts}
    assert set(drafts) == {SMALL, LARGE, FOREIGN, BROKEN}
    assert [draft.model_id for draft in drafts.values() if draft.matches] == [SMALL]
    assert drafts[SMALL].reason == "the same 320 tokens"
    assert "no smaller than this model" in drafts[LARGE].reason
    assert "1: '<|im_start|>' in the model, '<|begin|>' in the draft" in drafts[FOREIGN].reason
    assert "it cannot be loaded" in drafts[BROKEN].reason
    assert next(iter(drafts)) == SMALL, "what matches comes first"


def test_a_template_that_is_broken_or_partial_is_said(home: Path) -> None:
    give_templates(home, {SMALL: "{{ messages[0", LARGE: "{% for m in messages %}{% if m.role == 'system' %}"
                          "{{ raise_exception('no system here') }}{% endif %}{{ m.content }}{% endfor %}"})  # fmt: skip
    broken = examine(home, SMALL).chat_template
    assert broken is not None
    assert (broken.present, broken.accepted) == (True, False)
    assert "the chat template does not parse" in broken.reason
    partial = examine(home, LARGE).chat_template
    assert partial is not None
    assert partial.accepted
    assert partial.limits == ("system messages: the chat template refuses these messages: no system here",)


def test_a_broken_model_has_a_report_with_its_problem(home: Path) -> None:
    report = examine(home, BROKEN)
    assert report.checkpoint.verdict == "broken"
    assert "neither model.safetensors nor" in report.problem
    assert (report.fit, report.drafts) == (None, ())
    assert report.tokenizer.readable, "what can be looked at is looked at"


def test_a_missing_tokenizer_is_a_problem(tmp_path: Path) -> None:
    (tiny_llama_checkpoint(tmp_path / "models" / MODEL) / "tokenizer.json").unlink()
    report = examine(tmp_path)
    assert report.checkpoint.verdict == "sound"
    assert report.problem == report.tokenizer.reason != ""


def test_another_kernels_in_the_way_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment_problems() == []
    other = SimpleNamespace(origin=str(tmp_path / "kernels" / "__init__.py"))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: other)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.1")
    installed, shadowed = environment_problems()
    assert "`kernels` 0.9.1 is installed" in installed
    assert "pip uninstall kernels" in installed
    assert f"imported from {tmp_path / 'kernels'} and not from" in shadowed
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert "imported from nowhere" in environment_problems()[1]


# ---- the call -------------------------------------------------------------------------------------------------------


def test_the_call_returns_the_report(client: Client) -> None:
    report = client.get(f"/api/models/{MODEL}/doctor").json()
    assert (report["model_id"], report["problem"]) == (MODEL, "")
    assert report["checkpoint"]["storage"]["formats"] == {"F32": 15}
    assert report["fit"]["total_bytes"] > 0
    assert {draft["model_id"] for draft in report["drafts"]} == {SMALL, LARGE, FOREIGN, BROKEN}
    broken = client.get(f"/api/models/{BROKEN}/doctor")
    assert (broken.status_code, broken.json()["checkpoint"]["verdict"]) == (200, "broken")


def test_the_call_for_a_path(client: Client, tmp_path: Path) -> None:
    path = packed_checkpoint(tmp_path / "elsewhere", "v1", checkpoint_format="gptq_v2")
    report = client.post("/api/doctor", json={"path": str(path)}).json()
    assert (report["model_id"], report["checkpoint"]["storage"]["method"]) == (None, "GPTQ")
    assert any("GPTQ version: gptq_v2 → gptq" in remark for remark in report["checkpoint"]["remarks"])


@pytest.mark.parametrize(
    ("method", "url", "body", "status", "says"),
    [
        ("GET", "/api/models/nothing/doctor", None, 404, "there is no model 'nothing'"),
        ("POST", "/api/doctor", {"path": "/nowhere/at/all"}, 404, "there is no such file or folder"),
        ("POST", "/api/doctor", {"path": "hf:owner/name"}, 400, "is not a path on this machine"),
        ("POST", "/api/doctor", {"path": ""}, 400, "path"),
        ("POST", "/api/doctor", {"path": "/" + "x" * 900}, 404, "cannot be looked at"),
        ("POST", "/api/doctor", {"path": "/\0"}, 404, "there is no such file or folder"),
        ("POST", "/api/doctor", {"path": "~nobody-of-that-name/x"}, 404, "no such user"),
        ("POST", "/api/doctor", {}, 400, "path"),
        ("POST", "/api/doctor", {"path": "/", "deep": True}, 422, "unknown field 'deep'"),
    ],
)
def test_bad_calls(client: Client, method: str, url: str, body: Any, status: int, says: str) -> None:
    response = client.request(method, url, json=body)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_by_id_and_by_path(home: Path) -> None:
    by_id = run("doctor", MODEL, "--home", str(home))
    assert by_id.exit_code == 0, by_id.stdout
    lines = {line[2:18].strip(): line[18:] for line in by_id.stdout.splitlines()[1:]}
    assert by_id.stdout.splitlines()[0] == f"{MODEL}: can be served"
    assert lines["runs"] == "by Pizarra's own decoder (llama)"
    assert lines["attention"].startswith("0 in codes, 8 plain (8 F32)")
    assert lines["draft model"] == f"{SMALL}: the same 320 tokens"
    by_path = run("doctor", str(home / "models" / MODEL), "--home", str(home), "--json")
    assert by_path.exit_code == 0
    report = json.loads(by_path.stdout)
    assert (report["model_id"], report["checkpoint"]["num_parameters"] > 0) == (None, True)
    assert MODEL not in {draft["model_id"] for draft in report["drafts"]}, "a model is no draft of itself"


def test_every_way_of_storing_is_told_on_the_terminal(home: Path, tmp_path: Path) -> None:
    said = run(
        "doctor", str(packed_checkpoint(tmp_path / "made", "gemm", plain="o_proj", torch_dtype="bfloat16"))
    ).stdout
    for text in (
        "safetensors, AWQ gemm: 12 AWQ_GEMM, 3 F16",
        "4 bits, groups of 32, asymmetric zero points, no act order",
        "6 in codes, 2 plain (6 AWQ_GEMM, 2 F16)",
        "possible: ",
        "o_proj in 2",
        "bits a weight",
        "output head     tied to the embedding",
    ):
        assert text in said


def _cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def _foreign(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "verdict", "says"),
    [
        (_cut, "broken", "truncated"),
        (_foreign, "unsupported", "MambaForCausalLM"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "sound", "cannot be read as a tokenizer"),
    ],
)
def test_exit_code_1_with_the_reason(tmp_path: Path, damage: Callable[[Path], None], verdict: str, says: str) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    damage(folder)
    said = run("doctor", str(folder))
    assert said.exit_code == 1
    assert said.stdout.splitlines()[0] == f"{folder}: {'cannot be served' if verdict == 'sound' else verdict}"
    assert says in said.stdout
    report = json.loads(run("doctor", str(folder), "--json").stdout)
    assert (report["checkpoint"]["verdict"], says in report["problem"]) == (verdict, True)


@pytest.mark.parametrize("target", ["nothing", "/nowhere", "No Such Thing"])
def test_what_is_neither_path_nor_model(home: Path, target: str) -> None:
    said = run("doctor", target, "--home", str(home))
    assert (said.exit_code, said.stdout) == (1, "")
    assert target in said.stderr
    assert "Traceback" not in said.stderr


def test_a_folder_named_like_a_model_is_not_taken_for_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / SMALL).mkdir()
    assert json.loads(run("doctor", SMALL, "--home", str(home), "--json").stdout)["model_id"] == SMALL
    said = run("doctor", f"./{SMALL}", "--home", str(home))
    assert (said.exit_code, "no model here" in said.stdout) == (1, True)


def test_a_recorded_error_is_the_problem(home: Path) -> None:
    catalog = Catalog(home, ASSETS, home / "no-cache")
    model = replace(catalog.resolve(MODEL), info=None, error="its tokenizer could not be converted")
    report = Doctor(catalog.local, lambda: ("cpu", GIB, GIB)).examine_model(model)
    assert (report.checkpoint.verdict, report.problem) == ("sound", "its tokenizer could not be converted")
