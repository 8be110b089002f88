"""What an engine tells of its blocks, laid together by the app, is the truth of its pool; and it costs little."""

from __future__ import annotations

import random
import time

import pytest

from app.block_state import AHEAD, FILL_MASK, FILL_SHIFT, GROUP_MASK, GROUP_SHIFT, HELD, BlockState, OwnerNumbers
from engine.core.block_map import BlockWatch
from engine.core.block_pool import BlockPool
from engine.core.draft_room import DraftRoom
from engine.core.kv_cache_manager import KVCacheManager
from engine.core.kv_groups import KVGroup
from engine.core.prefix import PrefixHasher
from engine.core.request import Request, RequestStatus
from engine.core.room import room_for
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.speculation import Draft
from engine.core.step import StepResult
from engine.protocol import BlockMap, decode_from_engine, encode

SIZE = 4
ONE = (KVGroup((0,)),)
MIXED = (KVGroup((0,)), KVGroup((1,), 6), KVGroup((2,), 9))


def scheduler(blocks: int, groups: tuple[KVGroup, ...] = ONE, seqs: int = 5, budget: int = 24) -> Scheduler:
    kv = KVCacheManager(BlockPool(blocks + 1), SIZE, PrefixHasher("m", SIZE), groups)
    return Scheduler(kv, seqs, budget, max_sampled_rows=64)


def request(name: str, tokens: list[int], output: int) -> Request:
    return Request(name, tokens, SamplingParams(), 0, frozenset(), output)


class Life:
    """Requests with common beginnings come, draft, are preempted, end."""

    def __init__(self, target: Scheduler, seed: int) -> None:
        self.scheduler = target
        self.random = random.Random(seed)
        self.count = 0

    def turn(self) -> None:
        s, chance = self.scheduler, self.random
        if chance.random() < 0.3 and len(s.requests) < 8:
            self.count += 1
            beginning = list(range(chance.choice([0, 8, 16, 21])))
            tokens = beginning + [chance.randrange(50) for _ in range(chance.randrange(1, 12))]
            s.add(request(f"r{self.count}", tokens, chance.randrange(1, 40)))
        if chance.random() < 0.05 and s.requests:
            s.abort(chance.choice(list(s.requests)))
        for one in s.decoding():
            wanted = chance.randrange(6)
            drafted = wanted > 0 and DraftRoom(s).reserve(one, one.num_tokens + wanted)
            one.draft = Draft(tuple(chance.randrange(50) for _ in range(wanted))) if drafted else Draft()
        plan = s.schedule()
        accepted = {share.request_id: chance.randrange(share.num_drafts + 1) for share in plan.requests}
        drawn = {
            share.request_id: (*share.draft_token_ids[: accepted[share.request_id]], chance.randrange(50))
            for share in plan.requests
            if share.samples
        }
        s.update(plan, StepResult(drawn, 0.0, num_accepted=accepted))
        s.kv.check()


def plain_step(s: Scheduler) -> None:
    plan = s.schedule()
    s.update(plan, StepResult({share.request_id: (7,) for share in plan.requests if share.samples}, 0.0))


def over_the_pipe(watch: BlockWatch) -> BlockMap:
    message = decode_from_engine(encode(BlockMap(watch.frame())))
    assert isinstance(message, BlockMap)
    return message


def check_truth(s: Scheduler, state: BlockState) -> None:
    """Every cell against the pool's block and the requests' tables."""
    cells, pool, kv = state.cells(), s.kv.pool, s.kv
    frame = state.known
    assert (frame.num_used, frame.num_cached) == (pool.num_used, pool.num_cached)
    held_by: dict[int, list[tuple[str, int, int]]] = {}
    for name, tables in kv.tables().items():
        for group, table in enumerate(tables):
            for place, block in enumerate(table):
                if block is not pool.null_block:
                    held_by.setdefault(block.block_id, []).append((name, group, place))
    for block in pool.blocks[1:]:
        code, detail = int(cells.codes[block.block_id]), state.detail(block.block_id)
        expected = 2 if block.ref_count else 1 if block.block_hash is not None else 0
        assert code & 3 == expected
        assert int(cells.refs[block.block_id]) == block.ref_count == detail["refs"]
        assert detail["hash"] == (None if block.block_hash is None else block.block_hash[:4].hex())
        assert (detail["hits"] is None) == (block.block_hash is None)
        owners = held_by.get(block.block_id, [])
        assert sorted((o["request_id"], o["place"]) for o in detail["owners"]) == sorted((n, p) for n, _, p in owners)
        if block.block_hash is not None and not owners:
            assert code >> GROUP_SHIFT & GROUP_MASK == block.block_hash[-1]
        if not owners:
            continue
        name, group, place = owners[0]
        assert code >> GROUP_SHIFT & GROUP_MASK == group
        computed = min(s.requests[name].num_computed_tokens, s.requests[name].num_tokens)
        tokens = max(0, min(SIZE, computed - place * SIZE))
        assert detail["tokens"] == tokens
        assert bool(code & AHEAD) == (tokens == 0)
        assert code >> FILL_SHIFT & FILL_MASK == (tokens if 0 < tokens < SIZE else 0)
    assert sum(int(code) & 3 == HELD for code in cells.codes) == pool.num_used


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("groups", [ONE, MIXED])
def test_the_map_is_the_truth_through_a_random_life(groups: tuple[KVGroup, ...], seed: int) -> None:
    s = scheduler(26 if groups is ONE else 40, groups)
    life, watch, state = Life(s, seed), BlockWatch(s), BlockState(OwnerNumbers())
    seen = {"preempted": False, "shared": False, "ahead": False, "cached": False}
    for turn in range(250):
        life.turn()
        if turn % 3 == 0:
            message = over_the_pipe(watch)
            state.apply(message.frame)
            check_truth(s, state)
            codes = state.cells()
            seen["shared"] |= bool((codes.refs > 1).any())
            seen["ahead"] |= bool((codes.codes & AHEAD).any())
            seen["cached"] |= message.frame.num_cached > 0
            seen["preempted"] |= message.frame.preemptions_total > 0
    assert all(seen.values()), seen
    whole = BlockState(OwnerNumbers())
    whole.apply(state.whole())
    assert (whole.cells().codes == state.cells().codes).all()


