"""Block tables of several KV groups without torch: what windows free, what prefixes they serve, and that all is kept.

The groups here are one of full attention and two with windows of 6 and 9 tokens, over blocks of 4.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.block_pool import BlockPool
from engine.core.kv_cache_manager import CachedPrefix, KVCacheManager
from engine.core.kv_groups import KVGroup, most_blocks
from engine.core.prefix import PrefixHasher
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import MAX_PREEMPTIONS, Scheduler
from engine.core.step import SchedulerOutput, StepResult

SIZE = 4
FULL, SHORT, LONG = KVGroup((0,)), KVGroup((1,), 6), KVGroup((2,), 9)
MIXED = (FULL, SHORT, LONG)


def manager(blocks: int = 60, groups: tuple[KVGroup, ...] = MIXED, *, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(BlockPool(blocks + 1), SIZE, PrefixHasher("m", SIZE) if caching else None, groups)


def request(name: str, tokens: list[int], output: int = 1) -> Request:
    return Request(name, tokens, SamplingParams(), 0, frozenset(), output)


def compute(kv: KVCacheManager, one: Request, end: int | None = None, prefix: CachedPrefix | None = None) -> None:
    """Computes a request's tokens up to `end` in one step."""
    end = one.num_tokens if end is None else end
    assert kv.allocate_slots(one.request_id, end, prefix=prefix) is not None
    one.num_computed_tokens = end
    kv.commit(one)
    kv.check()


def admit(kv: KVCacheManager, one: Request) -> int:
    """Computes a request to its end behind the longest cached prefix; the blocks of that."""
    prefix = kv.cached_prefix(one)
    one.num_computed_tokens = prefix.num_blocks * SIZE
    one.num_published_blocks = prefix.num_blocks
    compute(kv, one, prefix=prefix)
    return prefix.num_blocks


def held(kv: KVCacheManager, name: str) -> list[list[int]]:
    """The numbers of the blocks that each table holds: those that are not the null block."""
    return [[number for number, block_id in enumerate(table) if block_id] for table in kv.block_ids(name)]


def evict(kv: KVCacheManager, name: str, group: int, number: int) -> None:
    """Takes one block's contents away, as when it is handed out anew and given back."""
    block = kv.pool.blocks[kv.block_ids(name)[group][number]]
    kv.pool._forget(block)


