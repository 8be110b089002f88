"""Whether speculation pays: the arithmetic from measured turns to a speedup with its interval, a state and advice.

Owns the definitions (docs/speculation.md has them for people). Knows nothing of engines or HTTP. For a bucket of turns
alike in batch and context, a = drafts accepted per request and step, P = a plain step at that moment, C = drafting and
step together: speedup = (1 + a) P / C, and a* = C / P - 1 is the a at which it is 1. Numerator and denominator are
summed over turns, also of several buckets, so a is weighted by P. The interval is 95 %: batch means for turns and plain
steps, propagated to first order, Student's t with Welch and Satterthwaite's degrees of freedom.
Invariant: no speedup without enough turns and a fresh baseline of plain steps; then there is a reason instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.speculation import CostBucket

NEEDED_STEPS = 200
NEEDED_PLAIN_STEPS = 12
FRESH_S = 600.0  # the baseline's age at the last turn that is compared with it
RECENT_S = 1800.0  # a bucket that was last used so long before the newest turn is not part of the whole
PAYS, COSTS = 1.05, 1.0
UNSURE = (0.95, 1.05)  # an interval that reaches beyond both says nothing
EVEN_AT_MOST = 1.25  # nor does one that holds both "about even" and a gain worth having
Z = 1.959963985  # of 95 %, two-sided


@dataclass(frozen=True, slots=True)
class Speedup:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float


def is_fresh(bucket: CostBucket) -> bool:
    """Whether its plain steps are enough, and recent enough, to compare its turns with."""
    return bucket.plain_steps >= NEEDED_PLAIN_STEPS and bucket.t_s - bucket.plain_t_s <= FRESH_S


def speedup_of(buckets: Sequence[CostBucket]) -> Speedup | None:
    """Of all turns in these buckets; None where none of them has a spread and a fresh baseline."""
    usable = [each for each in buckets if is_fresh(each) and each.blocks >= 2]
    spent = sum(each.steps * (each.step_s + each.draft_s) for each in usable)
    if spent <= 0.0:
        return None
    ratio = sum(each.steps * each.worth_s for each in usable) / spent
    parts: list[tuple[float, int]] = []  # (variance, degrees of freedom)
    for each in usable:
        share = each.steps / spent
        between = each.worth_variance + ratio**2 * each.time_variance - 2.0 * ratio * each.covariance
        parts.append((max(between, 0.0) / each.blocks * share**2, each.blocks - 1))
        plain_error = each.plain_variance / each.plain_blocks / each.plain_s**2
        parts.append((plain_error * (share * each.worth_s) ** 2, each.plain_blocks - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0.0:
        return Speedup(ratio, ratio, ratio)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    reach = student_t(freedom) * math.sqrt(variance)
    return Speedup(ratio, max(ratio - reach, 0.0), ratio + reach)


def student_t(freedom: float) -> float:
    """The 97.5 % point of Student's t, by its expansion about the normal one; within 1 % from 3 degrees on."""
    v = max(freedom, 3.0)
    return (
        Z
        + (Z**3 + Z) / (4 * v)
        + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * v**2)
        + (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / (384 * v**3)
    )


