"""Suffix decoding: own text and past answers, by vote; budgets, salts, and what is left of requests that end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.core.outputs import RequestOutput
from engine.core.request import FinishReason
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import DEFAULT_SPECULATION, Draft, SpeculationParams
from engine.engine import Engine
from engine.spec.base import DraftWish
from engine.spec.past_outputs import PastOutputs
from engine.spec.suffix import SuffixProposer
from tests.engine.spec.stand_ins import AlwaysAll, speculate
from tests.engine.spec.texts import draft_of, propose, request_of
from tests.engine.stepping import load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

ANSWER = list(range(100, 140))


def finish(
    proposer: SuffixProposer,
    output: list[int],
    name: str = "past",
    salt: str = "",
    wish: SpeculationParams = DEFAULT_SPECULATION,
) -> None:
    """A request that was seen once and ended with this answer."""
    request = request_of([9, 9, 9, 8], output[:1], name, salt)
    request.speculation = wish
    propose(proposer, request)
    request.token_ids.extend(output[1:])
    proposer.end(request)


def test_an_answer_of_which_nobody_shall_learn_is_not_kept() -> None:
    proposer = SuffixProposer()
    finish(proposer, ANSWER, wish=SpeculationParams(learn=False))
    request = request_of([1, 2, 3], ANSWER[:6])
    assert draft_of(proposer, request, 8).token_ids == ()


def test_places_vote_and_the_most_recent_wins_a_tie() -> None:
    proposer = SuffixProposer()
    request = request_of([7, 1, 30, 7, 2, 31, 7, 1, 32, 7])
    assert draft_of(proposer, request, 1).token_ids == (1,)
    request.token_ids.extend([2, 33, 7])
    assert draft_of(proposer, request, 1).token_ids == (2,), "two each"


def test_drafts_grow_with_the_match() -> None:
    sizes = []
    for length in (1, 2, 4, 12):
        request = request_of([*range(50, 50 + length), *range(200, 220), 30, *range(50, 50 + length)], name=str(length))
        draft = draft_of(SuffixProposer(), request, 15)
        assert draft.token_ids == tuple(range(200, 200 + len(draft.token_ids)))
        sizes.append(len(draft.token_ids))
    assert sizes == sorted(sizes)
    assert 0 < sizes[0] < sizes[1] == sizes[-1] == 15


def test_past_answers_serve_where_they_expect_more_than_the_own_text() -> None:
    proposer = SuffixProposer()
    finish(proposer, ANSWER)
    request = request_of([1, 2, 3], ANSWER[:6])
    assert draft_of(proposer, request, 8).token_ids == tuple(ANSWER[6:14])
    copying = request_of([*ANSWER[2:6], 55, 56, 57], ANSWER[2:6], name="copying")
    assert draft_of(proposer, copying, 3).token_ids == (55, 56, 57), "an equal match in the own text is surer"
    end = request_of([1, 2, 3], ANSWER[-3:], name="end")
    assert draft_of(proposer, end).token_ids == (), "an answer ends where it ended"
    single = request_of([1, 2, 3], ANSWER[:1], name="single")
    assert draft_of(proposer, single).token_ids == (), "one token of another text is no evidence"


def test_agreement_of_past_answers_is_no_evidence_against_the_own_text() -> None:
    proposer = SuffixProposer()
    for number in range(3):
        finish(proposer, [number, 100, 101, 102, number], name=str(number))
    assert draft_of(proposer, request_of([1], [100, 101], "other"), 1).token_ids == (102,)
    assert draft_of(proposer, request_of([7, 100, 101, 55, 8], [100, 101]), 1).token_ids == (55,)


def test_prompts_are_never_kept() -> None:
    proposer = SuffixProposer()
    request = request_of([60, 61, 62, 63, 64], [1, 2, 3])
    propose(proposer, request)
    proposer.end(request)
    for last in ([60, 61], [61, 62, 63], [64, 1]):
        assert draft_of(proposer, request_of(last, name=str(last))).token_ids == ()
    assert draft_of(proposer, request_of([1, 2], name="answer"), 1).token_ids == (3,)


def test_requests_of_another_salt_see_nothing() -> None:
    proposer = SuffixProposer()
    finish(proposer, ANSWER, salt="alice")
    for name, salt, seen in (("b", "bob", ()), ("n", "", ()), ("a", "alice", (ANSWER[4],))):
        assert draft_of(proposer, request_of([1], ANSWER[:4], name, salt), 1).token_ids == seen


def test_clear_empties_the_store_and_not_the_running_requests() -> None:
    proposer = SuffixProposer()
    finish(proposer, ANSWER)
    running = request_of([1, 2, 3, 4, 1, 2, 3], name="running")
    propose(proposer, running)
    proposer.clear()
    assert (len(proposer._past), proposer._past.num_tokens) == (0, 0)
    assert draft_of(proposer, request_of([1], ANSWER[:4], "later")).token_ids == ()
    assert draft_of(proposer, running, 1).token_ids == (4,)


def test_the_oldest_answers_go_first_over_all_salts() -> None:
    proposer = SuffixProposer(max_tokens=100)
    finish(proposer, ANSWER, salt="a")
    finish(proposer, [token + 100 for token in ANSWER], salt="b")
    finish(proposer, [token + 200 for token in ANSWER], salt="a")
    past = proposer._past
    assert (len(past), past.num_tokens) == (2, 80)
    assert draft_of(proposer, request_of([1], ANSWER[:4], "1", "a")).token_ids == ()
    assert draft_of(proposer, request_of([1], [200, 201, 202], "2", "b"), 1).token_ids == (203,)
    assert draft_of(proposer, request_of([1], [300, 301, 302], "3", "a"), 1).token_ids == (303,)
    finish(proposer, list(range(1000, 1090)), salt="c")
    assert [past.of(salt) is None for salt in "abc"] == [True, True, False], "a salt goes with its last answer"
    finish(proposer, list(range(2000, 2300)), salt="c")
    assert past.num_tokens == 100
    assert draft_of(proposer, request_of([1], [2198, 2199], "4", "c")).token_ids == (), "its last 100 tokens stay"
    assert draft_of(proposer, request_of([1], [2210, 2211], "5", "c"), 1).token_ids == (2212,)


def test_a_store_of_any_size_keeps_to_its_budget() -> None:
    draw = random.Random(1)
    for budget in (0, 1, 7, 60):
        past = PastOutputs((2, 4, 8), budget)
        kept: list[int] = []
        for _ in range(200):
            output = [draw.randrange(3) for _ in range(draw.randrange(0, 20))]
            past.add(draw.choice("ab"), output)
            length = min(len(output), budget)
            if length > 2:
                kept.append(length)
                while sum(kept) > budget:
                    kept.pop(0)
            assert (past.num_tokens, len(past)) == (sum(kept), len(kept))
            indexes = [index for salt in "ab" if (index := past.of(salt)) is not None]
            assert sum(len(index.tokens) for index in indexes) == sum(kept) + len(kept)
            assert all(len(links) == len(index.tokens) for index in indexes for links in index._links)
            assert all(len(heads) <= len(index.tokens) for index in indexes for heads in index._heads)
    with pytest.raises(ValueError, match="max_tokens=-1"):
        SuffixProposer(max_tokens=-1)


def test_a_request_that_was_never_seen_leaves_nothing() -> None:
    proposer = SuffixProposer()
    proposer.end(request_of([1, 2], ANSWER))
    assert (len(proposer._past), len(proposer._own)) == (0, 0)


class Watched(SuffixProposer):
    """Notes what the requests that it was asked about had said when they ended."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()
        self.kept: list[tuple[int, ...]] = []

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        self.asked |= {wish.request.request_id for wish in wishes}
        drafts = super().propose(wishes)
        return [draft if draft.token_ids else Draft((5, 6), (0.5, 0.5), self.name) for draft in drafts]

    def answers(self) -> list[list[int]]:
        """What the store holds of the empty salt."""
        index = self._past.of("")
        found: list[list[int]] = [[]]
        for token in [] if index is None else index.tokens:
            found[-1].append(token) if token >= 0 else found.append([])
        return found[:-1]


