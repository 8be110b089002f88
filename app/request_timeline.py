"""The course of one request on one clock: seconds since the server received it.

Owns the join of what the engine stamped with what the server saw, the words for why a request ended, and the phases
between the marks. Knows nothing of how either is stored or shown. Invariants: a mark that was not reached, or that
nobody told, is None; phases follow one another without a gap and end where the request ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.outputs import RequestProgress, RequestTiming

STOP_CAUSES = (
    "end_token", "stop_token", "stop_string", "grammar", "computed", "max_tokens", "context", "cancelled",
    "client_gone", "engine_gone", "engine_error", "invalid_grammar",
)  # fmt: skip

ENGINE, SERVER = "engine", "server"  # whose clock the marks between arrival and the last token are from


@dataclass(frozen=True, slots=True)
class ServerMarks:
    """What the server saw, in seconds since it received the request; received_t by the wall clock.

    prefill_s: when the engine first told of the prompt. preempted: the engine told that its blocks were taken.
    """

    received_t: float
    end_s: float
    prefill_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


def timeline(
    marks: ServerMarks, timing: RequestTiming | None, progress: RequestProgress | None, *, num_samples: int
) -> dict[str, Any]:
    """The course, by the engine's stamps where it told them, else by what the server saw."""
    told = timing is not None and timing.arrival_t is not None
    course = _engine_marks(marks, timing) if told and timing is not None else _server_marks(marks, progress)
    course |= {
        "received_t": marks.received_t,
        "end_s": marks.end_s,
        "num_samples": num_samples,
        "last_progress": None if progress is None else _progress(progress),
    }
    return {**course, "phases": phases(course)}


def _engine_marks(marks: ServerMarks, timing: RequestTiming) -> dict[str, Any]:
    assert timing.arrival_t is not None, "asked only of an engine that tells it"
    offset = min(max(0.0, timing.arrival_t - marks.received_t), marks.end_s)

    def at(*parts: float | None) -> float | None:
        known = [part for part in parts if part is not None]
        return offset + sum(known) if len(known) == len(parts) else None

    shifted = {"start_s", "end_s", "t_s", "resumed_s"}

    def entry(part: Any) -> dict[str, Any]:
        values = dataclasses.asdict(part)
        return {name: at(value) if name in shifted else value for name, value in values.items()}

    return {
        "clock": ENGINE,
        "queued_s": offset,
        "scheduled_s": at(timing.queue_s),
        "first_token_s": at(timing.queue_s, timing.prefill_s),
        "last_token_s": at(timing.queue_s, timing.prefill_s, timing.decode_s),
        "engine_end_s": at(timing.end_s),
        "wait": None if timing.wait is None else dataclasses.asdict(timing.wait),
        "chunks": [entry(chunk) for chunk in timing.chunks],
        "preemptions": [entry(preemption) for preemption in timing.preemptions],
        "decode": {
            "steps": timing.decode_steps,
            "others_mean": timing.others_mean,
            "others_max": timing.others_max,
            "others_prompt_tokens": timing.others_prompt_tokens,
        },
    }


def _server_marks(marks: ServerMarks, progress: RequestProgress | None) -> dict[str, Any]:
    """Without the engine's stamps: it did not live to tell them, or the request still runs."""
    reached = marks.prefill_s if marks.prefill_s is not None else marks.first_token_s
    return {
        "clock": SERVER,
        "queued_s": 0.0 if progress is not None or reached is not None else None,
        "scheduled_s": reached,
        "first_token_s": marks.first_token_s,
        "last_token_s": marks.last_token_s,
        "engine_end_s": None,
        "wait": None,
        "chunks": [],
        "preemptions": [],
        "decode": None,
    }


def _progress(progress: RequestProgress) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(progress).items() if name != "request_id"}


def phases(course: dict[str, Any]) -> list[dict[str, Any]]:
    """What it was doing when: "server" (on its way to the engine), "held" (its grammar, or its first sample), "queue",
    "prefill", "decode", "preempted", and "delivery" (the last token is made, the end not told yet)."""
    end = course["end_s"]
    held = (course["wait"] or {}).get("held_s", 0.0)
    queued = course["queued_s"]
    joined = None if queued is None else min(queued + held, end)
    marks = [
        ("server", queued),
        ("held", joined),
        ("queue", course["scheduled_s"]),
        ("prefill", course["first_token_s"]),
        ("decode", course["last_token_s"]),
        ("delivery", end),
    ]
    found: list[dict[str, Any]] = []
    start = 0.0
    for name, until in marks:
        stop = end if until is None else min(max(start, until), end)
        found += _cut(name, start, stop, course["preemptions"])
        if until is None:
            break
        start = stop
    return found


def _cut(name: str, start: float, stop: float, preemptions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A phase with the times out of which it was without its blocks."""
    parts: list[dict[str, Any]] = []
    at = start

    def add(part: str, until: float) -> None:
        nonlocal at
        if until > at:
            parts.append({"name": part, "start_s": at, "end_s": until})
            at = until

    for preemption in preemptions:
        back = stop if preemption["resumed_s"] is None else min(preemption["resumed_s"], stop)
        if preemption["t_s"] < stop and back > at:
            add(name, max(at, preemption["t_s"]))
            add("preempted", back)
    add(name, stop)
    return parts
