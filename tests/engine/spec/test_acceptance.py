"""Acceptance: estimates find the truth behind censored evidence, from wrong confidences too, and follow it."""

from __future__ import annotations

import random

import pytest

from engine.spec.acceptance import Acceptance

SAID = (0.2, 0.5, 0.8, 0.95)


def feed(
    acceptance: Acceptance,
    rng: random.Random,
    chances: list[float],
    confidence: tuple[float, ...] = (),
    times: int = 1,
    request: str = "r",
    greedy: bool = True,
) -> None:
    """Verified drafts of the given true chances."""
    for _ in range(times):
        accepted = next((index for index, chance in enumerate(chances) if rng.random() >= chance), len(chances))
        acceptance.observe(request, "p", confidence, len(chances), accepted, greedy)


def test_later_positions_are_not_blamed_for_earlier_ones() -> None:
    """Position 1 is rarely accepted, position 2 nearly always where it is: a plain share would say 0.18."""
    acceptance, rng = Acceptance(8), random.Random(1)
    feed(acceptance, rng, [0.2, 0.9], times=3000)
    first, second = acceptance.chances("r", "p", (), 2, True)
    assert first == pytest.approx(0.2, abs=0.06)
    assert second == pytest.approx(0.9, abs=0.06)
    blind = [chance for chance, _ in acceptance.expected("r", "p", 2, True)]
    assert blind == pytest.approx([0.2, 0.9], abs=0.08)


@pytest.mark.parametrize(
    "truth", [(0.2, 0.5, 0.8, 0.95), (0.05, 0.1, 0.3, 0.6), (0.6, 0.6, 0.6, 0.6), (0.9, 0.7, 0.4, 0.1)]
)
def test_confidences_are_calibrated_whatever_they_mean(truth: tuple[float, ...]) -> None:
    acceptance, rng = Acceptance(8), random.Random(2)
    for _ in range(4000):
        index = rng.randrange(4)
        feed(acceptance, rng, [truth[index]], (SAID[index],))
    found = [acceptance.chances("new", "p", (said,), 1, True)[0] for said in SAID]
    assert found == pytest.approx(truth, abs=0.12)


def test_what_a_request_shows_counts_for_it_alone() -> None:
    acceptance, rng = Acceptance(8), random.Random(3)
    for turn in range(400):
        feed(acceptance, rng, [0.3], (0.6,), request=f"other {turn // 20}")
    for _ in range(25):
        feed(acceptance, rng, [0.95], (0.6,), request="copies")
    copies, other = (acceptance.chances(name, "p", (0.6,), 1, True)[0] for name in ("copies", "new"))
    assert copies > 0.6 > 0.5 > other
    acceptance.end("copies")
    acceptance.end("never seen")
    assert acceptance.chances("copies", "p", (0.6,), 1, True)[0] == other


def test_greedy_and_sampled_requests_are_separate() -> None:
    acceptance, rng = Acceptance(8), random.Random(4)
    assert acceptance.chances("r", "p", (0.8,), 1, True) > acceptance.chances("r", "p", (0.8,), 1, False)
    feed(acceptance, rng, [0.9], (0.8,), 300, "a", greedy=True)
    feed(acceptance, rng, [0.2], (0.8,), 300, "b", greedy=False)
    assert acceptance.chances("new", "p", (0.8,), 1, True)[0] > 0.75
    assert acceptance.chances("new", "p", (0.8,), 1, False)[0] < 0.35


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.8), (0.8, 0.02)])
def test_another_regime_is_believed_within_a_few_dozen_drafts(before: float, after: float) -> None:
    acceptance, rng = Acceptance(8), random.Random(5)
    feed(acceptance, rng, [before], (0.7,), 2000, "a")
    for request in ("b", "c", "d"):
        feed(acceptance, rng, [after], (0.7,), 20, request)
    found = acceptance.chances("new", "p", (0.7,), 1, True)[0]
    assert found > 0.45 if after > before else found < 0.3


def test_a_level_that_nobody_saw_follows_the_proposer_as_a_whole() -> None:
    acceptance, rng = Acceptance(8), random.Random(6)
    before = acceptance.chances("new", "p", (0.97,), 1, True)[0]
    feed(acceptance, rng, [0.0], (0.6,), 100)
    assert acceptance.chances("new", "p", (0.97,), 1, True)[0] < 0.3 < before


def test_drafts_that_are_cut_are_worth_less_before_they_are_made() -> None:
    acceptance = Acceptance(4)
    for _ in range(100):
        acceptance.cut("p", 3, 1, True)
    kept = [share for _, share in acceptance.expected("r", "p", 4, True)]
    assert kept[0] == 1.0
    assert kept[1] == pytest.approx(0.2, abs=0.02)
    assert kept[2:] == [1.0, 1.0], "what lies behind a cut was not judged"


def test_chances_stay_between_0_and_1() -> None:
    acceptance = Acceptance(4)
    for accepted in (0, 4):
        for _ in range(5000):
            acceptance.observe("r", "p", (0.0, 1.0), 4, accepted, True)
        for chance in acceptance.chances("r", "p", (0.0, 1.0), 4, True):
            assert 0.0 < chance < 1.0
