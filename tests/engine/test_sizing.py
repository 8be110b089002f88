"""Pool sizes and refusals, by hand-computed numbers."""

from __future__ import annotations

import pytest

from engine.config import GIB, MIB, LoadOptions, ModelConfig
from engine.core.sizing import (
    CPU_POOL_CAP_BYTES,
    SizingError,
    format_bytes,
    kv_bytes_per_block,
    kv_bytes_per_token,
    plan_kv,
    weights_bytes,
    workspace_bytes,
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
    assert weights_bytes(134_515_008, 2) == 269_030_016
    per_token = 2 * 576 + 2 * 576 + 2 * 192 + 3 * 1536
    assert workspace_bytes(SMOLLM, 512, 16, 2) == 512 * per_token * 2 + 2 * 16 * 49152 * 4


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
