"""Gains, their intervals and the counts are what the times and the drafts say, and void where a text differs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.speculation_results import PLAIN, Arm, Case, Counts, Measured, Results, loops, ratio
from bench.speculation_targets import targets
from tests.bench.gains import counts, gains, measured


def test_a_ratio_is_of_sums_of_medians() -> None:
    plain = [[1.0, 4.0], [2.0, 4.0], [9.0, 4.0]]
    other = [[1.0, 1.0], [1.0, 2.0], [1.0, 9.0]]
    assert ratio(plain, other).value == pytest.approx((2 + 4) / (1 + 2))
    assert ratio(plain, other, groups=1).value == 2


def test_an_interval_holds_the_ratio_and_narrows_with_rounds() -> None:
    pick = random.Random(1)

    def noisy(rounds: int, scale: float) -> list[list[float]]:
        return [[scale * pick.uniform(0.8, 1.2) for _ in range(8)] for _ in range(rounds)]

    wide, narrow = ratio(noisy(3, 2.0), noisy(3, 1.0)), ratio(noisy(60, 2.0), noisy(60, 1.0))
    for found in (wide, narrow):
        assert found.low < found.value < found.high
        assert found.low < 2 < found.high
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2


def test_intervals_of_pure_noise_hold_1_about_as_often_as_promised() -> None:
    pick = random.Random(2)

    def noise() -> list[list[float]]:
        return [[pick.gauss(1.0, 0.05) for _ in range(8)] for _ in range(5)]

    found = [ratio(noise(), noise()) for _ in range(60)]
    held = sum(one.low <= 1 <= one.high for one in found)
    assert held >= 48  # 57 are to be expected of intervals that are exact; five rounds are few


def test_the_same_rounds_and_groups_are_drawn_for_both() -> None:
    times = [[1.0, 5.0, 20.0], [2.0, 9.0, 10.0]]
    found = ratio(times, times)
    assert (found.low, found.value, found.high) == (1, 1, 1)


def test_counts_say_rates_lengths_and_steps_without_a_draft() -> None:
    found = counts()
    assert found.acceptance_rate == 0.75
    assert found.mean_acceptance_length == 2.5
    assert found.without_draft == pytest.approx(1 - 20 / (100 - 2 - 30))
    assert found.curve() == [0.9, 0.6]
    assert found.draft_ms == pytest.approx(1.0)
    assert found.verify_ms == pytest.approx(5.0)
    assert found.plain_ms == pytest.approx(4.0)
    nothing = Counts()
    assert (nothing.acceptance_rate, nothing.mean_acceptance_length, nothing.without_draft) == (None, None, None)
    assert (nothing.draft_ms, nothing.verify_ms, nothing.plain_ms, nothing.curve()) == (None, None, None, [])


def test_counts_add_up_place_by_place() -> None:
    found = Counts(tokens=1, drafted_at=[1], accepted_at=[0])
    found.add(Counts(tokens=2, drafted_at=[1, 1], accepted_at=[1, 0], draft_s=0.5, draft_by={"suffix": 0.5}))
    assert (found.tokens, found.drafted_at, found.accepted_at, found.draft_s) == (3, [2, 1], [1, 0], 0.5)
    assert found.draft_by == {"suffix": 0.5}


def test_a_gain_is_void_where_an_answer_differs() -> None:
    one = measured("code_edit", 1, 0.0, suffix=0.5)
    gain = one.gain("suffix")
    assert gain is not None
    assert gain.value == 2
    assert one.speed(PLAIN) == 50
    one.arms["suffix"].differs = 1
    assert one.gain("suffix") is None
    assert one.gain("unknown") is None
    assert Measured(Case("code_edit", 1, 0.0), [], 0, {PLAIN: Arm(), "suffix": Arm()}).gain("suffix") is None


def test_answers_at_once_have_a_mean_and_a_last_one() -> None:
    """Drafts that help one of two answers end it in half the time, and the other a little later."""
    found = Measured(Case("open_chat", 2, 0.0), [50], 0, {PLAIN: Arm(), "suffix": Arm()})
    for name, answers in ((PLAIN, [1.0, 1.0]), ("suffix", [0.5, 1.1])):
        found.arms[name].add_round([answers])
    gain, last = found.gain("suffix"), found.gain_of_all("suffix")
    assert gain is not None
    assert last is not None
    assert gain.value == pytest.approx(2 / 1.6)
    assert last.value == pytest.approx(1 / 1.1)
    found.arms["suffix"].differs = 1
    assert found.gain_of_all("suffix") is None


def test_a_peers_gain_is_of_tokens_a_second() -> None:
    one = gains().peers[0]
    assert one.gain().value == 2
    one.spec_tokens = 40
    assert one.gain().value == 1
    assert one.speed() == 20


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results = gains()
    results.save(tmp_path / "folder" / "speculation.json")
    assert Results.read(tmp_path / "folder" / "speculation.json") == results
    assert results.proposers() == ["suffix", "ngram"]


def test_an_answer_that_repeats_itself_is_a_loop() -> None:
    assert loops([1, 2, 3] * 30)
    assert loops([9] * 100)
    assert not loops(list(range(100)))
    assert not loops([1, 2] * 10)  # too short to say


def test_promises_are_held_against_the_default_proposer() -> None:
    found = {one.promise: one for one in targets(gains(), "suffix")}
    assert found["open_chat, greedy, batch 1: at least 1.4 times plain decoding"].reached is False
    assert found["code_edit, greedy, batch 1: at least 2.5 times plain decoding"].reached is True
    assert found["code_edit, greedy, batch 4: at least 1.8 times plain decoding"].reached is True
    assert found["open_chat, greedy, batch 4: at least 1.2 times plain decoding"].reached is None
    sampled = found["open_chat, temperature 1, batch 1: at least 1.1 times plain decoding, else mostly no drafts"]
    assert sampled.reached is False
    assert sampled.found == "0.80 (0.80 to 0.80), no draft in 71% of steps"
    slow = found["every case: at least 0.97 times plain decoding at the lower end of the interval"]
    assert slow.reached is False
    assert "open_chat, temperature 1, batch 1: 0.80" in slow.found
    assert found["every answer has the tokens that plain decoding gives, whoever proposed"].reached is True


def test_where_tokens_are_drawn_it_is_as_good_to_draft_nothing() -> None:
    results = gains()
    results.measured[3].arms["suffix"].counts.drafts = 5
    found = {one.promise: one for one in targets(results, "suffix")}
    promise = "open_chat, temperature 1, batch 1: at least 1.1 times plain decoding, else mostly no drafts"
    assert found[promise].reached is True


def test_a_differing_answer_breaks_its_promise_and_nothing_else_is_said_of_the_case() -> None:
    results = gains()
    results.measured[0].arms["ngram"].differs = 3
    found = {one.promise: one for one in targets(results, "ngram")}
    same = found["every answer has the tokens that plain decoding gives, whoever proposed"]
    assert same.reached is False
    assert same.found == "open_chat, greedy, batch 1, ngram: 3"
    assert found["open_chat, greedy, batch 1: at least 1.4 times plain decoding"].reached is None
