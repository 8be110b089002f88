"""`pizarra train-drafter`: trains a drafter for a model, with progress in the terminal.

Owns the words before and after; `app.cli_jobs` has the progress line and the signals. Knows nothing of the arithmetic.
Invariant: what is refused before the work begins, and what fails in it, end the command with one sentence.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable

from app.catalog import Catalog
from app.catalog.download import PullError
from app.catalog.entry import CatalogError
from app.cli_jobs import run_in_terminal
from app.settings import Settings
from app.train_drafter import JOB, DrafterTrainer, TrainError, TrainWish
from engine.core.sizing import format_bytes


def run_train_drafter(wish: TrainWish, settings: Settings, catalog: Catalog, fail: Callable[[str], None]) -> None:
    """Train the drafter and print its figures. `fail` ends the command with a message."""
    trainer = DrafterTrainer(settings.home, catalog, settings.jobs_argv)
    try:
        plan = trainer.plan(wish)
    except (TrainError, CatalogError, PullError, OSError) as error:
        fail(str(error))
        return
    print(f"{plan.output_id}: drafts for {plan.model.id}. Ctrl+C stops at a checkpoint.", file=sys.stderr)
    partial = settings.home / "tmp" / JOB / f"{wish.made_id}.partial"
    result = run_in_terminal(functools.partial(trainer.run, plan), partial, TrainError, fail)
    if result is None:
        return
    if not result["path"]:
        print(f"{result['drafter_id']}: no drafter yet, {result['figures']['reason']}.")
        return
    for name, value in result["figures"].items():
        print(f"{name}: {value if isinstance(value, str | int | float) else json.dumps(value)}")
    print(f"{result['drafter_id']} is on disk: {result['path']} ({format_bytes(result['size_bytes'])})")
    if not result["finished"]:
        print("Not all passes are made yet: the same command trains on.")
