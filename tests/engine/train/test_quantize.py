"""The job `quantize` on tiny models: its output, its resumption, its refusals."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.jobs import EXIT_FAILED, EXIT_STOPPED
from engine.train.calibration import rows_of_file
from engine.vocab import load_vocab
from tests.engine.stepping import load, prompt_logits
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.train.job_lines import run

TEXT = " ".join(f"The {one} of item {index} was here, and then it went on." for index, one in enumerate("abcdefg" * 30))
LENGTH = 48


job = functools.partial(run, "quantize")


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "text.txt").write_text(TEXT)
    model = tiny_llama_checkpoint(tmp_path / "model", num_hidden_layers=3)
    return {
        "model": str(model),
        "output": str(tmp_path / "out"),
        "calibration": str(tmp_path / "text.txt"),
        "group_size": 32,
        "num_threads": 1,
        "rows": 12,
        "row_tokens": LENGTH,
    }


FORMATS = [("awq", "awq"), ("gptq", "gptq"), ("compressed-tensors", "awq"), ("compressed-tensors", "gptq")]


@pytest.mark.parametrize(("form", "method"), FORMATS)
def test_the_engine_gives_the_perplexity_that_the_card_states(
    form: str, method: str, arguments: dict[str, Any]
) -> None:
    status, lines = job(arguments | {"format": form, "method": method})
    assert status == 0, lines[-1]
    assert lines[-1]["stage"] == "done"
    result, output = lines[-1]["result"], Path(arguments["output"])
    assert not output.with_name("out.partial").exists()

    vocab = load_vocab(output)
    held_out = rows_of_file(Path(arguments["calibration"]), vocab, 12, LENGTH).held_out
    loaded = load(output, dtype="float32", max_num_seqs=LENGTH, max_model_len=128, num_threads=1)
    total = 0.0
    for row in held_out:
        chances = prompt_logits(loaded.runner, row.tolist())[:-1].log_softmax(-1)
        total -= float(chances.gather(1, row[1:, None]).sum())
    assert math.exp(total / (len(held_out) * (LENGTH - 1))) == pytest.approx(result["perplexity"], rel=0.01)
    assert 0 < result["divergence"] < result["divergence_rtn"]
    card = (output / "README.md").read_text()
    for figure in ("perplexity_base", "perplexity_rtn", "perplexity"):
        assert f"{result[figure]:.3f}" in card
    assert vocab.chat_template


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "README.md"}


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_work_that_sigterm_stopped_goes_on_to_the_same_bytes(method: str, arguments: dict[str, Any]) -> None:
    arguments |= {"format": method, "method": method}
    output = Path(arguments["output"])
    status, lines = job(arguments, stop_at=("quantize", 1))
    assert (status, lines[-1]["stage"]) == (EXIT_STOPPED, "stopped")
    assert not output.exists()
    status, lines = job(arguments)
    assert status == 0
    assert next(line["done"] for line in lines if line["stage"] == "quantize") == 1
    resumed = files_of(output)
    output.rename(output.with_name("resumed"))
    assert job(arguments)[0] == 0
    assert files_of(output) == resumed


def test_a_crash_between_layers_costs_only_the_layer_at_hand(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.train import quantize

    packed, calls = quantize.pack_layer, []

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the power went")
        return packed(*args)

    with monkeypatch.context() as patch:
        patch.setattr(quantize, "pack_layer", failing)
        status, lines = job(arguments)
    assert (status, lines[-1]["stage"]) == (EXIT_FAILED, "failed")
    assert "the power went" in lines[-1]["message"]
    status, lines = job(arguments)
    assert status == 0
    assert next(line["done"] for line in lines if line["stage"] == "quantize") == 2


def test_unfinished_work_of_another_request_is_not_gone_on_with(arguments: dict[str, Any]) -> None:
    assert job(arguments, stop_at=("quantize", 1))[0] == EXIT_STOPPED
    status, lines = job(arguments | {"group_size": 16})
    assert status == EXIT_FAILED
    assert "group_size 32" in lines[-1]["message"]
    Path(arguments["calibration"]).write_text(f"Other text. {TEXT}")
    assert "calibration_digest" in job(arguments)[1][-1]["message"]


def test_a_gguf_file_becomes_a_folder_with_its_tokenizer(arguments: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_llama_checkpoint(tmp_path / "gguf", format="gguf", dtype="Q4_1")
    status, lines = job(arguments | {"model": str(model)})
    assert status == 0, lines[-1]
    output = Path(arguments["output"])
    mine, original = load_vocab(output), load_vocab(model)
    assert mine.encode("The item 12 was here.") == original.encode("The item 12 was here.")
    assert mine.chat_template == original.chat_template
    assert mine.eos_token_ids == original.eos_token_ids
    card = (output / "README.md").read_text()
    assert "itself quantised (Q4_1)" in card
    assert "Such groups are used here." in card


def test_the_model_writes_its_own_text(arguments: dict[str, Any]) -> None:
    del arguments["calibration"]
    status, lines = job(arguments | {"rows": 10, "row_tokens": 32})
    assert status == 0, lines[-1]
    assert {"calibration", "quantize", "measure", "write"} <= {line["stage"] for line in lines}
    result = lines[-1]["result"]
    assert result["calibration_tokens"] == 320
    assert result["held_out_tokens"] == 64
    assert "its own chat template" in result["calibration"]


@pytest.mark.parametrize("variant", ["phi3", "olmo2", "gemma3"])
def test_other_families_go_the_same_way(variant: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """Fused projections, norms behind the blocks, norms with an offset."""
    model = family_checkpoint(tmp_path / variant, variant)
    donor = Path(arguments["model"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((donor / name).read_bytes())
    status, lines = job(arguments | {"model": str(model)})
    assert status == 0, lines[-1]
    load(Path(arguments["output"]), max_model_len=128, num_threads=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group_size": 128}, "group_size 128 does not divide the 64 hidden inputs.*64, 32, 16"),
        ({"group_size": 48}, "group_size is 48; known are 128, 64, 32, 16"),
        ({"bits": 3}, "bits is 3; awq makes codes of 4 bits"),
        ({"bits": 8}, "bits is 8; awq makes codes of 4 bits"),
        ({"format": "gptq"}, "choose the format awq or compressed-tensors"),
        ({"format": "exl3"}, "format is 'exl3'; known are awq, gptq, compressed-tensors"),
        ({"desc_act": True}, "desc_act is GPTQ's"),
        ({"rows": 0}, "rows is 0"),
        ({"row_tokens": 1024}, "row_tokens is 1024, and .* takes at most 512"),
        ({"model": "/nowhere/model"}, "there is no such file or folder"),
        ({"output": "/nowhere/out"}, "/nowhere: there is no such folder"),
        ({"calibration": "/nowhere/text"}, "no such calibration text"),
        ({"speed": 9}, "unknown argument 'speed'"),
        ({"bits": "4"}, "bits is '4', expected a whole number"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    changes: dict[str, Any], said: str, arguments: dict[str, Any]
) -> None:
    status, lines = job(arguments | changes)
    assert (status, len(lines), lines[-1]["stage"]) == (EXIT_FAILED, 1, "failed")
    assert re.search(said, lines[-1]["message"]), lines[-1]["message"]
    assert not Path(arguments["output"] + ".partial").exists()


def test_an_output_that_exists_is_not_overwritten(arguments: dict[str, Any]) -> None:
    Path(arguments["output"]).mkdir()
    status, lines = job(arguments)
    assert status == EXIT_FAILED
    assert "is there already" in lines[-1]["message"]


def test_want_of_disk_and_memory_is_seen_before_any_work(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.train import request

    with monkeypatch.context() as patch:
        patch.setattr(request, "host_memory", lambda: (1 << 30, 1 << 20))
        assert "of memory" in job(arguments)[1][-1]["message"]
    monkeypatch.setattr(request.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    assert "of disk" in job(arguments)[1][-1]["message"]


@pytest.mark.parametrize(("variant", "said"), [("mixtral", "5 experts a layer")])
def test_models_of_other_kinds_are_refused_by_name(
    variant: str, said: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    model = family_checkpoint(tmp_path / variant, variant)
    status, lines = job(arguments | {"model": str(model)})
    assert status == EXIT_FAILED
    assert said in lines[-1]["message"]


def test_a_quantised_checkpoint_is_not_quantised_again(arguments: dict[str, Any], tmp_path: Path) -> None:
    assert job(arguments)[0] == 0
    status, lines = job(arguments | {"model": arguments["output"], "output": str(tmp_path / "again")})
    assert status == EXIT_FAILED
    assert "quantised already" in lines[-1]["message"]


def test_too_little_text_is_refused(arguments: dict[str, Any]) -> None:
    Path(arguments["calibration"]).write_text("Not much.")
    status, lines = job(arguments)
    assert status == EXIT_FAILED
    assert "tokens of calibration text are too few" in lines[-1]["message"]
    assert torch.get_num_threads() >= 1
