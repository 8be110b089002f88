"""Making a quantised model of one on disk: what may be asked for, where it lands, and the run itself.

Owns the outputs' ids, the place where they grow (tmp/quantize/) and the way into the data folder's models. Knows
neither the arithmetic (engine.jobs does it) nor HTTP or rows of jobs. Invariant: a model folder appears whole or not at
all, one run at a time makes it, and what a stopped run has done waits for the same wish to come again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.catalog import Catalog
from app.catalog.download import check_disk
from app.catalog.entry import check_id, make_id
from app.catalog.local import LocalModel, write_record
from app.engine_jobs import EngineJobError, JobLine, run_engine_job
from engine.checkpoint import CheckpointInfo
from engine.checkpoint.doctor import module_kind

JOB = "quantize"
METHODS = {"awq": "awq", "gptq": "gptq", "compressed-tensors": "gptq"}  # the search that a format's scales come from
PARTIAL = ".partial"
_UNTOUCHED = ("embedding", "head", "router")  # stay as they are
_UNTOUCHED_BYTES, _GROUP_BYTES = 2, 4  # of a number, and of a group's scale with its zero point


class QuantizeError(Exception):
    """A wish that cannot be granted. `param` names the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class QuantizeWish:
    """What to make of which model. method, output_id: None for the format's own and for one made from the rest.
    symmetric: GPTQ codes whose zero is the middle one. calibration, calibration_text: a text file or the text; with
    neither the model writes its own."""

    model_id: str
    format: str
    method: str | None = None
    bits: int = 4
    group_size: int = 128
    desc_act: bool = False
    symmetric: bool = False
    calibration: Path | None = None
    calibration_text: str | None = None
    output_id: str | None = None

    @property
    def made_id(self) -> str:
        """The id of what is made. Raises CatalogError for one that is none."""
        if self.output_id is not None:
            return check_id(self.output_id)
        width = "" if self.bits == 4 else f"-w{self.bits}"
        return make_id(f"{self.model_id}-{self.format}{width}-g{self.group_size}")


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """A wish that was checked. staging: where the output grows before it is moved into place."""

    wish: QuantizeWish
    model: LocalModel
    output_id: str
    staging: Path


