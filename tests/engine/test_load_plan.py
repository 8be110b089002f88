"""What a load decides before it reads a weight, and what it tells of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.checkpoint import read_checkpoint
from engine.config import LoadOptions, RopeScaling
from engine.core.sizing import RUNTIME_BYTES, SizingError
from engine.runner import device
from engine.runner.load_plan import plan_load
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint


def test_a_shortened_context_is_told(tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path / "tiny", max_position_embeddings=100_000))
    plan = plan_load(info, LoadOptions(kv_cache_memory_bytes=1 << 20))
    assert plan.kv.max_model_len < 100_000
    (setting,) = plan.settings
    assert (setting.name, setting.requested, setting.effective) == (
        "max_model_len",
        "100000",
        str(plan.kv.max_model_len),
    )
    assert "kv_cache_memory_bytes" in setting.reason


def test_an_fp16_checkpoint_runs_in_bfloat16_and_says_so(tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path / "tiny", dtype="F16"))
    settings = {setting.name: setting for setting in plan_load(info, LoadOptions()).settings}
    assert settings["dtype"].effective == "bfloat16"
    assert "dtype" not in {setting.name for setting in plan_load(info, LoadOptions(dtype="float32")).settings}


def test_weights_that_do_not_fit_are_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path / "tiny"))
    monkeypatch.setattr(device, "host_memory", lambda: (1 << 30, 100_000))
    with pytest.raises(SizingError, match=r"0\.1 MiB are available: short by") as caught:
        plan_load(info, LoadOptions(device="cpu"))
    assert caught.value.needed_bytes > 100_000
    assert "1023.9 MiB of the 1.00 GiB of the host's memory are in use already" in str(caught.value)


def test_file_pages_of_a_container_are_not_taken(tmp_path: Path) -> None:
    for name, text in (("memory.max", 100 << 20), ("memory.current", 90 << 20)):
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {60 << 20}\n")
    assert device.host_memory(tmp_path) == (100 << 20, 70 << 20)
    (tmp_path / "memory.max").write_text("max\n")
    assert device.host_memory(tmp_path)[0] > 100 << 20


@pytest.mark.parametrize(("max_model_len", "effective"), [(64, "short"), (128, "long")])
def test_longrope_says_which_factors_serve(max_model_len: int, effective: str, tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path / "tiny", max_position_embeddings=256))
    scaling = RopeScaling("longrope", 1.0, original_max_position_embeddings=64)
    phi = replace(info, config=replace(info.config, rope_scaling=scaling))
    settings = {setting.name: setting for setting in plan_load(phi, LoadOptions(max_model_len=max_model_len)).settings}
    assert settings["longrope"].effective == effective


def test_a_memory_limit_bounds_the_cache_and_refuses_what_is_over_it(tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path / "tiny", max_position_embeddings=100_000))
    free = plan_load(info, LoadOptions(device="cpu"))
    limit = RUNTIME_BYTES + (8 << 20)
    kept = plan_load(info, LoadOptions(device="cpu", memory_limit_bytes=limit))
    assert kept.kv.kv_bytes < free.kv.kv_bytes
    assert kept.weights_bytes + kept.kv.kv_bytes <= limit - RUNTIME_BYTES
    with pytest.raises(SizingError):
        plan_load(info, LoadOptions(device="cpu", memory_limit_bytes=RUNTIME_BYTES + 1000))
