"""The index of contexts and the vote over what followed them, against a search through the whole text."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.spec import contexts
from engine.spec.contexts import MAX_MATCH, TEXT_END, ContextIndex, Match
from engine.spec.continuation import MISS, continuation, followers
from tests.engine.spec.texts import common_end

ALL = 1 << 30


def searched(index: ContextIndex, texts: list[tuple[int, list[int]]], last: list[int], most: int) -> Match | None:
    """What `find` promises, by looking at every place. texts: each with its start in the index's tokens."""
    ends = [
        (start + end, common_end(text[:end], last)) for start, text in texts for end in range(len(text) - 1, -1, -1)
    ]
    ends.sort(reverse=True)
    for length in reversed(index.lengths):
        found = [(place, match) for place, match in ends if match >= length][:most]
        if found:
            longest = max(match for _, match in found)
            return Match(longest, [place for place, match in found if match == longest])
    return None


@pytest.mark.parametrize("alphabet", [1, 2, 3, 20])
@pytest.mark.parametrize("lengths", [(1, 3, 8), (2, 4, 8), (2, 3, 4, 5)])
def test_the_longest_match_and_its_places_are_those_of_a_whole_search(alphabet: int, lengths: tuple[int, ...]) -> None:
    draw = random.Random(alphabet)
    for _ in range(8):
        tokens: list[int] = []
        index = ContextIndex(lengths, tokens)
        for _ in range(60):
            tokens += [draw.randrange(alphabet) for _ in range(draw.randrange(1, 4))]
            index.extend(ALL)
            for most in (1, 3, ALL):
                assert index.find(tokens[-MAX_MATCH:], most) == searched(index, [(0, tokens)], tokens, most)
        longest = max(common_end(tokens[:end], tokens) for end in range(len(tokens)))
        match = index.find(tokens[-MAX_MATCH:], ALL)
        assert (match.length if match else 0) == (longest if longest >= lengths[0] else 0)


def test_what_stands_before_first_and_what_is_not_indexed_yet_is_not_found() -> None:
    tokens = [7, 8, 9, 1, 7, 8, 9, 2, 7, 8, 9, 3, 7, 8]
    index = ContextIndex((1, 2), tokens, first=4)
    assert index.find(tokens, ALL) is None
    assert index.extend(3) == 3
    assert index.find([7, 8], ALL) == Match(2, [6])
    assert index.extend(ALL) == len(tokens) - 7
    assert index.extend(ALL) == 0
    assert index.find(tokens, ALL) == Match(2, [10, 6])
    assert index.find([2, 7, 8], ALL) == Match(3, [10])
    assert index.find([9, 1, 7], ALL) == Match(1, [13, 9, 5])


def test_whole_texts_are_kept_apart_and_the_oldest_leaves_nothing() -> None:
    draw = random.Random(5)
    index = ContextIndex((1, 3, 8), [])
    kept: list[list[int]] = []
    for _ in range(120):
        kept.append([draw.randrange(3) for _ in range(draw.randrange(0, 14))])
        index.append(kept[-1])
        if len(kept) > 5:
            index.drop_oldest(len(kept.pop(0)))
        start, texts = 0, []
        for text in kept:
            texts.append((start, text))
            start += len(text) + 1
        assert index.tokens == [token for text in kept for token in [*text, TEXT_END]]
        for _ in range(4):
            last = [draw.randrange(3) for _ in range(draw.randrange(1, 12))]
            for most in (2, ALL):
                assert index.find(last, most) == searched(index, texts, last, most)
    while kept:
        index.drop_oldest(len(kept.pop(0)))
    assert not index.tokens
    assert not any(index._heads)
    assert not any(index._links)


def test_a_collision_of_hashes_makes_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "hash", lambda context: 0, raising=False)
    tokens = [1, 2, 3, 1, 2, 4, 5, 6, 1, 2]
    index = ContextIndex((2,), tokens)
    index.extend(ALL)
    assert index.find(tokens, ALL) == Match(2, [5, 2])
    assert index.find([2, 5], ALL) is None


