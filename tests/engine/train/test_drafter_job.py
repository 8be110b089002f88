"""The job `train-drafter` on a tiny model: what it makes, how it goes on, what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.checkpoint import read_checkpoint
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.jobs import EXIT_FAILED, EXIT_STOPPED
from engine.train import drafter
from engine.train.drafter_export import read_older, warm_weights
from engine.train.drafter_state import read_state
from engine.train.drafter_target import Target
from engine.train.source import Source
from tests.engine.stepping import load, prompt_logits
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.train.job_lines import run
from tests.engine.train.tiny_training import job, make_small, weights_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def curve_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(line["message"]) for line in lines if line["stage"] == "measured"]


def test_a_drafter_is_made_that_has_learned(arguments: dict[str, Any], model: Path) -> None:
    shutil.rmtree(f"{arguments['output']}.partial")
    status, lines = job(arguments | {"passes": 6, "model_id": "tiny"})
    assert status == 0, lines[-1]
    result, output = lines[-1]["result"], Path(arguments["output"])
    assert result["finished"]
    assert not output.with_name("out.partial").exists()
    assert {"text", "train", "measured", "write"} <= {line["stage"] for line in lines}
    curve = curve_of(lines)
    assert curve[-1]["learned"] > curve[0]["learned"]
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert {name: result[name] for name in ("greedy", "temperature_1")} == {
        name: curve[-1][name] for name in ("greedy", "temperature_1")
    }

    config = json.loads((output / "config.json").read_text())
    own = config["pizarra"]
    assert own["target"]["fingerprint"] == weights_fingerprint(read_checkpoint(model))
    assert (own["kind"], own["feature_layers"], own["target"]["model_id"]) == ("eagle", [0, 2, 3], "tiny")
    assert (config["draft_vocab_size"], config["num_hidden_layers"], config["intermediate_size"]) == (128, 1, 128)
    tensors = load_file(output / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert shapes == {
        "fc.weight": (64, 192),
        **{f"midlayer.{name}.weight": (64,) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        "midlayer.self_attn.q_proj.weight": (64, 128),
        "midlayer.self_attn.k_proj.weight": (32, 128),
        "midlayer.self_attn.v_proj.weight": (32, 128),
        "midlayer.self_attn.o_proj.weight": (64, 64),
        "midlayer.mlp.gate_proj.weight": (128, 64),
        "midlayer.mlp.up_proj.weight": (128, 64),
        "midlayer.mlp.down_proj.weight": (64, 128),
        "norm.weight": (64,),
        "lm_head.weight": (128, 64),
        "d2t": (128,),
        "t2d": (320,),
    }
    assert {str(tensor.dtype) for name, tensor in tensors.items() if name not in ("d2t", "t2d")} == {"torch.bfloat16"}
    assert tensors["t2d"].nonzero().flatten().tolist() == (torch.arange(128) + tensors["d2t"]).tolist()
    card = (output / "README.md").read_text()
    assert f"| greedy | {result['greedy'][0]:.3f} |" in card
    assert own["target"]["fingerprint"] in card
    assert f"{result['training']['learned_positions']:,} positions" in card


def test_work_that_sigterm_stopped_goes_on_to_the_same_bytes(arguments: dict[str, Any]) -> None:
    output, text = Path(arguments["output"]), Path(f"{arguments['output']}.text")
    shutil.copytree(f"{output}.partial", text)
    status, lines = job(arguments, stop_at=("train", 1))
    assert (status, lines[-1]["stage"]) == (EXIT_STOPPED, "stopped")
    assert not output.exists()
    status, lines = job(arguments)
    assert status == 0, lines[-1]
    assert not any(line["stage"] == "text" for line in lines)
    assert next(line["done"] for line in lines if line["stage"] == "train" and "loss" in line["message"]) >= 1
    resumed = weights_of(output)
    output.rename(output.with_name("resumed"))
    text.rename(f"{output}.partial")
    assert job(arguments)[0] == 0
    assert weights_of(output) == resumed


def test_a_stretch_may_begin_from_a_drafter(arguments: dict[str, Any], written: Path, tmp_path: Path) -> None:
    status, lines = job(arguments)
    assert status == 0, lines[-1]
    further = arguments | {
        "output": str(tmp_path / "further"),
        "warm_start": arguments["output"],
        "passes": 1,
    }
    for name in ("further", "cold", "other"):
        shutil.copytree(written, tmp_path / f"{name}.partial")
    status, warm = job(further)
    assert status == 0, warm[-1]
    cold = job(further | {"warm_start": None, "output": str(tmp_path / "cold")})[1]
    assert curve_of(warm)[-1]["loss"] < curve_of(cold)[-1]["loss"]
    earlier = lines[-1]["result"]["training"]
    own = json.loads((tmp_path / "further" / "config.json").read_text())["pizarra"]["training"]
    assert own["predecessor"] == {"name": "out", **earlier}
    card = (tmp_path / "further" / "README.md").read_text()
    learned = f"{earlier['learned_positions']:,} positions of answers in {earlier['steps']:,} steps"
    assert f"- Begun from an earlier drafter of this model, out: {learned} over a text of" in card
    third = arguments | {"output": str(tmp_path / "third"), "warm_start": str(tmp_path / "further"), "passes": 1}
    shutil.copytree(written, tmp_path / "third.partial")
    assert job(third)[0] == 0
    assert (
        f"- And that from an earlier drafter of this model, out: {learned}"
        in (tmp_path / "third/README.md").read_text()
    )
    status, lines = job(further | {"kind": "medusa", "output": str(tmp_path / "other")})
    assert (status, "is of kind eagle" in lines[-1]["message"]) == (EXIT_FAILED, True)


def test_without_fast_bf16_it_is_trained_in_fp32(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter, "work_dtype", lambda device: torch.float32)
    status, lines = job(arguments | {"passes": 1})
    assert status == 0, lines[-1]
    assert lines[-1]["result"]["training"]["dtype"] == "float32"


def test_rows_of_tokens_that_a_drafter_did_not_know_begin_as_the_mean_of_the_others() -> None:
    older = {"lm_head.weight": torch.arange(6.0).view(3, 2), "fc.weight": torch.ones(2, 2)}
    fresh = {"lm_head.weight": -torch.ones(4, 2), "fc.weight": torch.zeros(2, 2)}
    found = warm_weights(fresh, torch.tensor([1, 4, 6, 9]), older, torch.tensor([4, 5, 9]))
    assert found["lm_head.weight"].tolist() == [[2, 3], [0, 1], [2, 3], [4, 5]]
    assert found["fc.weight"].tolist() == [[1, 1], [1, 1]]


def test_medusa_heads_are_made_by_the_same_loop(arguments: dict[str, Any], model: Path) -> None:
    status, lines = job(arguments | {"kind": "medusa", "passes": 4})
    assert status == 0, lines[-1]
    curve = curve_of(lines)
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert len(lines[-1]["result"]["greedy"]) == 3
    tensors = load_file(Path(arguments["output"]) / "model.safetensors")
    assert tensors["medusa_head.2.1.weight"].shape == (128, 64)
    info = read_checkpoint(model)
    made = read_older(Path(arguments["output"]), "medusa", info, weights_fingerprint(info))
    assert len(made.chosen) == len(made.weights["medusa_head.0.1.weight"]) == 128


def test_other_work_is_not_gone_on_with(arguments: dict[str, Any], model: Path) -> None:
    assert job(arguments, stop_at=("train", 1))[0] == EXIT_STOPPED
    for name, value, said in (
        ("seed", 9, "seed 0"),
        ("vocabulary", 100, "vocabulary 128"),
        ("kind", "medusa", "eagle"),
    ):
        status, lines = job(arguments | {name: value})
        assert (status, said in lines[-1]["message"]) == (EXIT_FAILED, True)
    partial = Path(f"{arguments['output']}.partial")
    identity = {"model": weights_fingerprint(read_checkpoint(model)), "seed": 0}
    state = read_state(partial, identity, CPU)
    assert state is not None
    assert state.place.passes
    (partial / "state.safetensors").write_bytes(b"damaged")
    assert "remove the folder to start anew" in job(arguments)[1][-1]["message"]


def test_the_operators_text_is_learned_from(arguments: dict[str, Any], tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("\n\n".join(f"Paragraph {index} tells of the sea and of ships." for index in range(9)))
    shutil.rmtree(f"{arguments['output']}.partial")
    status, lines = job(arguments | {"texts": str(text), "passes": 1})
    assert status == 0, lines[-1]
    assert "9 texts of the operator" in lines[-1]["result"]["training"]["text"]
    text.write_text("too short")
    assert "no paragraph of 40 characters" in job(arguments | {"texts": str(text)})[1][-1]["message"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "eagle2"}, "kind is 'eagle2'; known are eagle, medusa"),
        ({"tokens": 1}, "tokens is 1; must lie between 1000"),
        ({"tokens": "many"}, "tokens is 'many', expected a whole number"),
        ({"minutes": -1}, "minutes is -1; must lie between 0.01"),
        ({"vocabulary": 1000}, "vocabulary is 1000, and .* has only 320 tokens"),
        ({"longest": 1024, "answer_tokens": 64}, "longest is 1024, and .* takes at most 512"),
        ({"longest": 64}, "longest is 64, too short for questions and answers of 40 tokens"),
        ({"model": "/nowhere/model"}, "there is no such file or folder"),
        ({"output": "/nowhere/out"}, "/nowhere: there is no such folder"),
        ({"texts": "/nowhere/text"}, "there is no such text"),
        ({"warm_start": "/nowhere/d"}, "there is no drafter to begin from"),
        ({"speed": 9}, "unknown argument 'speed'"),
        ({"model_id": 4}, "model_id is 4"),
        ({"device": "tpu"}, "device is 'tpu'; known are auto, cpu, cuda"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    changes: dict[str, Any], said: str, arguments: dict[str, Any]
) -> None:
    status, lines = job(arguments | changes)
    assert (status, len(lines), lines[-1]["stage"]) == (EXIT_FAILED, 1, "failed")
    assert re.search(said, lines[-1]["message"]), lines[-1]["message"]
    assert not (Path(f"{arguments['output']}.partial") / "state.safetensors").exists()


def test_a_folder_that_is_no_drafter_is_not_overwritten(arguments: dict[str, Any]) -> None:
    Path(arguments["output"]).mkdir()
    assert "is there already and is no drafter" in job(arguments)[1][-1]["message"]


def test_want_of_disk_and_memory_is_seen_before_any_work(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.train import drafter_request

    with monkeypatch.context() as patch:
        patch.setattr(drafter_request, "host_memory", lambda: (1 << 30, 1 << 20))
        assert "of memory" in job(arguments)[1][-1]["message"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    assert "of disk" in job(arguments)[1][-1]["message"]


def test_models_of_other_kinds_are_refused_by_name(arguments: dict[str, Any], tmp_path: Path) -> None:
    model = family_checkpoint(tmp_path / "mixtral", "mixtral")
    status, lines = job(arguments | {"model": str(model)})
    assert (status, "5 experts a layer" in lines[-1]["message"]) == (EXIT_FAILED, True)
    shallow = tiny_llama_checkpoint(tmp_path / "shallow", num_hidden_layers=2)
    assert "has 2 layers" in job(arguments | {"model": str(shallow)})[1][-1]["message"]


def test_a_drafter_is_made_for_a_model_in_codes(arguments: dict[str, Any], model: Path, tmp_path: Path) -> None:
    """The features are those of the codes, not of the weights that they were made of."""
    text = tmp_path / "calibration.txt"
    text.write_text(" ".join(f"The {index} items were here." for index in range(200)))
    wish = {"model": str(model), "output": str(tmp_path / "codes"), "format": "awq", "group_size": 32}
    wish |= {"calibration": str(text), "rows": 6, "row_tokens": 32, "num_threads": 1}
    assert run("quantize", wish)[0] == 0
    codes = Target(Source(tmp_path / "codes", codes=True), (0, 2, 3), 64, CPU, torch.float32)
    plain = Target(Source(model), (0, 2, 3), 64, CPU, torch.float32)
    prompt = torch.arange(5, 25)
    loaded = load(tmp_path / "codes", dtype="float32", max_num_seqs=20, max_model_len=64, num_threads=1)
    expected = prompt_logits(loaded.runner, prompt.tolist())
    found = codes.logits(codes.states(prompt[None]).final[0], codes.head)
    assert torch.allclose(found, expected, atol=0.05)  # the engine's kernels round the activations as well
    assert not torch.allclose(plain.logits(plain.states(prompt[None]).final[0], plain.head), expected, atol=0.05)
    of_other_weights = job(arguments | {"model": str(tmp_path / "codes"), "passes": 1})[1][-1]["message"]
    assert f"was written with model '{weights_fingerprint(read_checkpoint(model))}'" in of_other_weights
    shutil.rmtree(f"{arguments['output']}.partial")
    status, lines = job(arguments | {"model": str(tmp_path / "codes"), "passes": 1})
    assert status == 0, lines[-1]


def test_a_drafter_is_made_for_a_quantised_gguf_file(arguments: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_llama_checkpoint(tmp_path / "gguf", format="gguf", dtype="Q4_1", num_hidden_layers=3)
    shutil.rmtree(f"{arguments['output']}.partial")
    status, lines = job(arguments | {"model": str(model), "passes": 1})
    assert status == 0, lines[-1]
    own = json.loads((Path(arguments["output"]) / "config.json").read_text())["pizarra"]
    assert own["target"]["fingerprint"] == weights_fingerprint(read_checkpoint(model))