def judged(buckets: Sequence[CostBucket]) -> dict[str, Any]:
    """state "pays" | "even" | "costs" | "not_enough_data", the reason for the last, and the figures as far as known."""
    used = [each for each in buckets if each.blocks]
    fresh = [each for each in used if is_fresh(each) and each.blocks >= 2]
    found = speedup_of(used)
    steps, compared = sum(each.steps for each in used), sum(each.steps for each in fresh)
    figures = _figures(fresh or used, with_plain=bool(fresh))
    if steps < NEEDED_STEPS:
        code = "few_steps" if steps else "no_steps"
        return _unknown(figures, steps, {"code": code, "steps": steps, "needed": NEEDED_STEPS})
    if found is None or compared < NEEDED_STEPS:
        stale = [each for each in used if each.plain_steps >= NEEDED_PLAIN_STEPS and not is_fresh(each)]
        if stale:
            age = max(each.t_s - each.plain_t_s for each in stale)
            return _unknown(figures, steps, {"code": "stale_baseline", "age_s": age, "most_s": FRESH_S})
        bare = [each for each in used if each.plain_steps < NEEDED_PLAIN_STEPS]
        if not bare:  # compared, but too few of them
            return _unknown(figures, steps, {"code": "few_steps", "steps": compared, "needed": NEEDED_STEPS})
        plain = max(bare, key=lambda each: each.steps).plain_steps  # of the turns that wait for it, not of all
        return _unknown(figures, steps, {"code": "no_baseline", "steps": plain, "needed": NEEDED_PLAIN_STEPS})
    told = {**figures, "steps": compared, "speedup": found.value, "low": found.low, "high": found.high}
    unsure = found.low < UNSURE[0] and found.high > UNSURE[1]
    if unsure or (found.low <= PAYS and found.high > EVEN_AT_MOST):
        return told | {"state": "not_enough_data", "reason": {"code": "wide_interval"}}
    state = "pays" if found.low > PAYS else "costs" if found.high < COSTS else "even"
    return told | {"state": state, "reason": None}


def _unknown(figures: dict[str, Any], steps: int, reason: dict[str, Any]) -> dict[str, Any]:
    nothing = {"speedup": None, "low": None, "high": None}
    return {**figures, **nothing, "steps": steps, "state": "not_enough_data", "reason": reason}


def _figures(buckets: Sequence[CostBucket], *, with_plain: bool) -> dict[str, Any]:
    """Means over the turns of these buckets; those that need a baseline are None where there is none."""
    steps = sum(each.steps for each in buckets)
    if not steps:
        names = ("accepted_per_step", "break_even", "plain_ms", "draft_ms", "verify_ms", "plain_at")
        return dict.fromkeys(names) | {"plain_steps": sum(each.plain_steps for each in buckets)}
    draft = sum(each.steps * each.draft_s for each in buckets)
    verify = sum(each.steps * each.step_s for each in buckets)
    plain = sum(each.steps * each.baseline_s for each in buckets)
    accepted = sum(each.steps * each.worth_s for each in buckets) / plain - 1.0
    measured_at = [each.plain_t_s for each in buckets if each.plain_t_s]
    return {
        "accepted_per_step": accepted,
        "break_even": (draft + verify) / plain - 1.0 if with_plain else None,
        "plain_ms": 1e3 * plain / steps if with_plain else None,
        "draft_ms": 1e3 * draft / steps,
        "verify_ms": 1e3 * verify / steps,
        "plain_steps": sum(each.plain_steps for each in buckets),
        "plain_at": min(measured_at, default=None),
    }


def recent(buckets: Sequence[CostBucket]) -> list[CostBucket]:
    """Those that the whole is judged by."""
    newest = max((each.t_s for each in buckets), default=0.0)
    return [each for each in buckets if newest - each.t_s <= RECENT_S]


def by_bucket(buckets: Sequence[CostBucket]) -> list[dict[str, Any]]:
    """Each bucket judged alone, with its turns by the number of drafts."""
    return [
        {
            "requests_from": each.requests_from,
            "requests_to": each.requests_to,
            "context_from": each.context_from,
            "context_to": each.context_to or None,
            "at": each.t_s or None,
            **judged([each]),
            **_plain(each),
            "by_drafts": [
                {
                    "num_drafts": one.num_drafts,
                    "steps": one.steps,
                    "verify_ms": 1e3 * one.step_s,
                    "accepted_per_step": one.accepted,
                }
                for one in each.by_drafts
            ],
        }
        for each in buckets
    ]


def _plain(bucket: CostBucket) -> dict[str, Any]:
    """Its baseline, fresh or not: a table shows what was measured."""
    known = bucket.plain_steps > 0
    return {
        "plain_steps": bucket.plain_steps,
        "plain_ms": 1e3 * (bucket.baseline_s or bucket.plain_s) if known else None,
        "plain_at": bucket.plain_t_s if known else None,
    }
