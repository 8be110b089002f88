"""Whether two samples may come from one distribution: the chi-square test, and a bound on their distance.

Owns the arithmetic. Knows nothing of tokens beyond that they can be counted. Invariant: rare outcomes are pooled until
every bin's expected count is MIN_EXPECTED, without which the chi-square distribution says nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MIN_EXPECTED = 5.0
_PRECISION = 1e-14
_MOST_TERMS = 10_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two samples compared. p_value: how often samples of one distribution differ as much or more.

    total_variation: half the summed difference of the pooled shares. bound: exceeded by samples of one distribution
    with a probability of at most `alpha`.
    """

    num_first: int
    num_second: int
    num_bins: int
    statistic: float
    p_value: float
    total_variation: float
    bound: float

    def agrees(self, alpha: float) -> bool:
        """Whether neither figure speaks against one distribution."""
        return self.p_value >= alpha and self.total_variation <= self.bound


def compare(first: Sequence[Hashable], second: Sequence[Hashable], alpha: float) -> Comparison:
    """The two samples, neither of them empty."""
    bins = _pooled(Counter(first), Counter(second), len(first), len(second))
    total = len(first) + len(second)
    statistic, variation = 0.0, 0.0
    for counts in bins:
        for count, size in zip(counts, (len(first), len(second)), strict=True):
            expected = sum(counts) * size / total
            statistic += (count - expected) ** 2 / expected
        variation += abs(counts[0] / len(first) - counts[1] / len(second)) / 2
    p_value = chi_square_tail(statistic, len(bins) - 1) if len(bins) > 1 else 1.0
    bound = variation_bound(len(bins), len(first), len(second), alpha)
    return Comparison(len(first), len(second), len(bins), statistic, p_value, variation, bound)


def variation_bound(num_bins: int, num_first: int, num_second: int, alpha: float) -> float:
    """What the total variation of two samples of one distribution exceeds with a probability of at most alpha.

    Its mean is at most sqrt(bins * (1/n + 1/m)) / 2 (Cauchy-Schwarz over the bins' standard deviations); one draw moves
    it by 1/n or 1/m, so that McDiarmid's inequality bounds what comes on top.
    """
    inverse = 1 / num_first + 1 / num_second
    return math.sqrt(num_bins * inverse) / 2 + math.sqrt(math.log(1 / alpha) * inverse / 2)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X >= statistic) for X of the chi-square distribution: the regularised gamma function Q(freedom/2, x/2).

    By its series below the mean and Lentz's continued fraction above (Numerical Recipes, section 6.2).
    """
    if statistic < 0 or freedom < 1:
        raise ValueError(f"chi_square_tail({statistic}, {freedom}): wants a statistic >= 0 and a freedom >= 1")
    a, x = freedom / 2, statistic / 2
    if x == 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, _MOST_TERMS):
            term *= x / (a + n)
            total += term
            if term < total * _PRECISION:
                break
        return max(0.0, 1 - front * total)
    b = x + 1 - a
    c, d = math.inf, 1 / b
    fraction = d
    for n in range(1, _MOST_TERMS):
        step = n * (a - n)
        b += 2
        d, c = 1 / (step * d + b), b + step / c
        fraction *= d * c
        if abs(d * c - 1) < _PRECISION:
            break
    return min(1.0, front * fraction)


def _pooled(
    first: Counter[Hashable], second: Counter[Hashable], num_first: int, num_second: int
) -> list[tuple[int, int]]:
    """Counts per bin, the frequent outcomes each a bin of its own, the others together."""
    smaller = min(num_first, num_second) / (num_first + num_second)
    counts = sorted(((first[key], second[key]) for key in first | second), key=sum, reverse=True)
    bins: list[tuple[int, int]] = []
    rest = (0, 0)
    for pair in counts:
        if sum(pair) * smaller >= MIN_EXPECTED:
            bins.append(pair)
        else:
            rest = (rest[0] + pair[0], rest[1] + pair[1])
    if sum(rest) == 0:
        return bins
    if sum(rest) * smaller < MIN_EXPECTED and bins:
        last = bins.pop()
        rest = (rest[0] + last[0], rest[1] + last[1])
    return [*bins, rest]
