"""`pizarra train-drafter`: trains a drafter for a model, with progress in the terminal.

Owns the signals, the progress line and the words for the end. Knows nothing of the arithmetic. Invariant: Ctrl+C and
SIGTERM stop the work at a checkpoint, and what is said then is how to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from app.catalog import Catalog
from app.catalog.download import PullError
from app.catalog.entry import CatalogError
from app.cli_quantize import STOPPED_EXIT_CODE
from app.engine_jobs import EngineJobError, EngineJobStopped, JobLine
from app.settings import Settings
from app.train_drafter import JOB, DrafterTrainer, TrainError, TrainPlan, TrainWish
from engine.core.sizing import format_bytes


def run_train_drafter(wish: TrainWish, settings: Settings, catalog: Catalog, fail: Callable[[str], None]) -> None:
    """Train the drafter and print its figures. `fail` ends the command with a message."""
    trainer = DrafterTrainer(settings.home, catalog, settings.jobs_argv)
    try:
        plan = trainer.plan(wish)
        print(f"{plan.output_id}: drafts for {plan.model.id}. Ctrl+C stops at a checkpoint.", file=sys.stderr)
        asyncio.run(_run(trainer, plan))
    except (TrainError, CatalogError, PullError, EngineJobError, EngineJobStopped, OSError) as error:
        _end_line()
        fail(str(error))
    except KeyboardInterrupt:
        _end_line()
        print(f"pizarra: stopped{_kept(settings.home, wish.made_id)}", file=sys.stderr)
        raise typer.Exit(STOPPED_EXIT_CODE) from None


async def _run(trainer: DrafterTrainer, plan: TrainPlan) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)  # the second time it ends the process that writes the checkpoint
    try:
        result = await trainer.run(plan, _Progress().show, _show_log)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    _end_line()
    for name, value in result["figures"].items():
        print(f"{name}: {value if isinstance(value, str | int | float) else json.dumps(value)}")
    print(f"{result['drafter_id']} is on disk: {result['path']} ({format_bytes(result['size_bytes'])})")
    if not result["finished"]:
        print("Not all passes are made yet: the same command trains on.")


def _kept(home: Path, output_id: str) -> str:
    partial = home / "tmp" / JOB / f"{output_id}.partial"
    return f". The same command goes on from there; what is done lies in {partial}" if partial.exists() else ""


class _Progress:
    """A line that is written over in a terminal; one line for each stage and measurement anywhere else."""

    def __init__(self) -> None:
        self._stage = ""

    def show(self, line: JobLine) -> None:
        if line.stage == "failed":
            return  # told as the command's error
        share = f" {line.done} of {line.total}" if line.total else ""
        text = f"{line.stage}{share} {line.message}".rstrip()
        if line.stage == "measured":
            _end_line()
            print(text, file=sys.stderr, flush=True)
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
