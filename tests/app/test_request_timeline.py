"""Phases without the engine's word, and what is said of causes too small to matter."""

from __future__ import annotations

from typing import Any

import pytest

from app.request_settings import RequestSettings
from app.request_timeline import ServerMarks, timeline
from app.why_slow import why_slow
from db.rows import RequestRow
from engine.core.outputs import Preemption, QueueWait, RequestProgress, RequestTiming


def row(**figures: Any) -> RequestRow:
    return RequestRow("q", "tiny", "chat", "finished", 1000.0, **figures)


def names(course: dict[str, Any]) -> list[tuple[str, float, float]]:
    return [(phase["name"], phase["start_s"], phase["end_s"]) for phase in course["phases"]]


def test_without_the_engines_word_the_server_tells_what_it_saw() -> None:
    waiting = RequestProgress("q", "waiting", total=90, ahead=3, cause="slots")
    course = timeline(ServerMarks(1000.0, 4.0), None, waiting, num_samples=1)
    assert (course["clock"], names(course)) == ("server", [("queue", 0.0, 4.0)])
    assert why_slow(row(), course) == [{"code": "waited_slots", "seconds": 4.0, "ahead": 3}]
    course = timeline(ServerMarks(1000.0, 4.0, prefill_s=1.0, first_token_s=3.0), None, waiting, num_samples=1)
    assert names(course) == [("queue", 0.0, 1.0), ("prefill", 1.0, 3.0), ("decode", 3.0, 4.0)]
    nothing = timeline(ServerMarks(1000.0, 4.0), None, None, num_samples=1)
    assert names(nothing) == [("server", 0.0, 4.0)]


def test_time_without_blocks_is_cut_out_of_the_phase_it_fell_into() -> None:
    timing = RequestTiming(
        queue_s=1.0, prefill_s=1.0, decode_s=4.0, arrival_t=1000.5, wait=QueueWait(held_s=0.25),
        preemptions=[Preemption(1.5, 9, 1.75), Preemption(3.0, 40, 4.0)], decode_steps=3,
    )  # fmt: skip
    course = timeline(ServerMarks(1000.0, 7.0), timing, None, num_samples=1)
    assert names(course) == [
        ("server", 0.0, 0.5), ("held", 0.5, 0.75), ("queue", 0.75, 1.5), ("prefill", 1.5, 2.0),
        ("preempted", 2.0, 2.25), ("prefill", 2.25, 2.5), ("decode", 2.5, 3.5), ("preempted", 3.5, 4.5),
        ("decode", 4.5, 6.5), ("delivery", 6.5, 7.0),
    ]  # fmt: skip
    found = why_slow(row(num_preemptions=2, drafted=10, accepted=1, num_output_tokens=30), course)
    assert [(reason["code"], reason.get("seconds")) for reason in found] == [
        ("preempted", 1.25), ("prefill", 0.75), ("poor_drafts", None),
    ]  # fmt: skip
    assert found[0]["times"] == 2


def test_of_a_quick_request_nothing_is_said() -> None:
    timing = RequestTiming(queue_s=0.01, prefill_s=0.02, decode_s=0.03, arrival_t=1000.0, decode_steps=2, others_mean=9)
    course = timeline(ServerMarks(1000.0, 0.07), timing, None, num_samples=1)
    assert why_slow(row(), course) == []


@pytest.mark.parametrize(
    ("figures", "slow"),
    [
        ({"ttft_s": 1.9, "itl_p95_s": 0.2}, False),
        ({"ttft_s": 2.1}, True),
        ({"itl_p95_s": 0.3}, True),
        ({"num_preemptions": 1}, True),
        ({}, False),
    ],
)
def test_what_counts_as_slow(figures: dict[str, Any], slow: bool) -> None:
    assert RequestSettings(lambda: {"slow_ttft_s": None}).is_slow(row(**figures)) is slow


def test_settings_that_cannot_be_used_leave_the_defaults() -> None:
    settings = RequestSettings(lambda: {"store_bodies": "yes", "requests_retention_days": True, "slow_ttft_s": 5})
    assert (settings.store_bodies, settings.retention_s, settings.slow_ttft_s) == (False, 30 * 86400, 5)
