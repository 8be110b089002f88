"""What speculation is to reach, and whether a run of bench/speculation.py did.

Owns the promises. Invariant: what was not measured is neither kept nor broken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.speculation_results import Case, Results

MOSTLY = 0.9  # of an answer's steps without a draft: the controller chose k = 0
FLOOR = 0.97  # no case may be slower, not even at the lower end of its interval
# (temperature, batch) -> at least so many times plain decoding: open chat, sets whose answers copy
LEAST: Mapping[tuple[float, int], tuple[float, float]] = {
    (0.0, 1): (1.4, 2.5),
    (0.0, 4): (1.2, 1.8),
    (1.0, 1): (1.1, 1.8),
}


@dataclass(frozen=True, slots=True)
class Target:
    """reached: None where nothing was measured."""

    promise: str
    found: str
    reached: bool | None


def targets(results: Results, proposer: str) -> list[Target]:
    """Every promise, held against that proposer's gains."""
    found = [
        _least(results, proposer, key, temperature, batch, copying if copies else chat)
        for (temperature, batch), (chat, copying) in LEAST.items()
        for key, copies in results.facts["sets"].items()
    ]
    return [*found, _never_slower(results, proposer), _same_text(results)]


def drafter_wins(results: Results) -> tuple[float, bool] | None:
    """What `hybrid` gives over `suffix`, the geometric mean over all cases, and whether a trained drafter is to be the
    default for that: it gives more, and is too slow in no more cases. None where not every promised case was measured.
    """
    both = [
        (with_it, without)
        for one in results.measured
        if (with_it := one.gain("hybrid")) is not None and (without := one.gain("suffix")) is not None
    ]
    promised = [Case(key, batch, temperature) for temperature, batch in LEAST for key in results.facts["sets"]]
    if not both or any(results.find(case) is None for case in promised):
        return None
    mean = math.exp(sum(math.log(with_it.value / without.value) for with_it, without in both) / len(both))
    slow = sum(with_it.low < FLOOR for with_it, _ in both) - sum(without.low < FLOOR for _, without in both)
    return mean, mean > 1.0 and slow <= 0


def _least(results: Results, proposer: str, key: str, temperature: float, batch: int, least: float) -> Target:
    case = Case(key, batch, temperature)
    promise = f"{key}, {case.how}, batch {batch}: at least {least:g} times plain decoding"
    measured = results.find(case)
    gain = measured.gain(proposer) if measured else None
    if measured is None or gain is None:
        return Target(promise, "not measured", None)
    without = measured.arms[proposer].counts.without_draft
    if temperature == 0 or without is None:
        return Target(promise, str(gain), gain.value >= least)
    found = f"{gain}, no draft in {without:.0%} of steps"
    return Target(f"{promise}, else mostly no drafts", found, gain.value >= least or without >= MOSTLY)


def _never_slower(results: Results, proposer: str) -> Target:
    promise = f"every case: at least {FLOOR:g} times plain decoding at the lower end of the interval"
    gains = [(one.case, gain) for one in results.measured if (gain := one.gain(proposer)) is not None]
    if not gains:
        return Target(promise, "not measured", None)
    slow = sorted((gain.low, case) for case, gain in gains if gain.low < FLOOR)
    if not slow:
        low, case = min((gain.low, case) for case, gain in gains)
        return Target(promise, f"lowest {low:.2f}: {case.key}, {case.how}, batch {case.batch}", True)
    names = "; ".join(f"{case.key}, {case.how}, batch {case.batch}: {low:.2f}" for low, case in slow)
    return Target(promise, f"{len(slow)} of {len(gains)} are lower: {names}", False)


def _same_text(results: Results) -> Target:
    promise = "every answer has the tokens that plain decoding gives, whoever proposed"
    arms = [(one.case, name, arm) for one in results.measured for name, arm in one.arms.items()]
    wrong = [
        f"{case.key}, {case.how}, batch {case.batch}, {name}: {arm.differs}" for case, name, arm in arms if arm.differs
    ]
    if not arms:
        return Target(promise, "not measured", None)
    answers = sum(arm.counts.answers * max(1, len(arm.seconds)) for _, _, arm in arms)
    return Target(promise, "; ".join(wrong) if wrong else f"{answers} answers compared", not wrong)