def test_hits_and_evictions_are_counted() -> None:
    s = scheduler(8)
    s.add(request("a", list(range(9)), 1))
    plain_step(s)
    s.add(request("b", list(range(9)), 1))
    plain_step(s)
    state = BlockState(OwnerNumbers())
    state.apply(BlockWatch(s).frame())
    assert [state.detail(block)["hits"] for block in (1, 2)] == [1, 1]
    assert state.known.evictions_total == 0
    s.add(request("c", list(range(100, 130)), 1))
    plain_step(s)
    plain_step(s)
    frame = BlockWatch(s).frame()
    assert frame.evictions_total == 2
    assert frame.prefix_hits_total == 8


def test_nothing_is_told_unless_somebody_watches_and_then_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = BlockWatch(scheduler(10))
    assert watch.due() is None
    watch.renew(2.0)
    numbers = []
    for _ in range(30):
        frame = watch.due()
        numbers.append(frame.number if frame is not None else 0)
        now += 0.1
    assert [n for n in numbers if n] == [1, 2, 3, 4]
    assert numbers[0] == 1
    watch.renew(2.0)
    assert (first := watch.due()) is not None
    assert first.number == 1, "after a pause everything is told"
    assert len(first.spans[0].names) == 11 * 6


def test_room_is_the_admissions_own_answer() -> None:
    s = scheduler(12)
    s.add(request("a", list(range(17)), 10))
    plain_step(s)
    known, fresh = list(range(17)), list(range(500, 517))
    room = room_for(s, known, 17, 20, "")
    assert (room.num_cached_tokens, room.blocks_shared, room.blocks_for_prompt, room.blocks_in_all) == (16, 4, 5, 5)
    assert room_for(s, fresh, 17, 20, "").blocks_shared == 0
    assert room_for(s, known, 17, 20, "another salt").num_cached_tokens == 0
    assert room_for(s, None, 17, 20, "").num_cached_tokens is None
    assert (room.blocks_available, room.blocks_total, room.num_running) == (7, 12, 1)
    hits = [s.kv.pool.ledger.hits[block] for block in range(13)]
    assert hits == [0] * 13, "a question is no hit"
    s.kv.check()


def test_forty_thousand_blocks_cost_little() -> None:
    """CPU time, since other work may stop this process; the least of several, since it may evict our caches."""
    blocks, seqs = 40_000, 64
    kv = KVCacheManager(BlockPool(blocks + 1), 16, PrefixHasher("m", 16))
    s = Scheduler(kv, seqs, 10**7)
    for index in range(seqs):
        prompt = [(index * 7 + at) % 1000 for at in range(blocks * 16 // seqs - 900)]
        s.add(request(f"r{index}", prompt, 900))
    plain_step(s)
    assert all(one.status is RequestStatus.RUNNING for one in s.requests.values())
    watch = BlockWatch(s)
    costs: list[float] = []
    for _ in range(12):
        plain_step(s)
        began = time.process_time()
        encode(BlockMap(watch.frame()))
        costs.append((time.process_time() - began) * 1000)
    later = sorted(costs[1:])[5]
    print(f"{kv.pool.num_used} of {blocks} blocks used; whole frame {costs[0]:.2f} ms, later {later:.2f} ms")
    assert later < 2.0
    assert costs[0] < 20.0