def test_passed_blocks_are_freed_exactly() -> None:
    kv, one = manager(), request("a", list(range(40)))
    assert kv.allocate_slots("a", 5) == ((1, 2), (3, 4), (5, 6))
    firsts = {5: (0, 0), 8: (0, 0), 9: (1, 0), 11: (1, 0), 12: (1, 1), 13: (2, 1), 28: (5, 5)}
    for end, (first_short, first_long) in firsts.items():
        compute(kv, one, end)
        last = -(-end // SIZE)
        assert held(kv, "a") == [list(range(last)), list(range(first_short, last)), list(range(first_long, last))], end
    assert kv.pool.num_used == 7 + 2 + 2
    assert all(len(table) == 7 for table in kv.block_ids("a"))
    kv.free("a")
    assert kv.pool.num_used == 0
    kv.check()


def test_all_layers_of_one_window_keep_only_that() -> None:
    kv, one = manager(blocks=4, groups=(KVGroup((0,), 6),)), request("a", list(range(500)))
    for end in range(1, 500):
        compute(kv, one, end)
    assert kv.pool.num_used <= 3


def test_tokens_that_are_not_decided_free_and_publish_nothing() -> None:
    """Drafts raise num_computed_tokens and may be taken back: only the tokens that are there for good count."""
    kv, one = manager(), request("a", list(range(9)))
    compute(kv, one)
    assert kv.allocate_slots("a", 9 + 12) is not None
    before, cached = held(kv, "a"), kv.pool.num_cached
    one.num_computed_tokens = 9 + 12
    kv.commit(one)
    assert (held(kv, "a"), kv.pool.num_cached, one.num_published_blocks) == (before, cached, 2)
    one.num_computed_tokens = 9
    one.token_ids.extend([7, 8, 9])
    compute(kv, one)
    assert [blocks[0] for blocks in held(kv, "a")] == [0, 1, 1]
    kv.check()


def test_a_failure_changes_nothing() -> None:
    kv, one = manager(blocks=20), request("a", list(range(60)))
    compute(kv, one, 16)
    before = kv.block_ids("a"), kv.pool.num_available, kv.pool._free.ids()
    assert kv.allocate_slots("a", 56) is None
    assert kv.allocate_slots("b", 40) is None
    assert (kv.block_ids("a"), kv.pool.num_available, kv.pool._free.ids()) == before
    assert kv.block_ids("b") == ((), (), ())
    kv.check()


def test_a_prefix_needs_only_the_last_window_of_each_group() -> None:
    kv, one = manager(), request("a", list(range(30)))
    compute(kv, one)
    again = request("b", [*range(28), 99])
    prefix = kv.cached_prefix(again)
    assert prefix.num_blocks == 7
    assert [[block.block_id != 0 for block in table] for table in prefix.tables] == [
        [True] * 7,
        [False] * 5 + [True] * 2,
        [False] * 5 + [True] * 2,
    ]
    used = kv.pool.num_used
    assert admit(kv, again) == 7
    assert kv.pool.num_used == used + 3, "one block of its own in each group"


def test_blocks_that_left_the_window_serve_shorter_prefixes_until_they_are_taken() -> None:
    kv, one = manager(), request("a", list(range(28)))
    compute(kv, one)
    assert admit(kv, request("b", [*range(14), 99, 99])) == 3
    kv.free("b")
    assert kv.allocate_slots("other", 4 * (kv.pool.num_available // 3)) is not None
    assert kv.pool.num_cached <= 2
    assert kv.cached_prefix(request("c", [*range(14), 99, 99])).num_blocks == 0, "the full group alone is no hit"
    assert kv.cached_prefix(request("c", [*range(28), 99])).num_blocks == 7, "the running request keeps its window"


def test_the_longest_prefix_that_all_groups_can_serve() -> None:
    def hit(*evicted: tuple[int, int]) -> int:
        kv = manager()
        for group, number in evicted:
            warm = request("a", list(range(30)))
            kv.free("a")
            kv.allocate_slots("a", 30)
            warm.num_computed_tokens = 30
            tables = kv.block_ids("a")
            kv.commit(warm)
            kv.pool._forget(kv.pool.blocks[tables[group][number]])
        return kv.cached_prefix(request("b", list(range(29)))).num_blocks

    assert hit((0, 6)) == 6
    assert hit((0, 0)) == 0
    assert hit((1, 6)) == 6
    assert hit((2, 5)) == 5
    assert hit((1, 0)) == 7, "no window reaches back so far"
    assert hit((1, 4)) == 7
    assert hit((2, 4)) == 7


def test_groups_of_one_kind_do_not_take_each_others_blocks() -> None:
    kv, one = manager(groups=(KVGroup((0,)), KVGroup((1,)))), request("a", list(range(9)))
    compute(kv, one)
    prefix = kv.cached_prefix(request("b", list(range(9))))
    assert [[block.block_id for block in table] for table in prefix.tables] == [
        list(table[:2]) for table in kv.block_ids("a")
    ]
    evict(kv, "a", 1, 0)
    assert kv.cached_prefix(request("b", list(range(9)))).num_blocks == 0


def test_the_tails_of_all_groups_are_taken_first() -> None:
    kv, one = manager(blocks=16, groups=(KVGroup((0,)), KVGroup((1,), 100))), request("a", list(range(32)))
    compute(kv, one)
    kv.free("a")
    assert kv.allocate_slots("other", 12) is not None
    assert kv.cached_prefix(request("b", list(range(33)))).num_blocks == 5


def oracle_hit(kv: KVCacheManager, one: Request) -> int:
    """The longest prefix by trying each, the longest first."""
    for num_blocks in range((one.num_tokens - 1) // SIZE, 0, -1):
        needed = (
            (index, number)
            for index, group in enumerate(kv.groups)
            for number in range(group.blocks_passed(num_blocks * SIZE, SIZE), num_blocks)
        )
        if all(kv._find(one, index, number) is not None for index, number in needed):
            return num_blocks
    return 0


steps = st.tuples(st.sampled_from("abcdef"), st.sampled_from(["go", "go", "go", "draft", "drop"]), st.integers(1, 30))


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=80), st.integers(6, 40), st.booleans())
def test_any_sequence_of_operations_keeps_every_block(
    operations: list[tuple[str, str, int]], blocks: int, caching: bool
) -> None:
    """Names share beginnings of two kinds, so that blocks are shared, freed, evicted and found again."""
    kv, live = manager(blocks, caching=caching), dict[str, Request]()
    for name, operation, count in operations:
        one = live.get(name)
        before = kv.block_ids(name), kv.pool._free.ids()
        if operation == "drop":
            kv.free(name)
            live.pop(name, None)
        elif one is None:
            one = request(name, [ord(name) % 2] * (2 * count))
            prefix = kv.cached_prefix(one)
            assert prefix.num_blocks == (oracle_hit(kv, one) if caching else 0)
            if kv.allocate_slots(name, max(count, prefix.num_blocks * SIZE), prefix=prefix) is None:
                assert (kv.block_ids(name), kv.pool._free.ids()) == before
            else:
                live[name] = one
                one.num_published_blocks = prefix.num_blocks
                one.num_computed_tokens = max(count, prefix.num_blocks * SIZE)
                kv.commit(one)
        else:
            drafts = count if operation == "draft" else 0
            end = max(one.num_computed_tokens + count, one.num_tokens if drafts else 0)  # drafts follow all tokens
            if kv.allocate_slots(name, end + drafts) is None:
                assert (kv.block_ids(name), kv.pool._free.ids()) == before
            else:
                one.token_ids.extend([ord(name) % 2] * (end - one.num_tokens))
                one.num_computed_tokens = end + drafts
                kv.commit(one)
                one.num_computed_tokens = end
        kv.check()
        for other in live.values():
            computed = other.num_computed_tokens
            needed = [set(range(group.blocks_passed(computed, SIZE), kv.blocks_for(computed))) for group in MIXED]
            kept = [set(numbers) for numbers in held(kv, other.request_id)]
            assert all(want <= have for want, have in zip(needed, kept, strict=True)), "what queries see is there"
    for name in live:
        kv.free(name)
    assert kv.pool.num_used == 0
    kv.check()


def scheduler(blocks: int, seqs: int = 4, budget: int = 16, *, caching: bool = False) -> Scheduler:
    return Scheduler(manager(blocks, caching=caching), seqs, budget)


def run(target: Scheduler, plan: SchedulerOutput) -> list[tuple[str, str | None]]:
    rows = target.update(plan, StepResult({r.request_id: (7,) for r in plan.requests if r.samples}, 0.0))
    target.kv.check()
    return [(row.request_id, row.finish_reason) for row in rows]


def drain(target: Scheduler) -> list[str]:
    """Runs until nothing is left; the order in which requests ended."""
    ended: list[str] = []
    for _ in range(3000):
        if not target.has_work():
            break
        ended.extend(name for name, reason in run(target, target.schedule()) if reason is not None)
    return ended


def test_plans_name_the_blocks_of_each_group() -> None:
    s = scheduler(60, caching=True)
    s.add(request("a", list(range(14)), output=9))
    plan = s.schedule()
    assert plan.requests[0].block_ids == ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12))
    run(s, plan)
    assert s.schedule().requests[0].block_ids == ((), (), ())
    s.add(request("b", list(range(14)), output=9))
    (_, share) = s.schedule().requests
    assert (share.first, share.num_computed_tokens) == (True, 12)
    assert share.block_ids == ((1, 2, 3, 13), (0, 6, 7, 14), (0, 10, 11, 15))


