"""The self-test's arithmetic: known values of the chi-square tail, and samples that agree and that do not."""

from __future__ import annotations

import math
import random

import pytest

from app.selftest_statistics import MIN_EXPECTED, chi_square_tail, compare, variation_bound

ALPHA = 1e-4


@pytest.mark.parametrize(
    ("freedom", "level", "critical"),
    [  # NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.4
        (1, 0.05, 3.841),
        (1, 0.001, 10.828),
        (2, 0.10, 4.605),
        (5, 0.01, 15.086),
        (10, 0.05, 18.307),
        (10, 0.95, 3.940),
        (30, 0.025, 46.979),
        (100, 0.001, 149.449),
        (100, 0.99, 70.065),
    ],
)
def test_the_tail_at_the_critical_values_of_the_tables(freedom: int, level: float, critical: float) -> None:
    assert chi_square_tail(critical, freedom) == pytest.approx(level, rel=1e-3)


@pytest.mark.parametrize("statistic", [0.0, 1e-9, 0.3, 2.0, 3.0, 30.0, 300.0, 1400.0])
def test_the_tail_in_closed_form(statistic: float) -> None:
    """With one and two degrees it is erfc and exp; with four it is exp(-x/2) (1 + x/2)."""
    assert chi_square_tail(statistic, 1) == pytest.approx(math.erfc(math.sqrt(statistic / 2)), rel=1e-10)
    assert chi_square_tail(statistic, 2) == pytest.approx(math.exp(-statistic / 2), rel=1e-10)
    assert chi_square_tail(statistic, 4) == pytest.approx(math.exp(-statistic / 2) * (1 + statistic / 2), rel=1e-10)


def test_the_tail_has_limits() -> None:
    assert chi_square_tail(1e6, 3) == 0.0
    with pytest.raises(ValueError, match="statistic >= 0"):
        chi_square_tail(-1.0, 3)
    with pytest.raises(ValueError, match="freedom >= 1"):
        chi_square_tail(1.0, 0)


def draws(shares: list[float], count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(len(shares)), shares, k=count)


def test_samples_of_one_distribution_agree_as_often_as_promised() -> None:
    """200 pairs of samples: p values are as good as uniform, and no distance exceeds its bound."""
    shares = [1 / (rank + 1) for rank in range(200)]
    found = [compare(draws(shares, 512, seed), draws(shares, 512, -1 - seed), ALPHA) for seed in range(200)]
    assert sum(each.p_value < 0.1 for each in found) == pytest.approx(20, abs=13)  # three standard deviations
    assert all(each.agrees(ALPHA) for each in found)
    assert all(each.total_variation <= each.bound for each in found)
    assert {each.num_bins for each in found} <= set(range(10, 60))


@pytest.mark.parametrize("where", ["frequent", "rare"])
def test_a_bias_is_found(where: str) -> None:
    """A tenth of the mass at another token, as a residual that is not renormalised would move it."""
    shares = [0.5, 0.2, *[0.3 / 100] * 100]
    other = list(shares)
    other[0] -= 0.15
    if where == "frequent":
        other[1] += 0.15
    else:
        other[2:] = [share + 0.15 / 100 for share in other[2:]]
    found = compare(draws(shares, 1024, 1), draws(other, 1024, 2), ALPHA)
    assert found.p_value < 1e-5
    assert not found.agrees(ALPHA)


def test_samples_that_have_nothing_in_common_exceed_the_bound() -> None:
    found = compare([1] * 512, [2] * 512, ALPHA)
    assert (found.num_bins, found.total_variation) == (2, 1.0)
    assert found.bound < 0.25
    assert not found.agrees(ALPHA)


def test_one_outcome_is_no_difference() -> None:
    found = compare([7] * 128, [7] * 256, ALPHA)
    assert (found.num_bins, found.statistic, found.p_value, found.total_variation) == (1, 0.0, 1.0, 0.0)
    assert (found.num_first, found.num_second) == (128, 256)


def test_rare_outcomes_are_pooled() -> None:
    """Of 100 + 300 draws an outcome needs 20 for 5 expected in the smaller sample; what is left joins the least."""
    first = ["a"] * 60 + ["b"] * 37 + ["c", "d", "e"]
    second = ["a"] * 190 + ["b"] * 107 + ["f", "g", "h"]
    found = compare(first, second, ALPHA)
    assert found.num_bins == 2
    expected = 250 * 100 / 400
    assert found.statistic == pytest.approx(
        (60 - expected) ** 2 * (1 / expected + 1 / (250 - expected) + 1 / (100 - expected) + 1 / (300 - 250 + expected))
    )
    assert MIN_EXPECTED == 5.0


def test_the_bound_narrows_with_samples_and_widens_with_bins() -> None:
    assert variation_bound(10, 512, 512, ALPHA) == pytest.approx(math.sqrt(10 / 1024) + math.sqrt(math.log(1e4) / 512))
    assert variation_bound(10, 2048, 2048, ALPHA) < variation_bound(10, 512, 512, ALPHA)
    assert variation_bound(40, 512, 512, ALPHA) > variation_bound(10, 512, 512, ALPHA)
