"""A job in this process, as the app runs it in one of its own, and the lines that it tells."""

from __future__ import annotations

import io
import json
import signal
from typing import Any

from engine.jobs import Reporter, run_job


class Lines(io.StringIO):
    """Collects the lines; sends this process a real SIGTERM behind the line whose stage and count are `stop_at`."""

    def __init__(self, stop_at: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.stop_at = stop_at
        self.seen: list[dict[str, Any]] = []

    def write(self, text: str) -> int:
        self.seen.append(json.loads(text))
        if self.stop_at == (self.seen[-1]["stage"], self.seen[-1]["done"]):
            signal.raise_signal(signal.SIGTERM)
        return len(text)


def run(
    kind: str, arguments: dict[str, Any], stop_at: tuple[str, int] | None = None
) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of a job of that kind, and what it told. stop_at: see `Lines`."""
    lines = Lines(stop_at)
    reporter = Reporter(lines)
    before = signal.signal(signal.SIGTERM, reporter.stop)
    try:
        status = run_job(kind, json.dumps(arguments), reporter)
    finally:
        signal.signal(signal.SIGTERM, before)
    return status, lines.seen
