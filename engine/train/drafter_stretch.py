"""The time of a drafter's training: when a stretch is over, and what all stretches of the same work have taken.

Owns the clock and one small file beside the work. Knows nothing of what the time is spent on. Invariant: a stretch's
time runs from its first moment, whatever is done in it, and is counted however the stretch ends, short of SIGKILL.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from engine.train.refusal import Refusal

FILE = "time.json"


class TimeOver(Exception):
    """The time of a stretch is over before there is anything to make a drafter of. The message says at what it was."""


class Stretch:
    """One that begins now. minutes: None for no limit. folder: where the work is kept."""

    def __init__(self, folder: Path, minutes: float | None) -> None:
        self._path = folder / FILE
        self._limit_s = None if minutes is None else 60 * minutes
        self._start = now()
        self._earlier_s = self._read()

    @property
    def seconds(self) -> float:
        """Of this stretch so far and of all before it."""
        return self._earlier_s + now() - self._start

    def is_over(self) -> bool:
        """Whether its time is."""
        return self._limit_s is not None and now() - self._start >= self._limit_s

    def check(self, doing: str) -> None:
        """Raises TimeOver once its time is over."""
        if self.is_over():
            raise TimeOver(doing)

    def keep(self) -> None:
        """Writes the time down for later stretches."""
        writing = self._path.with_suffix(".tmp")
        writing.write_text(json.dumps({"seconds": round(self.seconds, 1)}) + "\n", encoding="utf-8")
        writing.replace(self._path)

    def _read(self) -> float:
        if not self._path.is_file():
            return 0.0
        try:
            return float(json.loads(self._path.read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refusal(
                f"{self._path}: the time of earlier stretches cannot be read ({error}); remove the file to count anew"
            ) from error


def now() -> float:
    """Seconds of a clock that only goes forward."""
    return time.monotonic()
