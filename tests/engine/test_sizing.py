"""Pool sizes and refusals, by hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import GIB, MIB, LoadOptions, ModelConfig
from engine.core.sizing import (
    CPU_POOL_CAP_BYTES,
    SizingError,
    format_bytes,
    kv_bytes_per_block,
    kv_bytes_per_token,
    plan_kv,
)

SMOLLM = ModelConfig(
    architecture="llama",
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
)
BLOCK = 16 * 23040  # 16 tokens of 2 * 30 layers * 3 heads * 64 * 2 bytes


def test_bytes_of_the_parts() -> None:
    assert kv_bytes_per_token(SMOLLM, 2) == 23040
    assert kv_bytes_per_block(SMOLLM, 16, 2) == BLOCK
    assert kv_bytes_per_block(SMOLLM, 16, 4) == 2 * BLOCK


def test_codes_take_a_byte_a_number_and_four_a_scale() -> None:
    coded = 16 * 2 * 30 * 3 * (64 + 4)
    for kv_cache_dtype in ("int8", "fp8"):
        assert kv_bytes_per_block(SMOLLM, 16, 2, kv_cache_dtype) == coded
        assert kv_bytes_per_block(SMOLLM, 16, 4, kv_cache_dtype) == coded
    assert kv_bytes_per_token(SMOLLM, 2, kv_cache_dtype="int8") == coded // 16
    plain, small = (
        plan_kv(SMOLLM, LoadOptions(kv_cache_memory_bytes=256 * MIB, kv_cache_dtype=wish), GIB, 2)
        for wish in ("auto", "int8")
    )
    assert small.num_blocks == 256 * MIB // coded >= 1.8 * plain.num_blocks
    assert small.kv_bytes == small.num_blocks * coded
    capped = plan_kv(SMOLLM, LoadOptions(kv_cache_dtype="int8"), 40 * BLOCK, 2)
    assert (capped.num_blocks, capped.max_model_len) == (18, 17 * 16)


def test_default_pool_holds_every_sequence_in_full_and_no_more() -> None:
    plan = plan_kv(SMOLLM, LoadOptions(max_num_seqs=2, max_model_len=100), 20 * GIB, 2)
    assert (plan.num_blocks, plan.kv_bytes) == (2 * 7 + 1, 15 * BLOCK)
    assert (plan.max_model_len, plan.reason) == (100, "")


def test_default_pool_is_capped_at_two_gib() -> None:
    plan = plan_kv(SMOLLM, LoadOptions(), 20 * GIB, 2)
    assert plan.num_blocks == CPU_POOL_CAP_BYTES // BLOCK
    assert plan.kv_bytes <= 2 * GIB
    assert (plan.max_model_len, plan.reason) == (8192, "")


def test_default_pool_is_capped_at_a_quarter_and_shortens_the_context() -> None:
    plan = plan_kv(SMOLLM, LoadOptions(), 40 * BLOCK, 2)
    assert (plan.num_blocks, plan.max_model_len) == (10, 9 * 16)
    assert "8192 tokens" in plan.reason
    assert "kv_cache_memory_bytes" in plan.reason


def test_exact_pool_is_taken_as_asked_rounded_down_to_blocks() -> None:
    plan = plan_kv(SMOLLM, LoadOptions(max_model_len=16, kv_cache_memory_bytes=5 * BLOCK + 7), 6 * BLOCK, 2)
    assert (plan.num_blocks, plan.kv_bytes) == (5, 5 * BLOCK)


def test_the_null_block_counts_extra() -> None:
    enough = LoadOptions(max_model_len=32, kv_cache_memory_bytes=3 * BLOCK)
    assert plan_kv(SMOLLM, enough, GIB, 2).num_blocks == 3
    with pytest.raises(SizingError) as refusal:
        plan_kv(SMOLLM, LoadOptions(max_model_len=33, kv_cache_memory_bytes=3 * BLOCK), GIB, 2)
    assert refusal.value.max_model_len_that_fits == 32


def test_asked_context_that_does_not_fit_is_refused_with_numbers_and_remedies() -> None:
    available = 400 * BLOCK
    with pytest.raises(SizingError) as refusal:
        plan_kv(SMOLLM, LoadOptions(max_model_len=4096), available, 2)
    error = refusal.value
    assert error.needed_bytes == 257 * BLOCK
    assert error.available_bytes == available
    assert error.max_model_len_that_fits == 99 * 16
    for words in ("max_model_len=4096", "at most 1584", f"kv_cache_memory_bytes to at least {257 * BLOCK}"):
        assert words in str(error)
    assert plan_kv(SMOLLM, LoadOptions(max_model_len=1584), available, 2).max_model_len == 1584
    larger = LoadOptions(max_model_len=4096, kv_cache_memory_bytes=error.needed_bytes)
    assert plan_kv(SMOLLM, larger, available, 2).max_model_len == 4096


def test_context_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(SizingError, match="own context is 8192") as refusal:
        plan_kv(SMOLLM, LoadOptions(max_model_len=8193), 20 * GIB, 2)
    assert refusal.value.max_model_len_that_fits == 8192


def test_exact_pool_beyond_memory_is_refused() -> None:
    with pytest.raises(SizingError, match=r"only 100\.0 MiB") as refusal:
        plan_kv(SMOLLM, LoadOptions(kv_cache_memory_bytes=GIB), 100 * MIB, 2)
    assert refusal.value.max_model_len_that_fits == (100 * MIB // BLOCK - 1) * 16


@pytest.mark.parametrize("available_bytes", [-GIB, 0, 7 * BLOCK])
def test_no_room_for_one_block_is_refused(available_bytes: int) -> None:
    with pytest.raises(SizingError, match="free memory") as refusal:
        plan_kv(SMOLLM, LoadOptions(), available_bytes, 2)
    assert refusal.value.max_model_len_that_fits == 0


def test_a_gpu_pool_takes_all_it_is_given() -> None:
    plan = plan_kv(SMOLLM, LoadOptions(max_num_seqs=1, max_model_len=64), 40 * BLOCK, 2, device="cuda")
    assert plan.num_blocks == 40


def test_format_bytes() -> None:
    assert format_bytes(3 * GIB // 2) == "1.50 GiB"
    assert format_bytes(220 * MIB) == "220.0 MiB"


def gemma3_270m() -> ModelConfig:
    """18 layers, every sixth of full attention: a group of those 3, five groups of 3 with a window of 512."""
    windows = tuple(0 if (index + 1) % 6 == 0 else 512 for index in range(18))
    return replace(
        SMOLLM,
        num_hidden_layers=18,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32768,
        layer_windows=windows,
    )


def test_sliding_layers_cost_their_window() -> None:
    config = gemma3_270m()
    layer = 2 * 256 * 2
    assert kv_bytes_per_block(config, 16, 2) == 16 * 3 * layer
    assert kv_bytes_per_token(config, 2, context=512) == 18 * layer
    assert kv_bytes_per_token(config, 2, context=1024) == 3 * layer + 15 * layer // 2
    assert kv_bytes_per_token(config, 2) == 3 * layer + 15 * layer // 64
    same = replace(config, layer_windows=(512,) * 18)
    assert kv_bytes_per_token(same, 2, context=32768) == 18 * layer // 64


def test_the_pool_of_a_model_with_windows() -> None:
    config, block = gemma3_270m(), 16 * 3 * 2 * 256 * 2
    whole = 32768 // 16 + 5 * 65  # a chunk of 512 behind a window of 511 others touches 65 blocks
    exact = LoadOptions(max_model_len=32768, kv_cache_memory_bytes=(whole + 1) * block)
    plan = plan_kv(config, exact, GIB, 2)
    assert (plan.num_blocks, plan.max_model_len, plan.max_model_len_that_fits) == (whole + 1, 32768, 32768)
    assert [(group.window, len(group.layers)) for group in plan.groups] == [(0, 3)] + [(512, 3)] * 5
    with pytest.raises(SizingError) as refusal:
        plan_kv(config, replace(exact, kv_cache_memory_bytes=whole * block), GIB, 2)
    assert refusal.value.needed_bytes == (whole + 1) * block
    assert refusal.value.max_model_len_that_fits == 32768 - 16
    short = plan_kv(config, LoadOptions(kv_cache_memory_bytes=61 * block), GIB, 2)
    assert (short.max_model_len, short.max_model_len_that_fits) == (160, 160), "below the window all groups grow alike"
    chunks = replace(exact, kv_cache_memory_bytes=GIB, long_prefill_token_threshold=16)
    assert plan_kv(config, chunks, GIB, 2).max_model_len_that_fits == 32768
    house = plan_kv(config, LoadOptions(max_num_seqs=2, max_model_len=2048), 20 * GIB, 2)
    assert house.num_blocks == 2 * (128 + 5 * 65) + 1


def test_a_window_in_every_layer_lets_any_context_fit() -> None:
    config = replace(SMOLLM, layer_windows=(64,) * 30, max_position_embeddings=100_000)
    options = LoadOptions(max_num_batched_tokens=16, kv_cache_memory_bytes=7 * BLOCK)  # 79 tokens touch 6 blocks
    assert plan_kv(config, options, GIB, 2).max_model_len == 100_000
    fewer = plan_kv(config, replace(options, kv_cache_memory_bytes=6 * BLOCK), GIB, 2)
    assert fewer.max_model_len == 80