def test_a_long_text_runs_in_the_least_pool_that_holds_it() -> None:
    """100 tokens are 25 blocks: without freeing 75, with it the 25 of full attention and a few more."""
    least = most_blocks(MIXED, 100, 16, SIZE)
    assert least == 25 + 7 + 7
    s = scheduler(least)
    s.add(request("a", list(range(60)), output=40))
    assert drain(s) == ["a"]
    assert (s.num_preemptions, s.kv.pool.num_used) == (0, 0)


def test_the_preempted_one_resumes_behind_what_is_left_of_its_blocks() -> None:
    s = scheduler(30, budget=64, caching=True)
    s.add(request("old", list(range(20)), output=30))
    s.add(request("young", list(range(100, 120)), output=30))
    plan = s.schedule()
    while "young" not in plan.ended:
        run(s, plan)
        plan = s.schedule()
    run(s, plan)
    while "old" in s.requests:
        run(s, s.schedule())
    plan = s.schedule()
    (resumed,) = plan.requests
    assert (resumed.request_id, resumed.first) == ("young", True)
    tables = resumed.block_ids
    assert len({len(table) for table in tables}) == 1
    for group, table in zip(MIXED, tables, strict=True):
        passed = group.blocks_passed(resumed.num_computed_tokens, SIZE)
        assert [block_id == 0 for block_id in table] == [number < passed for number in range(len(table))]
    run(s, plan)
    assert drain(s) == ["young"]
    assert s.kv.pool.num_used == 0


