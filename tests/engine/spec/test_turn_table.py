"""What the table of turns says, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.spec.turn_table import BLOCK, BLOCKS, FIRST_PLAIN_EVERY, PLAIN_EVERY, MeasuredTurn, TurnTable

PLAIN = MeasuredTurn(t_s=100.0, num_requests=1, context=30, step_s=0.010)
DRAFTING = replace(PLAIN, t_s=200.0, step_s=0.012, draft_s=0.001, drafted=4, accepted=1, drafts_allowed=True)


def table_of(*turns: MeasuredTurn) -> TurnTable:
    table = TurnTable()
    for size in {(turn.num_requests, turn.drafted): turn for turn in turns}.values():
        table.observe(replace(size, step_s=9.0))  # the first of its size: left out
    for turn in turns:
        table.observe(turn)
    return table


def test_means_are_of_whole_blocks_and_variances_between_them() -> None:
    lucky = replace(DRAFTING, accepted=3, step_s=0.014)
    turns = [PLAIN] * 9 + [DRAFTING] * BLOCK + [lucky] * BLOCK + [lucky] * (BLOCK - 1)
    (bucket,) = table_of(*turns).report()
    assert (bucket.requests_from, bucket.requests_to, bucket.context_from, bucket.context_to) == (1, 1, 0, 512)
    assert (bucket.plain_steps, bucket.plain_blocks, bucket.plain_t_s) == (8, 2, 100.0)
    assert (bucket.plain_s, bucket.plain_variance) == (pytest.approx(0.010), pytest.approx(0.0))
    assert (bucket.steps, bucket.blocks, bucket.t_s) == (2 * BLOCK, 2, 200.0)
    assert (bucket.accepted, bucket.drafted) == (pytest.approx(2.0), pytest.approx(4.0))
    assert (bucket.step_s, bucket.draft_s) == (pytest.approx(0.013), pytest.approx(0.001))
    assert bucket.accepted_variance == pytest.approx(2.0)
    assert bucket.time_variance == pytest.approx(0.002**2 / 2)
    assert bucket.covariance == pytest.approx(2.0 * 0.002 / 2)
    (by_four,) = bucket.by_drafts
    assert (by_four.num_drafts, by_four.steps) == (4, 3 * BLOCK - 1)


def test_turns_go_to_the_bucket_of_their_size_and_context() -> None:
    sizes = [(1, 511), (1, 512), (2, 0), (3, 0), (4, 9000), (5, 0), (256, 40000)]
    turns = [replace(PLAIN, num_requests=count, context=context) for count, context in sizes]
    found = [(b.requests_from, b.requests_to, b.context_from, b.context_to) for b in table_of(*turns).report()]
    assert found == [
        (1, 1, 0, 512),
        (1, 1, 512, 2048),
        (2, 2, 0, 512),
        (3, 4, 0, 512),
        (3, 4, 8192, 32768),
        (5, 8, 0, 512),
        (129, 256, 32768, 0),
    ]


def test_forced_turns_and_those_without_leave_to_draft_are_no_evidence_of_what_pays() -> None:
    turns = [replace(DRAFTING, forced=True)] * 2 * BLOCK + [PLAIN] * 2 * BLOCK
    (bucket,) = table_of(*turns).report()
    assert (bucket.steps, bucket.by_drafts, bucket.plain_steps) == (0, [], 2 * BLOCK)


def test_the_oldest_block_is_forgotten_and_a_change_forgets_all_but_plain_steps() -> None:
    table = table_of(*[replace(DRAFTING, accepted=4)] * BLOCK, *[DRAFTING] * BLOCK * BLOCKS, *[PLAIN] * 4)
    (bucket,) = table.report()
    assert (bucket.steps, bucket.accepted) == (BLOCK * BLOCKS, pytest.approx(1.0))
    table.clear()
    (bucket,) = table.report()
    assert (bucket.steps, bucket.by_drafts, bucket.plain_steps) == (0, [], 4)


def test_a_plain_step_is_due_where_none_came_by_itself_and_only_once() -> None:
    table = table_of(*[DRAFTING] * (FIRST_PLAIN_EVERY - 1))
    assert not table.claim_plain(1, 30)
    table.observe(DRAFTING)
    assert not table.claim_plain(2, 30), "another size has a baseline of its own"
    assert table.claim_plain(1, 30)
    assert not table.claim_plain(1, 30)
    table = table_of(*[PLAIN] * 12, *[DRAFTING] * (PLAIN_EVERY - 1))
    assert not table.claim_plain(1, 30)
    table.observe(DRAFTING)
    assert table.claim_plain(1, 30)


def test_it_is_taken_now_and_then_and_only_where_it_changed() -> None:
    table = table_of(PLAIN)
    assert table.take(10.0)
    table.observe(PLAIN)
    assert table.take(11.0) is None
    assert table.take(12.5)
    assert table.take(20.0) is None
