"""The list of models as the operator sees it: catalogue, disk, engines and jobs joined into rows.

Owns the join and the words for a model's state. Changes nothing. Invariant: every model that is in the catalogue, on
disk or loaded has exactly one row, a broken one included.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.catalog import Catalog
from app.catalog.entry import CatalogEntry
from app.catalog.local import LocalModel
from app.engines import Engines
from app.fit import FitEstimate, estimate
from app.jobs import JobRunner
from app.schemas import Fit, ModelRow, ModelState, Verdict
from app.what_if import Memory, to_unload
from db.store import Store
from engine.config import LoadOptions
from engine.core.sizing import RUNTIME_BYTES

_BYTES_PER_PARAMETER = 2  # what an entry that is not on disk is judged by: bf16, and no cache

_STATE_OF_ENGINE: dict[str, ModelState] = {
    "loading": "loading",
    "ready": "loaded",
    "draining": "unloading",
    "unloading": "unloading",
    "failed": "failed",
}


class ModelList:
    """Builds the rows."""

    def __init__(self, catalog: Catalog, engines: Engines, jobs: JobRunner, store: Store) -> None:
        self._store = store
        self._catalog = catalog
        self._engines = engines
        self._jobs = jobs

    def rows(self) -> list[ModelRow]:
        """Models on disk first, the default one at their head, then what the catalogue offers."""
        local = {model.id: model for model in self._catalog.local()}
        entries = {entry.id: entry for entry in self._catalog.entries()}
        used = self._store.last_used()
        rows = [
            self._row(model_id, entries.get(model_id), local.get(model_id)).model_copy(
                update={"last_used_at": used.get(model_id)}
            )
            for model_id in {**local, **entries}
        ]
        return sorted(rows, key=lambda row: (not row.on_disk, not row.default))

    def _row(self, model_id: str, entry: CatalogEntry | None, model: LocalModel | None) -> ModelRow:
        job = self._jobs.running("pull", model_id) or self._jobs.running("load", model_id)
        for kind in ("unload", "quantize", "train-drafter", "benchmark", "selftest", "race"):
            job = job or self._jobs.running(kind, model_id)
        engine = self._engines.of_model(model_id)
        info = model.info if model is not None else None
        config = info.config if info is not None else None
        row = ModelRow(
            id=model_id,
            name=entry.name if entry else model.name if model else model_id,
            state=self._state(model_id, model),
            on_disk=model is not None,
            fit=self._fit(entry, model),
            engine_id=engine.supervisor.run_id if engine else None,
            job_id=job.id if job else None,
            default=model_id == self._catalog.default_id,
            error=engine.supervisor.error if engine else None,
        )
        if entry is not None:
            row = row.model_copy(update=_entry_fields(entry))
        if model is not None:
            update = {"path": str(model.path), "size_bytes": model.size_bytes, "format": model.format}
            row = row.model_copy(update={**update, "error": model.error or row.error})
        if info is not None and config is not None:
            update = {
                "quantization": info.quantization,
                "architecture": config.architecture,
                "num_parameters": info.num_parameters,
                "context_length": config.max_position_embeddings,
            }
            row = row.model_copy(update=update)
        return row

    def _state(self, model_id: str, model: LocalModel | None) -> ModelState:
        engine = self._engines.of_model(model_id)
        if engine is not None and engine.supervisor.state in _STATE_OF_ENGINE:
            return _STATE_OF_ENGINE[engine.supervisor.state]
        if self._jobs.running("pull", model_id) is not None:
            return "downloading"
        if self._jobs.running("load", model_id) is not None:
            return "loading"
        if model is None:
            return "available"
        return "broken" if model.error is not None else "on_disk"

    def _fit(self, entry: CatalogEntry | None, model: LocalModel | None) -> Fit:
        device, available, total = self._engines.free_memory("auto")
        holders = self._engines.holders(device)
        held = sum(holder.bytes for holder in holders)
        if model is not None and model.info is not None:
            now = estimate(model.info, LoadOptions(), available, total, device)
            if now.fits:
                return _fit("yes", now)
            memory = Memory(device, available, total)
            enough = to_unload(holders, lambda freed: _fits_after(model, memory, freed))
            return _fit("after_unload" if enough else "no", now, enough)
        if entry is None:
            return Fit(fits="unknown")
        needed = entry.parameters * _BYTES_PER_PARAMETER + RUNTIME_BYTES
        short = max(0, needed - available)
        fits: Verdict = "yes" if short == 0 else "after_unload" if short <= held else "no"
        enough = to_unload(holders, lambda freed: short <= freed) if short else []
        return Fit(fits=fits, needed_bytes=needed, available_bytes=available, short_by_bytes=short, unload=enough)


def _fits_after(model: LocalModel, memory: Memory, freed: int) -> bool:
    assert model.info is not None
    after = estimate(model.info, LoadOptions(), memory.available_bytes + freed, memory.total_bytes, memory.device)
    return after.fits


def _fit(verdict: Verdict, figures: FitEstimate, unload: Sequence[str] = ()) -> Fit:
    return Fit(
        fits=verdict,
        needed_bytes=figures.total_bytes,
        available_bytes=figures.available_bytes,
        short_by_bytes=figures.short_by_bytes,
        unload=list(unload),
    )


def _entry_fields(entry: CatalogEntry) -> dict[str, object]:
    return {
        "description": entry.description,
        "size_bytes": entry.size_bytes,
        "architecture": entry.architecture,
        "num_parameters": entry.parameters,
        "context_length": entry.context_length,
        "license": entry.licence,
        "license_url": entry.licence_url,
        "gated": entry.gated,
        "support": entry.support,
        "support_reason": entry.support_reason,
        "sources": [str(source) for source in entry.sources],
        "drafter_ids": list(entry.drafters),
    }
