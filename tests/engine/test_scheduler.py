"""The scheduler without torch: exact plans, chunks, preemption, aborts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.block_pool import BlockPool
from engine.core.kv_cache_manager import KVCacheManager
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.step import SchedulerOutput, StepResult


def scheduler(blocks: int = 20, block_size: int = 4, seqs: int = 4, budget: int = 16) -> Scheduler:
    return Scheduler(KVCacheManager(BlockPool(blocks + 1), block_size), seqs, budget)


def request(name: str, prompt: int, output: int = 3, ends: frozenset[int] = frozenset()) -> Request:
    return Request(name, list(range(prompt)), SamplingParams(), 0, ends, output)


def shares(plan: SchedulerOutput) -> list[tuple[str, int, int, tuple[int, ...], bool]]:
    return [(r.request_id, r.num_computed_tokens, len(r.token_ids), *r.block_ids, r.samples) for r in plan.requests]


def run(target: Scheduler, plan: SchedulerOutput, token: int = 7) -> list[tuple[str, str | None]]:
    """Every sampling request gets `token`."""
    result = StepResult({r.request_id: (token,) for r in plan.requests if r.samples}, 0.0)
    rows = target.update(plan, result)
    target.kv.check()
    return [(row.request_id, row.finish_reason) for row in rows]


def test_prompts_then_decode_steps_are_one_rule() -> None:
    s = scheduler()
    s.add(request("a", 5))
    s.add(request("b", 3))
    plan = s.schedule()
    assert shares(plan) == [("a", 0, 5, (1, 2), True), ("b", 0, 3, (3,), True)]
    assert run(s, plan) == [("a", None), ("b", None)]
    plan = s.schedule()
    assert shares(plan) == [("a", 5, 1, (), True), ("b", 3, 1, (), True)]
    assert plan.requests[0].token_ids == (7,)
    run(s, plan)
    plan = s.schedule()
    assert shares(plan) == [("a", 6, 1, (), True), ("b", 4, 1, (4,), True)]
    assert run(s, plan) == [("a", "length"), ("b", "length")]
    assert s.schedule() == SchedulerOutput((), ("a", "b"))
    assert s.kv.pool.num_used == 0
    assert not s.has_work()


def test_a_long_prompt_is_cut_into_chunks_beside_running_answers() -> None:
    s = scheduler(budget=8)
    s.add(request("short", 2, output=9))
    run(s, s.schedule())
    s.add(request("long", 18))
    s.add(request("late", 2))
    plan = s.schedule()
    assert shares(plan) == [("short", 2, 1, (), True), ("long", 0, 7, (2, 3), False)]
    assert run(s, plan) == [("short", None)]
    assert shares(s.schedule())[1] == ("long", 7, 7, (4, 5), False)


def test_a_chunk_leaves_a_row_for_those_that_run_behind_it() -> None:
    s = scheduler(budget=8)
    s.add(request("long", 40))
    s.schedule()
    s.add(request("behind", 1, output=9))
    s.running.append(s.waiting.pop(0))  # as if it had been admitted while the long prompt was cut up
    plan = s.schedule()
    assert [(r.request_id, len(r.token_ids)) for r in plan.requests] == [("long", 7), ("behind", 1)]


def test_no_more_than_max_num_seqs_run() -> None:
    s = scheduler(seqs=2)
    for name in "abc":
        s.add(request(name, 1))
    assert [r.request_id for r in s.schedule().requests] == ["a", "b"]
    assert [r.request_id for r in s.waiting] == ["c"]


def test_the_youngest_is_preempted_and_recomputed_with_its_output() -> None:
    s = scheduler(blocks=4)
    s.add(request("old", 7, output=9))
    s.add(request("young", 7, output=9))
    run(s, s.schedule())
    run(s, s.schedule())
    plan = s.schedule()  # both stand at 8 tokens of 2 full blocks each: one more token needs a fifth block
    assert [r.request_id for r in plan.requests] == ["old"]
    assert plan.requests[0].block_ids == ((4,),)
    assert plan.ended == ("young",)
    assert (s.num_preemptions, s.requests["young"].num_preemptions) == (1, 1)
    assert s.requests["young"].num_computed_tokens == 0
    while "old" in s.requests:
        run(s, plan)
        plan = s.schedule()
    resumed = plan.requests[0]
    assert (resumed.request_id, resumed.first, resumed.num_computed_tokens) == ("young", True, 0)
    assert resumed.token_ids == (*range(7), 7, 7)


def test_an_end_token_ends_the_request_and_is_its_last_token() -> None:
    s = scheduler()
    s.add(request("a", 2, output=9, ends=frozenset({7})))
    plan = s.schedule()
    rows = s.update(plan, StepResult({"a": (7,)}, 0.0))
    assert (rows[0].token_ids, rows[0].finish_reason) == ([7], "stop")
    assert rows[0].summary is not None
    assert (rows[0].summary.num_prompt_tokens, rows[0].summary.num_output_tokens) == (2, 1)


def test_tokens_after_the_end_are_cut() -> None:
    s = scheduler()
    s.add(request("a", 2, output=9, ends=frozenset({7})))
    rows = s.update(s.schedule(), StepResult({"a": (4, 7, 5)}, 0.0))
    assert rows[0].token_ids == [4, 7]


def test_abort_works_in_every_state_and_twice() -> None:
    s = scheduler(seqs=1)
    s.add(request("running", 2))
    s.add(request("waiting", 2))
    plan = s.schedule()
    for name in ("waiting", "running"):
        row = s.abort(name)
        assert row is not None
        assert row.finish_reason == "abort"
        assert s.abort(name) is None
    assert s.abort("unknown") is None
    assert s.update(plan, StepResult({"running": (1,)}, 0.0)) == []
    assert s.kv.pool.num_used == 0
    assert s.schedule().ended == ("waiting", "running")


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(12, 30),
    st.sets(st.integers(0, 40)),
)
def test_every_request_ends_once_and_nothing_leaks(
    wishes: list[tuple[int, int]], blocks: int, abort_at: set[int]
) -> None:
    """Any mix of prompts and lengths in a pool that holds at least the largest of them (42 tokens, 11 blocks)."""
    s = scheduler(blocks=blocks, seqs=5, budget=9)
    for index, (prompt, output) in enumerate(wishes):
        s.add(request(str(index), prompt, output))
    ended: list[str] = []
    for step in range(3000):
        if not s.has_work():
            break
        if step in abort_at:
            victim = next(iter(s.requests))
            row = s.abort(victim)
            assert row is not None
            ended.append(victim)
            continue
        plan = s.schedule()
        assert plan.num_tokens <= 9
        ended.extend(name for name, reason in run(s, plan) if reason is not None)
    assert sorted(ended) == sorted(str(index) for index in range(len(wishes)))
    assert s.kv.pool.num_used == 0
