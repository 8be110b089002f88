"""A long engine job in the terminal: its progress, its end, and Ctrl+C.

Knows neither what the job makes nor how. Invariant: the progress line never stays behind what is printed after it, and
the first Ctrl+C asks the job to keep what is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import typer

from app.catalog.download import PullError
from app.catalog.entry import CatalogError
from app.engine_jobs import EngineJobError, EngineJobStopped, JobLine

STOPPED_EXIT_CODE = 130  # as of a command that Ctrl+C ended
MEASURED = "measured"  # the stage whose lines stay on the screen

RunJob = Callable[[Callable[[JobLine], None], Callable[[str], None]], Awaitable[dict[str, Any]]]


def run_in_terminal(
    run: RunJob, partial: Path, refusal: type[Exception], fail: Callable[[str], None]
) -> dict[str, Any] | None:
    """Run a job and return its result; None where `fail` came back. run: gets who takes lines and log. partial: where
    unfinished work lies. refusal: what the job's own module raises. `fail` ends the command with a message."""
    try:
        return asyncio.run(_run(run))
    except (refusal, CatalogError, PullError, EngineJobError, EngineJobStopped, OSError) as error:
        _end_line()
        fail(str(error))
    except KeyboardInterrupt:
        _end_line()
        kept = f". The same command goes on from there; what is done lies in {partial}" if partial.exists() else ""
        print(f"pizarra: stopped{kept}", file=sys.stderr)
        raise typer.Exit(STOPPED_EXIT_CODE) from None
    return None


async def _run(run: RunJob) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)  # the second time it ends the process that writes the checkpoint
    try:
        result = await run(_Progress().show, _show_log)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    _end_line()
    return result


class _Progress:
    """A line that is written over in a terminal; one line for each stage and measurement anywhere else."""

    def __init__(self) -> None:
        self._stage = ""

    def show(self, line: JobLine) -> None:
        if line.stage == "failed":
            return  # told as the command's error
        share = f" {line.done} of {line.total}" if line.total else ""
        text = f"{line.stage}{share} {line.message}".rstrip()
        if line.stage == MEASURED:
            _show_log(text)
            return
        if sys.stderr.isatty():
            print(f"\r\033[K{text[:200]}", end="", file=sys.stderr, flush=True)
        elif line.stage != self._stage:
            print(text, file=sys.stderr, flush=True)
        self._stage = line.stage


def _show_log(text: str) -> None:
    _end_line()
    print(text, file=sys.stderr, flush=True)


def _end_line() -> None:
    with contextlib.suppress(ValueError):
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
