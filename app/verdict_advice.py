"""What an operator may do about a verdict: codes and numbers, which the pages put into words.

Owns the choice of advice and the estimate for other numbers of drafts. Knows nothing of languages.
Invariant: advice rests on measured figures; what is an estimate is called one by its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.speculation import CostBucket

ENOUGH_STEPS = 20  # with so many drafts, before their time counts as known
BETTER = 1.05  # what another number of drafts must promise over what is measured
NEEDED_JUDGED = 30  # drafts at a place, before its chance counts as known

Advice = dict[str, Any]


def advice_on(
    whole: Mapping[str, Any],
    buckets: Sequence[Mapping[str, Any]],
    memory: Mapping[str, Any],
    better: Advice | None,
) -> list[Advice]:
    """For the states that follow from measurements."""
    state, reason = whole["state"], whole["reason"]
    found: list[Advice] = []
    if state == "not_enough_data":
        found.append({"code": _REMEDIES[reason["code"]], **{k: v for k, v in reason.items() if k != "code"}})
    else:
        found.append({"code": _FIRST[state], "speedup": whole["speedup"]})
    losing = [each for each in buckets if each["state"] == "costs" and each["requests_from"] > 1]
    if state != "costs" and losing:
        first = min(losing, key=lambda each: int(each["requests_from"]))
        found.append({"code": "off_at_batch", "requests": first["requests_from"], "speedup": first["speedup"]})
    if better is not None:
        found.append(better)
    if state in ("even", "costs") and memory["kv_tokens_lost"]:
        found.append({"code": "drafter_memory", "tokens": memory["kv_tokens_lost"], "bytes": memory["bytes"]})
    return found


_FIRST = {"pays": "keep", "even": "even", "costs": "turn_off"}
_REMEDIES = {
    "no_steps": "ask_something",
    "few_steps": "go_on",
    "no_baseline": "plain_comes",
    "stale_baseline": "plain_comes",
    "wide_interval": "too_noisy",
}


def better_number(
    buckets: Sequence[CostBucket],
    judged: Sequence[int],
    accepted: Sequence[int],
    limit: int,
    now: float | None,
) -> Advice | None:
    """An estimate of the number of drafts that would give most, where that is not the limit and clearly more than
    `now`, the measured speedup. In the bucket with most turns; the chance of a place is accepted / judged."""
    if now is None or not buckets:
        return None
    bucket = max(buckets, key=lambda each: each.steps)
    total = sum(each.steps for each in bucket.by_drafts)
    drafting = sum(each.steps for each in bucket.by_drafts if each.num_drafts)
    if not drafting or not bucket.plain_s:
        return None
    share = drafting / total
    best: tuple[float, int] = (now * BETTER, 0)
    for each in bucket.by_drafts:
        if not 0 < each.num_drafts < limit or each.steps < ENOUGH_STEPS:
            continue
        hoped = _hoped(judged, accepted, each.num_drafts)
        if hoped is None:
            continue
        took = bucket.draft_s + share * each.step_s + (1.0 - share) * bucket.plain_s
        best = max(best, ((1.0 + share * hoped) * bucket.plain_s / took, each.num_drafts))
    return {"code": "estimate_fewer", "num_drafts": best[1], "speedup": best[0]} if best[1] else None


def _hoped(judged: Sequence[int], accepted: Sequence[int], count: int) -> float | None:
    """How many of so many drafts are accepted; None where a place was judged too rarely to say."""
    survival, hoped = 1.0, 0.0
    for place in range(count):
        if place >= len(judged) or judged[place] < NEEDED_JUDGED:
            return None
        survival *= accepted[place] / judged[place]
        hoped += survival
    return hoped