class CountedTokens(list[int]):
    """A list that counts how many of its tokens are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(key, slice) else 1
        return found


@pytest.mark.parametrize("alphabet", [1, 2, 40000])
def test_a_step_behind_a_long_prompt_reads_no_more_than_behind_a_short_one(alphabet: int) -> None:
    draw = random.Random(alphabet)
    for size in (1000, 50000):
        tokens = CountedTokens(draw.randrange(alphabet) for _ in range(size))
        index = ContextIndex((1, 3, 8), tokens)
        index.extend(ALL)
        tokens.read = 0
        for _ in range(50):
            tokens.append(draw.randrange(alphabet))
            assert index.extend(ALL) == 1
            index.find(tokens[-MAX_MATCH:], 16)
        assert 0 < tokens.read <= 50 * (MAX_MATCH + (1 + 3 + 8) + 16 * (1 + 3 + 8 + MAX_MATCH + MAX_MATCH // 2 + 16))


def test_runs_go_on_with_themselves_where_the_text_ends() -> None:
    assert followers([1, 2, 3], [1, 2, 1], 5) == {(2, 3, 2, 3, 2): 2, (3, 3, 3, 3, 3): 1}
    assert followers([1, 2, 3, 4], [1], 2) == {(2, 3): 1}


def voted(runs: list[list[int]], length: int, least: float) -> tuple[list[int], list[float]]:
    """The vote, one token at a time over all runs."""
    tokens: list[int] = []
    sure: list[float] = []
    chance = 1.0
    while len(tokens) < len(runs[0]):
        here = [run[len(tokens)] for run in runs if run[: len(tokens)] == tokens]
        here = [token for token in here if token != TEXT_END]
        if not here:
            break
        best = max(here, key=lambda token: (here.count(token), -here.index(token)))
        sure.append((here.count(best) / len(here)) ** 2 * (1 - MISS[length + len(tokens)] / len(here)))
        chance *= sure[-1]
        if chance < least:
            return tokens, sure[:-1]
        tokens.append(best)
    return tokens, sure


@pytest.mark.parametrize("least", [0.0, 0.05, 0.3])
def test_counts_decide_and_give_the_confidence(least: float) -> None:
    draw = random.Random(3)
    for _ in range(300):
        width, length = draw.randrange(1, 9), draw.randrange(1, MAX_MATCH + 1)
        runs = [[draw.choice((4, 4, 4, 5, TEXT_END)) for _ in range(width)] for _ in range(draw.randrange(1, 8))]
        counts: dict[tuple[int, ...], int] = {}
        for run in runs:
            counts[tuple(run)] = counts.get(tuple(run), 0) + 1
        grouped = [list(run) for run, count in counts.items() for _ in range(count)]
        found = continuation(counts, length, least=least)
        tokens, sure = voted(grouped, length, least)
        assert list(found.token_ids) == tokens
        assert found.confidence == pytest.approx(sure)
        products = [1.0]
        for chance in sure:
            products.append(products[-1] * chance)
        assert found.expected == pytest.approx(sum(products[1:]))


def test_longer_matches_and_more_places_are_surer_and_other_texts_less() -> None:
    once: dict[tuple[int, ...], int] = {(5,): 1}
    often: dict[tuple[int, ...], int] = {(5,): 4}
    chances = [continuation(once, length, least=0.0).confidence[0] for length in range(2, MAX_MATCH + 1)]
    assert chances == sorted(chances)
    assert chances[0] < chances[-1] < 1
    assert continuation(often, 2, least=0.0).confidence > continuation(once, 2, least=0.0).confidence
    other = continuation(often, 3, least=0.0, other_text=True)
    assert other.confidence == continuation(once, 2, least=0.0).confidence
