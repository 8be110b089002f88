"""Shared prefixes: what is found, what is not, what is evicted first, and that a hit changes no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.block_pool import BlockPool
from engine.core.kv_cache_manager import CachedPrefix, KVCacheManager
from engine.core.prefix import PrefixHasher
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from tests.engine.stepping import complete, load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def manager(blocks: int = 12) -> KVCacheManager:
    return KVCacheManager(BlockPool(blocks + 1), 4, PrefixHasher("model", 4))


def compute(kv: KVCacheManager, name: str, tokens: list[int], salt: str = "") -> list[int]:
    """A request that runs to the end of its tokens; returns the block ids it started with from the cache."""
    request = Request(name, tokens, SamplingParams(), 0, frozenset(), 1, cache_salt=salt)
    prefix = kv.cached_prefix(request)
    assert kv.allocate_slots(name, len(tokens), prefix=prefix) is not None
    request.num_computed_tokens = len(tokens)
    kv.commit(request)
    kv.check()
    return found_ids(prefix)


def found_ids(prefix: CachedPrefix) -> list[int]:
    """Of the one KV group."""
    (table,) = prefix.tables
    assert len(table) == prefix.num_blocks
    return [block.block_id for block in table]


def test_full_blocks_are_found_and_the_last_token_is_always_computed() -> None:
    kv = manager()
    assert compute(kv, "a", list(range(10))) == []
    assert compute(kv, "b", list(range(10))) == [1, 2]
    assert compute(kv, "c", list(range(8))) == [1], "8 tokens fill 2 blocks, but one token must be left to compute"
    assert compute(kv, "d", [*range(4), 9, 9, 9, 9, 9]) == [1]
    assert compute(kv, "e", [9, *range(1, 10)]) == []
    assert kv.pool.blocks[1].ref_count == 4


def test_another_salt_shares_nothing() -> None:
    kv = manager()
    compute(kv, "a", list(range(10)), salt="alice")
    assert compute(kv, "b", list(range(10)), salt="bob") == []
    assert compute(kv, "c", list(range(10)), salt="alice") == [1, 2]


def test_freed_blocks_are_cached_until_they_are_taken_leaves_first() -> None:
    kv = manager(blocks=5)
    compute(kv, "a", list(range(12)))
    kv.free("a")
    assert (kv.pool.num_used, kv.pool.num_cached, kv.pool.num_available) == (0, 3, 5)
    assert kv.allocate_slots("other", 12) == ((4, 5, 3),), "the tail of the old prefix goes before its start"
    request = Request("b", list(range(9)), SamplingParams(), 0, frozenset(), 1)
    assert found_ids(kv.cached_prefix(request)) == [1, 2]


def test_a_collision_of_hashes_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    def collide(self: PrefixHasher, hashes: list[bytes], token_ids: list[int], cache_salt: str) -> None:
        hashes[:] = [b"same"] * (len(token_ids) // self.block_size)

    monkeypatch.setattr(PrefixHasher, "extend", collide)
    kv = manager()
    compute(kv, "a", [1, 2, 3, 4, 5])
    assert compute(kv, "b", [6, 7, 8, 9, 5]) == []


def test_allocation_with_a_prefix_fails_without_a_trace() -> None:
    kv = manager(blocks=4)
    compute(kv, "a", list(range(12)))
    kv.free("a")
    request = Request("b", list(range(40)), SamplingParams(), 0, frozenset(), 1)
    prefix = kv.cached_prefix(request)
    assert prefix.num_blocks == 3
    assert kv.allocate_slots("b", 20, prefix=prefix) is None
    assert (kv.pool.num_cached, kv.pool.num_used) == (3, 0)
    kv.check()


def answer(engine: Engine, name: str, prompt: list[int], salt: str = "") -> tuple[list[int], int]:
    """Output tokens, and how many prompt tokens came from the cache."""
    assert engine.add_request(name, prompt, GREEDY, cache_salt=salt) is None
    rows = rows_until_done(engine)
    summary = rows[-1].summary
    assert summary is not None
    engine.scheduler.kv.check()
    return [token for row in rows for token in row.token_ids], summary.num_cached_tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hit_changes_no_text_and_a_second_turn_computes_only_what_is_new(dtype: str, tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    engine, plain = load(path, dtype=dtype).engine, load(path, dtype=dtype, enable_prefix_caching=False).engine
    prompt = [7 + index % 50 for index in range(70)]
    first, cached = answer(engine, "first", prompt)
    assert cached == 0
    assert answer(engine, "again", prompt) == (first, 64)
    assert answer(engine, "salted", prompt, salt="x") == (first, 0)
    turn = [*prompt, *first, 9, 10, 11]
    second, cached = answer(engine, "turn", turn)
    assert cached == 64, "of 79 tokens, 4 whole blocks of 16 were computed before"
    assert (second, 0) == answer(plain, "turn", turn)
    stats = engine.stats()
    assert (stats.prefix_cache_queries_total, stats.prefix_cache_hits_total) == (70 * 3 + 79, 128)
    assert stats.prompt_tokens_total == stats.prefix_cache_queries_total - stats.prefix_cache_hits_total
    assert stats.kv_blocks_cached > 0


def test_many_requests_of_one_beginning_share_its_blocks(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny")).engine
    shared = [5 + index for index in range(64)]
    complete(engine, {"warm": ([*shared, 3], GREEDY)})
    requests = {f"r{index}": ([*shared, 100 + index], GREEDY) for index in range(8)}
    for name, (prompt, sampling) in requests.items():
        assert engine.add_request(name, prompt, sampling) is None
    engine.step()
    assert engine.pool.num_used == 4 + 8, "4 shared blocks, and one of each request's own"
    rows_until_done(engine)
    assert engine.pool.num_used == 0
