"""The estimate: its parts, its verdicts, and that it says what the engine's own sizing will do."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.fit import FitEstimate, estimate
from app.memory_holders import MemoryHolder
from engine.checkpoint import CheckpointInfo, TensorInfo
from engine.config import GIB, MIB, LoadOptions
from engine.core.sizing import RUNTIME_BYTES, plan_kv
from tests.engine.test_sizing import SMOLLM as SMOLLM_CONFIG

SMOLLM = CheckpointInfo(
    path=Path("model.gguf"),
    format="gguf",
    config=SMOLLM_CONFIG,
    tensors={
        str(index): TensorInfo(str(index), "BF16", (134_515_008 // 48,), Path("model.gguf"), 0, 2 * 134_515_008 // 48)
        for index in range(48)
    },
    quantization="Q4_1",
    chat_template=None,
    weights_bytes_on_disk=98 * MIB,
    num_parameters=134_515_008,
    metadata={},
)


def check_sum(fit: FitEstimate) -> None:
    parts = fit.weights_bytes + fit.drafter_bytes + fit.kv_bytes + fit.workspace_bytes + fit.runtime_bytes
    assert fit.total_bytes == parts
    assert fit.workspace_bytes == sum(fit.workspace_parts.values())
    assert fit.short_by_bytes == max(0, parts - fit.available_bytes)


def test_a_model_that_fits() -> None:
    fit = estimate(SMOLLM, LoadOptions(), 8 * GIB, 16 * GIB, "cpu")
    check_sum(fit)
    assert fit.fits
    assert fit.weights_bytes == 2 * 134_515_008
    assert fit.runtime_bytes == RUNTIME_BYTES
    assert fit.kv_bytes_per_token == 23040
    assert fit.max_model_len == 8192
    assert "of 8.00 GiB available" in fit.message
    left = 8 * GIB - fit.weights_bytes - fit.workspace_bytes - fit.runtime_bytes
    assert fit.kv_bytes == plan_kv(SMOLLM.config, LoadOptions(), left, 2).kv_bytes


def test_float32_doubles_weights_and_cache() -> None:
    half = estimate(SMOLLM, LoadOptions(max_model_len=256), 8 * GIB, 16 * GIB, "cpu")
    full = estimate(SMOLLM, LoadOptions(max_model_len=256, dtype="float32"), 8 * GIB, 16 * GIB, "cpu")
    assert full.weights_bytes == 2 * half.weights_bytes
    assert full.kv_bytes == 2 * half.kv_bytes


def test_shortened_context_still_fits_and_says_why() -> None:
    fit = estimate(SMOLLM, LoadOptions(), GIB, 2 * GIB, "cpu")
    check_sum(fit)
    assert fit.fits
    assert fit.max_model_len < 8192
    assert fit.max_model_len == fit.max_model_len_that_fits
    assert "kv_cache_memory_bytes" in fit.message


def test_weights_that_do_not_fit() -> None:
    fit = estimate(SMOLLM, LoadOptions(), 512 * MIB, GIB, "cpu")
    check_sum(fit)
    assert not fit.fits
    assert fit.short_by_bytes > 0
    assert fit.max_model_len_that_fits == 0
    for words in ("short by", "weights 256.6 MiB", "workspace", "runtime 300.0 MiB"):
        assert words in fit.message


def test_a_refusal_says_who_has_the_memory() -> None:
    held = [MemoryHolder("smollm2", "engine", GIB), MemoryHolder("this server", "app", 0)]
    fit = estimate(SMOLLM, LoadOptions(), 512 * MIB, 2 * GIB, "cpu", held)
    assert fit.held == held
    assert "In use already: smollm2 1.00 GiB. Unload another model" in fit.message
    assert (fit.device, fit.memory_total_bytes) == ("cpu", 2 * GIB)


def test_asked_context_that_does_not_fit() -> None:
    options = LoadOptions(max_model_len=8192, kv_cache_memory_bytes=64 * MIB)
    fit = estimate(SMOLLM, options, 8 * GIB, 16 * GIB, "cpu")
    check_sum(fit)
    assert not fit.fits
    assert fit.short_by_bytes == 0
    assert 0 < fit.max_model_len_that_fits < 8192
    assert str(fit.max_model_len_that_fits) in fit.message


@pytest.mark.parametrize(("utilization", "fits"), [(0.9, True), (0.15, False)])
def test_a_gpu_counts_only_its_share(utilization: float, fits: bool) -> None:
    options = LoadOptions(gpu_memory_utilization=utilization)
    fit = estimate(SMOLLM, options, 7 * GIB, 8 * GIB, "cuda")
    check_sum(fit)
    assert fit.fits is fits
    assert fit.available_bytes == int(8 * GIB * utilization) - GIB
