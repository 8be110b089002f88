"""The scheduler with drafts, without torch: what is planned for them, and what a rejected one leaves behind."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.answer_end import cut_at_ends, num_until_end
from engine.core.block_pool import BlockPool
from engine.core.draft_room import DraftRoom
from engine.core.kv_cache_manager import KVCacheManager
from engine.core.outputs import RequestOutput
from engine.core.prefix import PrefixHasher
from engine.core.request import Request, RequestStatus
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.speculation import Draft
from engine.core.step import SchedulerOutput, StepResult


def scheduler(blocks: int = 40, budget: int = 32, rows: int = 64, seqs: int = 4, *, caching: bool = False) -> Scheduler:
    hasher = PrefixHasher("a model", 4) if caching else None
    return Scheduler(KVCacheManager(BlockPool(blocks + 1), 4, hasher), seqs, budget, max_sampled_rows=rows)


def started(
    target: Scheduler, name: str, prompt: int = 5, output: int = 20, ends: frozenset[int] = frozenset()
) -> Request:
    """A request whose prompt is computed and that has one output token, 7."""
    request = Request(name, list(range(100, 100 + prompt)), SamplingParams(), 0, ends, output)
    target.add(request)
    finish(target, target.schedule(), {name: (7,)})
    return request


def finish(
    target: Scheduler,
    plan: SchedulerOutput,
    tokens: Mapping[str, tuple[int, ...]],
    accepted: Mapping[str, int] | None = None,
) -> list[RequestOutput]:
    """A step's end: what each sampling request got, and how many of its drafts were accepted."""
    drawn = {r.request_id: tokens.get(r.request_id, (7,)) for r in plan.requests if r.samples}
    rows = target.update(plan, StepResult(drawn, 0.0, num_accepted=accepted or {}))
    target.kv.check()
    return rows


def test_a_draft_is_computed_behind_the_last_token() -> None:
    s = scheduler()
    request = started(s, "a")
    request.draft = Draft((1, 2, 3), (0.5, 0.5, 0.5), "ngram")
    (share,) = s.schedule().requests
    assert (share.token_ids, share.num_computed_tokens, share.num_drafts) == ((7, 1, 2, 3), 5, 3)
    assert (share.draft_token_ids, share.samples, share.proposer) == ((1, 2, 3), True, "ngram")


def test_rejected_drafts_are_as_if_they_had_never_been() -> None:
    s = scheduler()
    request = started(s, "a")
    request.draft = Draft((1, 2, 3))
    (row,) = finish(s, s.schedule(), {"a": (1, 9)}, {"a": 1})
    assert (row.token_ids, request.token_ids[-3:], request.num_computed_tokens) == ([1, 9], [7, 1, 9], 7)
    assert request.num_computed_tokens == request.num_tokens - 1
    counters = request.draft_counters
    assert (counters.drafts, counters.drafted, counters.accepted) == (1, 3, 1)
    assert counters.accepted_per_position == [1, 0, 0]
    request.draft = Draft()
    (share,) = s.schedule().requests
    assert (share.token_ids, share.num_computed_tokens) == ((9,), 7)


def test_an_end_within_an_accepted_run_cuts_it() -> None:
    s = scheduler()
    request = started(s, "a", ends=frozenset({2}))
    request.draft = Draft((1, 2, 3))
    (row,) = finish(s, s.schedule(), {"a": (1, 2, 3, 4)}, {"a": 3})
    assert (row.token_ids, row.finish_reason) == ([1, 2], "stop")
    assert row.summary is not None
    assert (row.summary.num_output_tokens, row.summary.drafted, row.summary.accepted) == (3, 3, 2)
    assert s.kv.pool.num_used == 0


def test_a_summary_counts_only_drafts_before_the_last_token_that_counts() -> None:
    s = scheduler()
    request = started(s, "a")
    for accepted in (3, 2):
        request.draft = Draft((1, 2, 3))
        finish(s, s.schedule(), {"a": (1, 2, 3, 4)[: accepted + 1]}, {"a": accepted})
    whole, cut, early = (request.summary(count) for count in (None, 3, 1))
    assert (whole.drafts, whole.drafted, whole.accepted, whole.accepted_per_position) == (2, 6, 5, [2, 2, 1])
    assert (cut.drafts, cut.drafted, cut.accepted, cut.num_output_tokens) == (1, 3, 2, 3)
    assert (early.drafts, early.accepted) == (0, 0)


def test_the_rows_of_a_step_bound_its_drafts() -> None:
    s = scheduler(rows=2 + 5)
    requests = [started(s, name) for name in "ab"]
    for request in requests:
        request.draft = Draft((1, 2, 3, 4))
    plan = s.schedule()
    assert [share.num_drafts for share in plan.requests] == [4, 1]
    finish(s, plan, {}, {"a": 0, "b": 0})
    assert all(request.num_computed_tokens == request.num_tokens - 1 for request in requests)


def test_the_budget_of_tokens_bounds_drafts_and_leaves_a_row_for_everybody() -> None:
    s = scheduler(budget=8)
    for request in [started(s, name) for name in "abc"]:
        request.draft = Draft((1, 2, 3, 4, 5, 6))
    assert [share.num_drafts for share in s.schedule().requests] == [5, 0, 0]