def test_one_preempted_often_waits_for_what_it_may_come_to_hold_not_for_its_whole_text() -> None:
    s = scheduler(60)
    s.add(request("runs", list(range(4)), output=200))
    run(s, s.schedule())
    often = request("often", list(range(8)), output=92)
    often.num_preemptions = MAX_PREEMPTIONS
    s.add(often)
    free = s.kv.pool.num_available - s.watermark
    assert most_blocks(MIXED, 100, 16, SIZE) == 39 <= free < 75
    assert [share.request_id for share in s.schedule().requests] == ["runs", "often"]
    crowded = scheduler(41)
    crowded.add(request("runs", list(range(4)), output=200))
    run(crowded, crowded.schedule())
    crowded.add(often)
    often.num_computed_tokens = 0
    assert [share.request_id for share in crowded.schedule().requests] == ["runs"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(0, 20),
    st.sets(st.integers(0, 40)),
    st.booleans(),
)
def test_every_request_ends_once_and_nothing_leaks(
    wishes: list[tuple[int, int]], more: int, abort_at: set[int], caching: bool
) -> None:
    """Any mix of prompts and lengths in a pool that holds at least the largest of them (42 tokens)."""
    s = scheduler(most_blocks(MIXED, 42, 9, SIZE) + more, seqs=5, budget=9, caching=caching)
    for index, (prompt, output) in enumerate(wishes):
        s.add(request(str(index), list(range(prompt)), output))
    ended: list[str] = []
    for step in range(3000):
        if not s.has_work():
            break
        if step in abort_at:
            victim = next(iter(s.requests))
            assert s.abort(victim) is not None
            ended.append(victim)
            continue
        plan = s.schedule()
        first = s.running[0].request_id if s.running else None
        assert first is None or first in {share.request_id for share in plan.requests}, "the first always progresses"
        ended.extend(name for name, reason in run(s, plan) if reason is not None)
    assert sorted(ended) == sorted(str(index) for index in range(len(wishes)))
    assert s.kv.pool.num_used == 0