class Quantizer:
    """Checks wishes and runs them. `argv` is the command that starts an engine job."""

    def __init__(self, home: Path, catalog: Catalog, argv: Sequence[str]) -> None:
        self._home = home
        self._catalog = catalog
        self._argv = argv

    def plan(self, wish: QuantizeWish) -> QuantizePlan:
        """Check what can be known before anything is started. Raises CatalogError (UnknownModelError), QuantizeError,
        DiskSpaceError."""
        model = self._catalog.resolve(wish.model_id)
        if model.info is None:
            raise QuantizeError(f"{model.id} cannot be read: {model.error}", "id")
        output_id = wish.made_id
        if output_id.endswith(PARTIAL):
            raise QuantizeError(f"{output_id!r}: ids that end in {PARTIAL} are kept for unfinished work", "output_id")
        if self._is_taken(output_id):
            raise QuantizeError(
                f"there is a model {output_id} already; delete it, or choose another id for the output", "output_id"
            )
        if wish.calibration is not None and not _is_file(wish.calibration):
            raise QuantizeError(f"calibration: there is no text file {wish.calibration}", "calibration")
        if wish.calibration is not None and wish.calibration_text is not None:
            raise QuantizeError("calibration and calibration_text are both given; give one of them", "calibration_text")
        staging = self._home / "tmp" / "quantize" / output_id
        staging.parent.mkdir(parents=True, exist_ok=True)
        check_disk(staging.parent, _expected_bytes(model.info, wish), output_id)
        return QuantizePlan(wish, model, output_id, staging)

    async def run(
        self, plan: QuantizePlan, on_line: Callable[[JobLine], None], on_log: Callable[[str], None]
    ) -> dict[str, Any]:
        """Make the model, or go on where an earlier run of the same wish stopped. Cancelled, it stops at a checkpoint.

        Returns {"model_id", "path", "size_bytes", "figures"}. Raises EngineJobError, EngineJobStopped, OSError.
        """
        with alone(plan.staging, plan.output_id):
            figures: dict[str, Any] = {}
            if not plan.staging.is_dir():  # else a run was complete and did not get to move it
                final = str(self._home / "models" / plan.output_id)
                figures = await run_engine_job(
                    self._argv,
                    JOB,
                    self._arguments(plan),
                    kernel_cache=self._home / "kernels",
                    on_line=lambda line: on_line(_told(line, str(plan.staging), final)),
                    on_log=on_log,
                )
                if "output" in figures:
                    figures["output"] = final
            made = await asyncio.to_thread(self._install, plan, figures)
        return {
            "model_id": made.id,
            "path": str(made.path),
            "size_bytes": made.size_bytes,
            "figures": figures,
        }

    def _arguments(self, plan: QuantizePlan) -> dict[str, Any]:
        """What the process is told; see engine.jobs."""
        wish = plan.wish
        calibration = wish.calibration.absolute() if wish.calibration is not None else None
        if wish.calibration_text is not None:
            calibration = plan.staging.with_name(f"{plan.output_id}.calibration.txt")
            calibration.write_text(wish.calibration_text, encoding="utf-8")
        return {
            "model": str(plan.model.path),
            "output": str(plan.staging),
            "format": wish.format,
            "method": wish.method or METHODS[wish.format],
            "bits": wish.bits,
            "group_size": wish.group_size,
            "desc_act": wish.desc_act,
            "symmetric": wish.symmetric,
            "calibration": None if calibration is None else str(calibration),
            "num_threads": None,
            "seed": 0,
        }

    def _install(self, plan: QuantizePlan, figures: dict[str, Any]) -> LocalModel:
        """Move what was made to the models, with a record of where it comes from."""
        if not plan.staging.is_dir():
            raise EngineJobError(f"the work said that it is done, but {plan.staging} is not there")
        record = {"kind": JOB, "source": f"{plan.model.id} ({plan.model.source})", "figures": figures}
        write_record(plan.staging, record)
        plan.staging.rename(self._home / "models" / plan.output_id)
        plan.staging.with_name(f"{plan.output_id}.calibration.txt").unlink(missing_ok=True)
        made = self._catalog.resolve(plan.output_id)
        if made.error is not None:
            raise EngineJobError(f"{made.id} was made, but it cannot be loaded: {made.error}")
        return made

    def _is_taken(self, output_id: str) -> bool:
        if self._catalog.entry(output_id) is not None or (self._home / "models" / output_id).exists():
            return True
        return any(model.id == output_id for model in self._catalog.local())


@contextmanager
def alone(staging: Path, output_id: str) -> Iterator[None]:
    """Nobody else makes this output meanwhile, be it a server's job or a command in a terminal."""
    fd = os.open(staging.with_name(f"{output_id}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EngineJobError(f"{output_id} is being made already by another job or command; wait for it") from error
        yield
    finally:
        os.close(fd)


def _told(line: JobLine, staging: str, final: str) -> JobLine:
    """The last line names the output, which will have been moved by the time it is read."""
    return replace(line, message=line.message.replace(staging, final)) if line.stage == "done" else line


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long a name, a folder that may not be entered
        return False


def _expected_bytes(info: CheckpointInfo, wish: QuantizeWish) -> int:
    """About what the output will take on disk."""
    total = 0.0
    for tensor in info.tensors.values():
        is_coded = len(tensor.shape) == 2 and module_kind(tensor.name) not in _UNTOUCHED
        group = wish.group_size if wish.group_size > 0 else tensor.shape[-1]
        per_weight = wish.bits / 8 + _GROUP_BYTES / max(1, group) if is_coded else _UNTOUCHED_BYTES
        total += tensor.num_elements * per_weight
    return int(total)
