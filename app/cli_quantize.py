"""`pizarra quantize`: makes a quantised model, with progress in the terminal.

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
from app.quantize import QuantizeError, Quantizer, QuantizeWish
from app.settings import Settings
from engine.core.sizing import format_bytes


def run_quantize(wish: QuantizeWish, settings: Settings, catalog: Catalog, fail: Callable[[str], None]) -> None:
    """Make the model and print its figures. `fail` ends the command with a message."""
    quantizer = Quantizer(settings.home, catalog, settings.jobs_argv)
    try:
        plan = quantizer.plan(wish)
    except (QuantizeError, CatalogError, PullError, OSError) as error:
        fail(str(error))
        return
    print(f"{plan.output_id}: {wish.bits} bits of {plan.model.id}. Ctrl+C stops at a checkpoint.", file=sys.stderr)
    partial = settings.home / "tmp" / "quantize" / f"{wish.made_id}.partial"
    result = run_in_terminal(functools.partial(quantizer.run, plan), partial, QuantizeError, fail)
    if result is None:
        return
    for name, value in result["figures"].items():
        print(f"{name}: {value if isinstance(value, str | int | float) else json.dumps(value)}")
    print(f"{result['model_id']} is on disk: {result['path']} ({format_bytes(result['size_bytes'])})")
