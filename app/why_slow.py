"""What held a request up, from its figures and its course: codes and numbers, the most costly first.

Owns which causes are worth a word. Knows no language: whoever shows them has the words. Invariants: nothing is said
that was not measured; a cause that cost less than WORTH_S, or a small share of the whole, is not named.
"""

from __future__ import annotations

from typing import Any

from db.rows import RequestRow

WORTH_S = 0.1
WORTH_SHARE = 0.08  # of the time from reception to end
POOR_ACCEPTANCE = 0.3  # of what was drafted
LONG_ANSWER_SHARE = 0.5

Reason = dict[str, Any]


def why_slow(row: RequestRow, course: dict[str, Any]) -> list[Reason]:
    """The causes. Each has a `code`, the `seconds` that it cost where these are known, and the numbers around it."""
    total = course["end_s"]
    least = max(WORTH_S, WORTH_SHARE * total)
    phases = _sums(course)
    found = [
        *_waits(course, phases),
        _prefill(row, course, phases),
        _preempted(row, phases),
        _answer(row, course, phases),
    ]
    named = [each for each in found if each is not None and each["seconds"] >= least]
    named.sort(key=lambda each: -each["seconds"])
    return [*named, *_beside(row, course, phases, least)]


def _sums(course: dict[str, Any]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for phase in course["phases"]:
        sums[phase["name"]] = sums.get(phase["name"], 0.0) + phase["end_s"] - phase["start_s"]
    return sums


def _waits(course: dict[str, Any], phases: dict[str, float]) -> list[Reason | None]:
    """Where the queue's cause is not told in full, the last word of the engine on it counts."""
    wait, last = course["wait"], course["last_progress"] or {}
    found: list[Reason | None] = [
        {"code": "before_engine", "seconds": phases.get("server", 0.0)},
        {"code": "held", "seconds": phases.get("held", 0.0)},
    ]
    if wait is not None and course["scheduled_s"] is not None:
        numbers = {"ahead": wait["num_ahead"], "running": wait["num_running"]}
        causes = ("blocks", "slots", "budget")
        found += [{"code": f"waited_{cause}", "seconds": wait[f"{cause}_s"], **numbers} for cause in causes]
    elif last.get("state") == "waiting" or wait is not None:
        numbers = {"ahead": last.get("ahead", (wait or {}).get("num_ahead", 0))}
        code = f"waited_{last['cause']}" if last.get("cause") else "waited"
        found.append({"code": code, "seconds": phases.get("queue", 0.0), **numbers})
    return found


def _prefill(row: RequestRow, course: dict[str, Any], phases: dict[str, float]) -> Reason | None:
    tokens = (row.num_prompt_tokens or 0) - (row.num_cached_tokens or 0)
    again = sum(chunk["num_tokens"] for chunk in course["chunks"] if chunk["recomputed"])
    return {
        "code": "prefill",
        "seconds": phases.get("prefill", 0.0),
        "tokens": tokens,
        "chunks": len(course["chunks"]),
        "again": again,
    }


def _preempted(row: RequestRow, phases: dict[str, float]) -> Reason | None:
    times = row.num_preemptions or 0
    return {"code": "preempted", "seconds": phases.get("preempted", 0.0), "times": times} if times else None


def _answer(row: RequestRow, course: dict[str, Any], phases: dict[str, float]) -> Reason | None:
    """A long answer is no fault; where it took most of the time, that is what there is to say."""
    seconds = phases.get("decode", 0.0)
    if seconds < LONG_ANSWER_SHARE * course["end_s"]:
        return None
    return {"code": "answer", "seconds": seconds, "tokens": row.num_output_tokens or 0, "rate": row.tokens_per_s}


def _beside(row: RequestRow, course: dict[str, Any], phases: dict[str, float], least: float) -> list[Reason]:
    """What made each step longer; how much of the time that was, nobody measured."""
    decode = course["decode"]
    found: list[Reason] = []
    if phases.get("decode", 0.0) < least:
        return found
    if decode is not None and (decode["others_mean"] or 0.0) >= 0.5:
        found.append({"code": "shared", "others": decode["others_mean"], "most": decode["others_max"]})
    if decode is not None and decode["others_prompt_tokens"] > 0:
        found.append({"code": "others_prompts", "tokens": decode["others_prompt_tokens"]})
    if row.drafted and (row.accepted or 0) / row.drafted < POOR_ACCEPTANCE:
        found.append({"code": "poor_drafts", "accepted": row.accepted or 0, "drafted": row.drafted})
    return found
