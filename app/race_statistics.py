"""What a race's times say: medians, spread, and the speedup with its interval.

Owns the arithmetic. Knows nothing of engines. Invariant: a ratio has an interval, or a reason why it has none; the same
times give the same interval (the resampling is seeded).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES, SHARE = 2000, 0.95
LEAST_ROUNDS = 3  # for an interval: fewer rounds say nothing of how they vary
PAYS, COSTS = 1.05, 0.98  # beyond these the whole interval has to lie
UNSURE = (0.95, 1.05)  # an interval that reaches beyond both says nothing


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast decoding was with drafts: plain time a token over the other's, of medians.

    low, high: the ends of the 95 % interval, None with too few rounds. verdict: "pays", "costs" or "even" by the
    interval, "unsure" where it is too wide to tell, "not_enough_data" without one.
    """

    value: float
    low: float | None
    high: float | None
    verdict: str


def speedup(plain: Sequence[float], drafted: Sequence[float]) -> Speedup:
    """Of the seconds a token took, in each round. Rounds are drawn anew with replacement, the same ones for both."""
    value = statistics.median(plain) / statistics.median(drafted)
    rounds = len(plain)
    if rounds < LEAST_ROUNDS:
        return Speedup(value, None, None, "not_enough_data")
    pick = random.Random(0)
    ratios = []
    for _ in range(RESAMPLES):
        chosen = pick.choices(range(rounds), k=rounds)
        ratios.append(
            statistics.median(plain[one] for one in chosen) / statistics.median(drafted[one] for one in chosen)
        )
    ratios.sort()
    aside = int(RESAMPLES * (1 - SHARE) / 2)
    low, high = min(value, ratios[aside]), max(value, ratios[-1 - aside])
    return Speedup(value, low, high, _verdict(low, high))


def _verdict(low: float, high: float) -> str:
    if low > PAYS:
        return "pays"
    if low < UNSURE[0] and high > UNSURE[1]:
        return "unsure"
    return "costs" if high < COSTS else "even"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