def said(rows: list[RequestOutput]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        found.setdefault((row.request_id, row.index), []).extend(row.token_ids)
    return found


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Engine, Watched]:
    """An engine with room for fewer requests than it gets, which drafts what comes to mind: much is rejected."""
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    pool = 14 * 16 * 2 * 2 * 2 * 16 * 2  # bytes
    engine = load(path, speculation="suffix", kv_cache_memory_bytes=pool, max_model_len=128).engine
    proposer = Watched()
    speculate(engine, proposer, AlwaysAll(), k=4)
    return engine, proposer


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_what_was_emitted_is_kept_and_nothing_of_a_request_outlives_it(
    watched: tuple[Engine, Watched], temperature: float
) -> None:
    engine, proposer = watched
    wish = SamplingParams(temperature=temperature, max_tokens=30, seed=3, ignore_eos=True)
    plan = SpeculationParams(adaptive=False)
    for number in range(6):
        prompt = [5 + (number * 7 + place) % 60 for place in range(20)]
        assert engine.add_request(f"r{number}", prompt, wish, n=2 if number == 0 else 1, speculation=plan) is None
    rows: list[RequestOutput] = []
    while not any(row.request_id == "r1" and row.token_ids for row in rows):
        rows += engine.step()
    rows += engine.step()
    rows += engine.abort_request("r1")
    rows += [engine.scheduler.fail(engine.scheduler.requests["r2"], "broken")]
    rows += rows_until_done(engine)
    assert engine.scheduler.num_preemptions > 0
    assert engine.speculator.total.drafted > engine.speculator.total.accepted > 0
    assert len(proposer._own) == 0
    assert {"r0", "r0\0001", "r1"} <= proposer.asked
    emitted = [tokens for tokens in said(rows).values() if len(tokens) > 2]
    assert sorted(proposer.answers()) == sorted(emitted)
    assert {row.finish_reason for row in rows} >= {FinishReason.ABORT, FinishReason.ERROR, FinishReason.LENGTH}
