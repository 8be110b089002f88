"""What loads were seen to take: kept for each model's weights, and read as the error bar of the next estimate.

Owns the measurements' rows and the name of a model's weights. Knows nothing of how a load goes. Invariant: what is kept
was measured; a load that nothing was measured of is not kept.
"""

from __future__ import annotations

import time

from app.catalog.local import LocalModel
from app.supervisor import EngineSupervisor
from app.what_if import Learned, learned
from app.writes import unwatched
from db.rows import LoadMeasurementRow
from db.store import Store
from engine.checkpoint import CheckpointError
from engine.checkpoint.fingerprint import weights_fingerprint


def model_hash(model: LocalModel) -> str:
    """Of the model's weights; empty where they cannot be read."""
    try:
        return "" if model.info is None else weights_fingerprint(model.info)
    except (CheckpointError, OSError):
        return ""


class LoadHistory:
    """Keeps and reads the measurements."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def learned(self, model: LocalModel, total_bytes: int) -> Learned | None:
        """The error bar of an estimate of `total_bytes`; reads files, so call it on a thread."""
        return learned(total_bytes, self._store.list_load_measurements(model.id, model_hash(model)))

    def loaded(self, supervisor: EngineSupervisor, model: LocalModel, estimated_bytes: int) -> None:
        """A load has ended well. On a GPU nothing is learned: what the engine knows of itself is its host memory."""
        ready = supervisor.ready
        if ready is None or ready.device != "cpu" or not ready.memory.process_bytes:
            return
        row = LoadMeasurementRow(
            engine_run_id=supervisor.run_id,
            model_id=supervisor.model_id,
            model_hash=model_hash(model),
            t=time.time(),
            load_s=time.time() - supervisor.started_at,
            estimated_bytes=estimated_bytes,
            measured_bytes=ready.memory.process_bytes,
        )
        unwatched(self._store.add_load_measurement(row))

    def held(self, run_id: str, measured_bytes: int) -> None:
        """What it held in the end counts where that is more: a cache takes its memory when it is first written to."""
        unwatched(self._store.raise_load_measurement(run_id, measured_bytes))