def test_nobody_is_preempted_for_a_draft() -> None:
    s = scheduler(blocks=4)
    first, second = started(s, "a"), started(s, "b")
    assert not DraftRoom(s).reserve(first, 9)
    first.draft = Draft((1, 2, 3))
    plan = s.schedule()
    assert [(share.request_id, share.num_drafts) for share in plan.requests] == [("a", 0), ("b", 0)]
    assert s.num_preemptions == 0
    assert second.status is RequestStatus.RUNNING


def test_a_draft_leaves_the_others_their_next_blocks() -> None:
    s = scheduler(blocks=6)
    first, second = started(s, "a"), started(s, "b")
    room = DraftRoom(s)
    assert room.reserve(first, 8)  # it has that
    assert room.reserve(first, 9)  # five of six are taken, and the second's next one is left
    assert room.reserve(second, 9)
    first.draft = Draft((1, 2, 3))
    for _ in range(4):  # the first grows into its block, the second into its own: nobody goes
        finish(s, s.schedule(), {}, {"a": 0})
        first.draft = Draft()
    assert s.num_preemptions == 0
    tight = scheduler(blocks=5)
    first, second = started(tight, "a"), started(tight, "b")
    assert not DraftRoom(tight).reserve(first, 9)  # it would be the second's next block
    assert DraftRoom(tight).reserve(first, 8)
    assert tight.kv.pool.num_available == 1


def test_a_draft_leaves_a_prompt_its_next_chunk() -> None:
    s = scheduler(blocks=12, budget=16)
    first = started(s, "a")
    s.add(Request("b", list(range(40)), SamplingParams(), 0, frozenset(), 4))
    finish(s, s.schedule(), {})
    assert s.kv.pool.num_available == 6  # of 40 tokens 15 are computed: its next chunk takes 4 blocks
    room = DraftRoom(s)
    assert room.reserve(first, 16)
    assert not room.reserve(first, 17)


def test_many_sequences_leave_the_rows_that_nobody_samples_to_drafts() -> None:
    s = scheduler(rows=4)
    request = started(s, "a")
    request.draft = Draft((1, 2, 3, 4, 5))
    (share,) = s.schedule().requests
    assert share.num_drafts == 3
    s.update(SchedulerOutput((share,), ()), StepResult({"a": (9,)}, 0.0, num_accepted={"a": 0}))
    s.add(Request("b", [1, 2], SamplingParams(), 0, frozenset(), 4))
    request.draft = Draft((1, 2, 3, 4, 5))
    assert [share.num_drafts for share in s.schedule().requests] == [2, 0]


def test_what_lies_behind_the_end_of_an_answer_is_no_result() -> None:
    s = scheduler()
    request = started(s, "a", ends=frozenset({2}), output=6)
    result = StepResult({"a": (1, 2, 3, 4), "b": (2, 2)}, 0.0, num_accepted={"a": 3})
    cut = cut_at_ends(s.requests, result)
    assert (cut.token_ids, cut.num_accepted) == ({"a": (1, 2), "b": (2, 2)}, {"a": 2})
    whole = StepResult({"a": (1, 3, 4)}, 0.0, num_accepted={"a": 2, "gone": 1})
    assert cut_at_ends(s.requests, whole) is whole
    assert num_until_end(request, (1, 3, 4, 5, 6, 7)) == 5  # of six it has one
    assert num_until_end(request, (2,)) == 1


def test_reserved_blocks_are_told_to_the_runner_once() -> None:
    s = scheduler()
    request = started(s, "a", 7)
    room = DraftRoom(s)
    assert room.reserve(request, 14)
    assert room.reserve(request, 17)
    request.draft = Draft((1,))
    (share,) = s.schedule().requests
    assert share.block_ids == ((3, 4, 5),)
    assert request.take_untold_blocks(((),)) == ((),)


def test_drafts_never_get_into_the_prefix_cache() -> None:
    s, clean = scheduler(caching=True), scheduler(caching=True)
    for target, draft in ((s, Draft(tuple(range(8)))), (clean, Draft())):
        request = started(target, "a", 7)
        request.draft = draft
        finish(target, target.schedule(), {"a": (9,)}, {"a": 0} if draft.token_ids else {})
    assert s.kv.pool.num_cached == clean.kv.pool.num_cached == 0
    for target in (s, clean):
        target.abort("a")
        follower = Request("b", [*range(100, 107), 7, 0, 1, 2, 3], SamplingParams(), 0, frozenset(), 4)
        target.add(follower)
        (share,) = target.schedule().requests
        assert share.num_computed_tokens == 8  # the prompt and the first token alone


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12), st.booleans())
def test_any_drafts_leave_the_tokens_of_a_plain_run(turns: list[tuple[int, int]], caching: bool) -> None:
    """Token i of the answer is i; a draft that is accepted to a point is right up to there."""
    s = scheduler(blocks=30, caching=caching)
    request = started(s, "a", output=100)
    for drafted, right in turns:
        following = list(range(request.num_output_tokens, request.num_output_tokens + drafted))
        accepted = min(right, drafted)
        wrong = [999] * (drafted - accepted)
        request.draft = Draft((*following[:accepted], *wrong))
        plan = s.schedule()
        accepted = min(accepted, plan.requests[0].num_drafts)
        got = tuple(range(request.num_output_tokens, request.num_output_tokens + accepted + 1))
        finish(s, plan, {"a": got}, {"a": accepted} if plan.requests[0].num_drafts else {})
    output = request.token_ids[request.num_prompt_tokens :]
    assert output == [7, *range(1, len(output))]
    s.abort("a")
    assert s.kv.pool.num_used == 0
