"""Training a drafter for a model on disk: what may be asked for, where it lands, and the run itself.

Owns the drafters' ids, the place where they grow (tmp/train-drafter/) and the way into the data folder's drafters.
Knows neither the arithmetic (engine.jobs does it) nor HTTP or rows of jobs. Invariant: a drafter's folder appears whole
or not at all and replaces its older self; what a stopped run has done waits for the same wish to come again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.catalog import Catalog
from app.catalog.download import check_disk
from app.catalog.entry import check_id, make_id
from app.catalog.local import LocalModel
from app.engine_jobs import EngineJobError, JobLine, run_engine_job
from app.quantize import PARTIAL, alone

JOB = "train-drafter"
KINDS = ("eagle", "medusa")
FOLDER = "drafters"  # of the data folder
_BYTES_PER_TOKEN = 8  # of text, at the least


class TrainError(Exception):
    """A wish that cannot be granted. `param` names the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class TrainWish:
    """Which model to make a drafter for, and how. tokens: of answers to learn from. minutes: that this stretch may
    take, None for all passes. texts: a file of the operator's own. start_from: a drafter's folder. output: another
    place than the data folder's drafters. output_id: None for MODEL-KIND.
    """

    model_id: str
    kind: str = "eagle"
    tokens: int = 1_000_000
    minutes: float | None = None
    passes: int = 3
    texts: Path | None = None
    seed: int = 0
    start_from: Path | None = None
    output_id: str | None = None
    output: Path | None = None

    @property
    def made_id(self) -> str:
        """The id of the drafter. Raises CatalogError for one that is none."""
        if self.output_id is not None:
            return check_id(self.output_id)
        return make_id(f"{self.model_id}-{self.kind}")


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """A wish that was checked. staging: where a stretch leaves the drafter; final: where it is moved."""

    wish: TrainWish
    model: LocalModel
    output_id: str
    staging: Path
    final: Path


class DrafterTrainer:
    """Checks wishes and runs them. `argv` is the command that starts an engine job."""

    def __init__(self, home: Path, catalog: Catalog, argv: Sequence[str]) -> None:
        self._home = home
        self._catalog = catalog
        self._argv = argv

    def plan(self, wish: TrainWish) -> TrainPlan:
        """Check what can be known before anything is started. Raises CatalogError (UnknownModelError), TrainError,
        DiskSpaceError."""
        model = self._catalog.resolve(wish.model_id)
        if model.info is None:
            raise TrainError(f"{model.id} cannot be read: {model.error}", "id")
        output_id = wish.made_id
        if output_id.endswith(PARTIAL):
            raise TrainError(f"{output_id!r}: ids that end in {PARTIAL} are kept for unfinished work", "output_id")
        for name, path, is_there in (("texts", wish.texts, Path.is_file), ("start_from", wish.start_from, Path.is_dir)):
            if path is not None and not _holds(is_there, path):
                kind = "text file" if name == "texts" else "folder of a drafter"
                raise TrainError(f"{name}: there is no {kind} {path}", name)
        final = wish.output or self._home / FOLDER / output_id
        if wish.output is not None and not wish.output.absolute().parent.is_dir():
            raise TrainError(f"output: there is no folder {wish.output.absolute().parent} to write into", "output")
        if final.exists() and not (final / "config.json").is_file():
            raise TrainError(f"output: {final} is there already and is no drafter; choose another", "output")
        staging = self._home / "tmp" / JOB / output_id
        staging.parent.mkdir(parents=True, exist_ok=True)
        check_disk(staging.parent, wish.tokens * _BYTES_PER_TOKEN, output_id)
        return TrainPlan(wish, model, output_id, staging, final)

    async def run(
        self, plan: TrainPlan, on_line: Callable[[JobLine], None], on_log: Callable[[str], None]
    ) -> dict[str, Any]:
        """Train, or go on where an earlier run of the same wish stopped. Cancelled, it stops at a checkpoint.

        Returns {"drafter_id", "model_id", "path", "size_bytes", "finished", "figures"}; path "" where the time was over
        before there was anything to make a drafter of. Raises EngineJobError, EngineJobStopped, OSError.
        """
        with alone(plan.staging, plan.output_id):
            shutil.rmtree(plan.staging, ignore_errors=True)  # a stretch's drafter that was not moved: it is made anew
            figures = await run_engine_job(
                self._argv,
                JOB,
                arguments(plan),
                kernel_cache=self._home / "kernels",
                on_line=lambda line: on_line(_told(line, str(plan.staging), str(plan.final))),
                on_log=on_log,
            )
            made = bool(figures["output"])
            size = await asyncio.to_thread(_install, plan) if made else 0
        figures["output"] = str(plan.final) if made else ""
        return {
            "drafter_id": plan.output_id,
            "model_id": plan.model.id,
            "path": figures["output"],
            "size_bytes": size,
            "finished": bool(figures.get("finished", True)),
            "figures": figures,
        }


def arguments(plan: TrainPlan) -> dict[str, Any]:
    """What the process is told; see engine.jobs."""
    wish = plan.wish
    return {
        "model": str(plan.model.path),
        "model_id": plan.model.id,
        "output": str(plan.staging),
        "kind": wish.kind,
        "tokens": wish.tokens,
        "minutes": wish.minutes,
        "passes": wish.passes,
        "texts": None if wish.texts is None else str(wish.texts.absolute()),
        "seed": wish.seed,
        "warm_start": None if wish.start_from is None else str(wish.start_from.absolute()),
    }


def _install(plan: TrainPlan) -> int:
    """Move the drafter to its place, instead of the older one there. Returns its bytes."""
    if not plan.staging.is_dir():
        raise EngineJobError(f"the work said that it is done, but {plan.staging} is not there")
    plan.final.parent.mkdir(parents=True, exist_ok=True)
    coming, old = (plan.final.with_name(f".{plan.final.name}.{word}") for word in ("coming", "old"))
    for leftover in (coming, old):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.move(plan.staging, coming)  # perhaps from another disk
    if plan.final.exists():
        plan.final.rename(old)
    coming.rename(plan.final)
    shutil.rmtree(old, ignore_errors=True)
    return sum(path.stat().st_size for path in plan.final.iterdir())


def _told(line: JobLine, staging: str, final: str) -> JobLine:
    """The last line names the output, which will have been moved by the time it is read."""
    return replace(line, message=line.message.replace(staging, final)) if line.stage == "done" else line


def _holds(is_there: Callable[[Path], bool], path: Path) -> bool:
    try:
        return is_there(path)
    except OSError:  # too long a name, a folder that may not be entered
        return False
