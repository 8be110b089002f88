"""Long offline work as a process: `python -m engine.jobs NAME`, arguments as one JSON object on stdin.

Owns the protocol. stdout holds JSON lines {"stage", "done", "total", "message"}; the last one's stage is "done" (with
"result"), "failed" (exit status 1) or "stopped" (exit status 3). SIGTERM or SIGINT stop at the next safe point; the
same call again goes on from there. Invariant: exactly one last line, whatever happens short of SIGKILL.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

from engine.checkpoint import CheckpointError
from engine.config import ConfigError
from engine.vocab import VocabError

JOBS: dict[str, str] = {
    "quantize": "engine.train.quantize:quantize",
    "train-drafter": "engine.train.drafter:train_drafter",
}

EXIT_FAILED, EXIT_STOPPED = 1, 3
_SECONDS_BETWEEN_LINES = 1.0

Report = Callable[[str, int, int, str], None]  # stage, done, total, message; raises `Stopped` once that is wanted


class Stopped(Exception):
    """The job was asked to stop, and what it has done is kept."""


class Reporter:
    """Writes progress as lines, the same stage and count at most once a second, and raises where a stop is wanted."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: tuple[str, int, int] = ("", 0, 0)
        self._written_at = 0.0
        self.stop_wanted = False

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """A signal handler."""
        self.stop_wanted = True

    def __call__(self, stage: str, done: int, total: int, message: str) -> None:
        """See `Report`."""
        if self.stop_wanted:
            raise Stopped
        now = time.monotonic()
        if (stage, done, total) == self._last and now - self._written_at < _SECONDS_BETWEEN_LINES:
            return
        self._last, self._written_at = (stage, done, total), now
        self.line({"stage": stage, "done": done, "total": total, "message": message})

    def line(self, values: dict[str, Any]) -> None:
        """One line, at once."""
        self._stream.write(json.dumps(values, ensure_ascii=False) + "\n")
        self._stream.flush()

    @property
    def count(self) -> dict[str, int]:
        """How far the last line said the job was."""
        return {"done": self._last[1], "total": self._last[2]}


def run_job(name: str, text: str, reporter: Reporter) -> int:
    """Runs the job with its arguments, a JSON object in `text`. Returns the exit status."""
    try:
        result = _resolve(name)(_arguments(text), reporter)
    except Stopped:
        message = "stopped; the same call again goes on from here"
        reporter.line({"stage": "stopped", **reporter.count, "message": message})
        return EXIT_STOPPED
    except BrokenPipeError:  # nobody listens any more; what is done is kept
        return EXIT_STOPPED
    except (MemoryError, ConfigError, CheckpointError, VocabError) as error:
        return _failed(reporter, str(error) or type(error).__name__)
    except Exception as error:
        if type(error).__name__ not in ("Refusal", "LoadError"):  # their modules import torch: known by name
            traceback.print_exc(file=sys.stderr)
            return _failed(reporter, f"{type(error).__name__}: {error}")
        return _failed(reporter, str(error))
    message = str(result.pop("message", "finished"))
    reporter.line({"stage": "done", **reporter.count, "message": message, "result": result})
    return 0


def _failed(reporter: Reporter, message: str) -> int:
    reporter.line({"stage": "failed", **reporter.count, "message": message})
    return EXIT_FAILED


def _resolve(name: str) -> Callable[[dict[str, Any], Report], dict[str, Any]]:
    if name not in JOBS:
        raise ConfigError(f"unknown job {name!r}; known are {', '.join(JOBS)}")
    module, _, attribute = JOBS[name].partition(":")
    job: Callable[[dict[str, Any], Report], dict[str, Any]] = getattr(importlib.import_module(module), attribute)
    return job


def _arguments(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the arguments on stdin are not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ConfigError(f"the arguments on stdin are a {type(values).__name__}, expected a JSON object")
    return values


def main() -> int:
    """Runs the job that the command line names; what others print to stdout goes to stderr."""
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reporter = Reporter(lines)
    signal.signal(signal.SIGTERM, reporter.stop)
    signal.signal(signal.SIGINT, reporter.stop)
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    return run_job(name, sys.stdin.read(), reporter)


if __name__ == "__main__":
    sys.exit(main())
