"""Blocks: exact ids, all-or-nothing allocation, and the invariant after every operation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.block_pool import BlockPool
from engine.core.kv_cache_manager import KVCacheManager


def test_blocks_are_handed_out_in_order_and_reused_tail_first() -> None:
    pool = BlockPool(6)
    first = pool.allocate(3)
    assert first is not None
    assert [block.block_id for block in first] == [1, 2, 3]
    pool.release(first)
    assert pool.num_available == 5
    again = pool.allocate(5)
    assert again is not None
    assert [block.block_id for block in again] == [4, 5, 3, 2, 1]
    pool.check()


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(4) is None
    assert (pool.num_available, pool.num_used) == (3, 0)
    pool.check()


def test_a_block_released_twice_is_refused() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(ValueError, match="released more often"):
        pool.release(blocks)


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)


def test_check_finds_a_lost_block() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(1)
    assert blocks is not None
    blocks[0].ref_count = 0
    with pytest.raises(AssertionError, match="1 blocks are lost"):
        pool.check()


def test_a_table_grows_by_whole_blocks_and_fails_without_a_trace() -> None:
    kv = KVCacheManager(BlockPool(4), block_size=4)
    assert kv.allocate_slots("a", 5) == ((1, 2),)
    assert kv.allocate_slots("a", 8) == ((),)
    assert kv.allocate_slots("b", 5) is None
    assert kv.block_ids("b") == ((),)
    assert kv.allocate_slots("a", 9) == ((3,),)
    kv.check()
    kv.free("a")
    kv.free("never seen")
    assert kv.pool.num_used == 0
    kv.check()


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), max_size=60))
def test_any_sequence_of_operations_keeps_the_invariant(operations: list[tuple[str, int]]) -> None:
    """A length of 0 frees the request."""
    kv = KVCacheManager(BlockPool(12), block_size=4)
    for name, length in operations:
        before = kv.block_ids(name), kv.pool.num_available
        if length == 0:
            kv.free(name)
        elif kv.allocate_slots(name, length) is None:
            assert (kv.block_ids(name), kv.pool.num_available) == before
        else:
            assert len(kv.block_ids(name)[0]) * 4 >= length
        kv.check()
    for name in "abcd":
        kv.free(name)
    assert kv.pool.num_used == 0
