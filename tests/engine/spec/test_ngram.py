"""Prompt lookup: the longest n-gram at its most recent place, a bounded cost a turn, and forgotten with its request."""

from __future__ import annotations

import random

import pytest

from engine.spec import own_text
from engine.spec.ngram import NgramProposer
from tests.engine.spec.texts import draft_of, propose, request_of


def looked_up(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """Prompt lookup as it is defined, by a search from the end."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[-length:]:
                found = list(tokens)
                for offset in range(count):
                    found.append(found[place + offset])
                return found[len(tokens) :]
    return []


@pytest.mark.parametrize(("shortest", "longest"), [(2, 5), (1, 3), (3, 3)])
@pytest.mark.parametrize("alphabet", [1, 2, 4, 30])
def test_drafts_are_those_of_a_search_through_the_text(alphabet: int, shortest: int, longest: int) -> None:
    draw = random.Random(alphabet)
    proposer = NgramProposer(shortest, longest)
    requests = [
        request_of([draw.randrange(alphabet) for _ in range(draw.randrange(1, 9))], name=str(n)) for n in range(4)
    ]
    for _ in range(40):
        count = draw.randrange(1, 10)
        for request, draft in zip(requests, propose(proposer, *requests, drafts=count), strict=True):
            assert list(draft.token_ids) == looked_up(request.token_ids, shortest, longest, count)
            request.token_ids.extend(draw.randrange(alphabet) for _ in range(draw.randrange(1, 5)))


def test_the_most_recent_place_wins_and_longer_matches_are_surer() -> None:
    recent = draft_of(NgramProposer(), request_of([1, 2, 3, 9, 1, 2, 4, 9, 1, 2]), 2)
    assert recent.token_ids == (4, 9)
    assert recent.proposer == "ngram"
    assert recent.confidence[0] < recent.confidence[1], "the second is only judged behind a match that has grown"
    long = draft_of(NgramProposer(), request_of([*range(10, 20), *range(10, 18)]), 2)
    assert long.token_ids == (18, 19)
    assert long.confidence[0] > recent.confidence[0]


def test_a_long_prompt_is_indexed_a_slice_a_turn_and_then_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_text, "SLICE", 1000)
    monkeypatch.setattr(own_text, "LEAST_SLICE", 10)
    size = 5000
    prompt = [*range(size - 4), 4000, 4001, 4002, 4003]
    long, short = request_of(prompt, name="long"), request_of([1, 2, 3, 1, 2], name="short")
    proposer = NgramProposer()
    assert propose(proposer, long, short)[1].token_ids[:1] == (3,), "others are served meanwhile"
    for turn in range(1, 6):
        assert proposer._texts.of(long).num_indexed == min(size, 1000 * turn)
        (draft,) = propose(proposer, long)
        assert draft.token_ids == (() if turn < 4 else tuple(range(4004, 4012)))
    long.token_ids.append(4004)
    assert draft_of(proposer, long).token_ids[0] == 4005
    assert proposer._texts.of(long).num_indexed == size + 1


def test_of_a_text_beyond_the_cap_the_end_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_text, "MAX_TOKENS", 100)
    request = request_of(list(range(400)))
    proposer = NgramProposer()
    propose(proposer, request)
    assert (proposer._texts.of(request).first, proposer._texts.of(request).num_indexed) == (300, 400)
    for token in range(400, 700):
        request.token_ids.append(token)
        propose(proposer, request)
        assert proposer._texts.of(request).num_indexed - proposer._texts.of(request).first <= 151
    request.token_ids.extend([650, 651])
    assert draft_of(proposer, request, 2).token_ids == (652, 653)


def test_nothing_is_kept_of_a_request_that_has_ended_and_another_of_its_name_starts_afresh() -> None:
    proposer = NgramProposer()
    request = request_of([1, 2, 3, 1, 2])
    assert draft_of(proposer, request, 1).token_ids == (3,)
    same_name = request_of([4, 5, 1, 2])
    assert draft_of(proposer, same_name).token_ids == (), "its text is another one, though the first never ended"
    proposer.end(same_name)
    proposer.end(same_name)
    proposer.clear()
    assert len(proposer._texts) == 0
    assert draft_of(proposer, request_of([1, 2])).token_ids == ()


@pytest.mark.parametrize("lengths", [(0, 3), (3, 2), (2, 25)])
def test_n_grams_of_impossible_lengths_are_refused(lengths: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="1 <= min_length <= max_length"):
        NgramProposer(*lengths)
