"""A short `make soak`: the same mixed life, with fewer requests."""

from __future__ import annotations

from bench.soak_engine import CODED_BLOCK_BYTES, POOL_BLOCKS, soak


def test_nothing_is_left_behind_by_a_mixed_life() -> None:
    assert soak(160, seed=1) == []


def test_nothing_is_left_behind_where_the_cache_holds_codes() -> None:
    assert soak(80, seed=2, kv_cache_dtype="int8", kv_cache_memory_bytes=POOL_BLOCKS * CODED_BLOCK_BYTES) == []
