"""What issue 5 promised, held against one run of bench/compare.py.

Owns the promises and their numbers. Invariant: a promise that the run could not be held against says "not measured",
and is never counted as kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.compare_results import DECODE, HTTP, LONG_CONTEXT, OURS, PREFILL, VERIFY_ROWS, Results, Task

ROOF_SHARES = {DECODE: 0.85, HTTP: 0.75}
RATIOS = {
    Task(DECODE, 16): 5.0,
    Task(DECODE, 64): 5.0,
    Task(HTTP, 16): 4.0,
    Task(HTTP, 64): 4.0,
    Task(PREFILL, 512): 2.5,
    Task(PREFILL, 2048): 2.5,
}
NEXT_PEER, NEXT_PEER_RATIO = "OpenVINO", 2.5
VERIFY_COSTS = {0.0: 1.15, 1.0: 1.25}
CONTEXT_COST = 1.15
SAME_INSTRUCTIONS_RATIO = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """A promise beside what was found. reached: None where nothing was measured."""

    promise: str
    found: str
    reached: bool | None


def targets(results: Results) -> list[Target]:
    """All that apply to a run."""
    if results.facts.get("march") is not None:
        return [_over_best(results, task, SAME_INSTRUCTIONS_RATIO) for task in results.tasks() if task.kind != HTTP]
    return [
        *(_share(results, Task(kind, 1), least) for kind, least in ROOF_SHARES.items()),
        _over(results, Task(DECODE, 1), NEXT_PEER, NEXT_PEER_RATIO),
        *(_over_best(results, task, least) for task, least in RATIOS.items()),
        *(_verify(results, temperature, most) for temperature, most in VERIFY_COSTS.items()),
        _context(results),
    ]


def _share(results: Results, task: Task, least: float) -> Target:
    roof, speed = results.roof(), results.speed(task, OURS)
    promise = f"{task.title}: at least {least:.0%} of the bandwidth roof"
    if roof is None or speed is None:
        return _unknown(promise)
    return Target(promise, f"{speed / roof:.0%}: {speed:.0f} of {roof:.0f} tok/s", speed / roof >= least)


def _over(results: Results, task: Task, peer: str, least: float) -> Target:
    promise, ratio = f"{task.title}: at least {least:g} times {peer}", results.ratio(task, peer)
    return _unknown(promise) if ratio is None else Target(promise, f"{ratio:.2f}", ratio >= least)


def _over_best(results: Results, task: Task, least: float) -> Target:
    promise, best = f"{task.title}: at least {least:g} times the best peer", results.best_peer(task)
    ratio = results.ratio(task, best[0]) if best else None
    if best is None or ratio is None:
        return _unknown(promise)
    return Target(promise, f"{ratio:.2f} ({best[0]})", ratio >= least)


def _verify(results: Results, temperature: float, most: float) -> Target:
    promise = f"verifying {VERIFY_ROWS} tokens at temperature {temperature:g}: at most {most:g} single-token steps"
    cost = results.verify_cost(temperature)
    return _unknown(promise) if cost is None else Target(promise, f"{cost:.2f}", cost <= most)


def _context(results: Results) -> Target:
    promise = f"{LONG_CONTEXT:,} tokens of context: at most {CONTEXT_COST:g} times reading their keys and values"
    cost = results.context_cost()
    return _unknown(promise) if cost is None else Target(promise, f"{cost:.2f}", cost <= CONTEXT_COST)


def _unknown(promise: str) -> Target:
    return Target(promise, "not measured", None)
