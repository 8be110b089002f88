"""What else an estimate can say: how far earlier loads were off, what unloading would give, and what would fit instead.

Owns the error bar and the choice of ways out. The arithmetic of one load is app.fit's. Invariants: a way out was
estimated itself and fits; an error bar is made of loads that were measured, and is absent where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.fit import FitEstimate, estimate
from app.memory_holders import MemoryHolder
from db.rows import LoadMeasurementRow
from engine.checkpoint import CheckpointInfo
from engine.config import LoadOptions

SHORTEST_CONTEXT = 256  # below it a shorter context is no way out
NEEDS_NO_DRAFTER = ("off", "ngram", "suffix")


@dataclass(frozen=True, slots=True)
class Learned:
    """What earlier loads of these weights took, over what they were estimated at, and that carried over to this one.

    load_s: the median of how long they took.
    """

    loads: int
    low: float
    high: float
    low_bytes: int
    high_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True)
class AfterUnload:
    """How it would stand without one of the loaded models. frees_bytes: as measured, or as its engine stated it."""

    model_id: str
    engine_id: str
    frees_bytes: int
    available_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class WayOut:
    """A change that makes a load fit. options: what to change; unload: which models to unload first."""

    kind: str  # "shorter_context" | "fewer_sequences" | "kv_8bit" | "without_drafter" | "no_limit" | "unload"
    options: dict[str, Any]
    unload: list[str]
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A device as a load finds it."""

    device: str
    available_bytes: int
    total_bytes: int

    def without(self, holders: Iterable[Holder]) -> Memory:
        """As it will be when these have gone."""
        return replace(self, available_bytes=self.available_bytes + sum(holder.bytes for holder in holders))


@dataclass(frozen=True, slots=True)
class Holder:
    """A loaded model and what unloading it would give back."""

    model_id: str
    engine_id: str
    bytes: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """An estimate with what is known around it."""

    fit: FitEstimate
    learned: Learned | None
    after_unload: list[AfterUnload]
    ways_out: list[WayOut]


def what_if(
    info: CheckpointInfo,
    options: LoadOptions,
    memory: Memory,
    held: Sequence[MemoryHolder],
    others: Sequence[Holder],
    learn: Callable[[int], Learned | None],
) -> WhatIf:
    """The estimate of a load. held: who has the memory that is in use; others: the models that could be unloaded;
    learn: the error bar of an estimate of so many bytes. Raises CheckpointError, ConfigError."""
    fit = estimate(info, options, memory.available_bytes, memory.total_bytes, memory.device, held)
    ways = [] if fit.fits else ways_out(info, options, memory, fit, others)
    return WhatIf(fit, learn(fit.total_bytes), after_unload(info, options, memory, others), ways)


def failed_load(kind: str, ways: Iterable[WayOut], memory: Memory, log_tail: Sequence[str] = ()) -> dict[str, Any]:
    """The result of a load job that failed: why, what would do instead, and the memory after clean-up."""
    return {
        "kind": kind,
        "ways_out": [asdict(way) for way in ways],
        "log_tail": list(log_tail),
        "memory": asdict(memory),
    }


def learned(total_bytes: int, rows: Sequence[LoadMeasurementRow]) -> Learned | None:
    """The error bar of an estimate; None without an earlier load."""
    ratios = [row.measured_bytes / row.estimated_bytes for row in rows if row.estimated_bytes]
    if not ratios:
        return None
    low, high = min(ratios), max(ratios)
    seconds = sorted(row.load_s for row in rows)[len(rows) // 2]
    return Learned(len(ratios), low, high, int(low * total_bytes), int(high * total_bytes), seconds)


def after_unload(
    info: CheckpointInfo, options: LoadOptions, memory: Memory, holders: Iterable[Holder]
) -> list[AfterUnload]:
    """How the load would stand without each of these."""
    found = []
    for holder in holders:
        fit = _fit(info, options, replace(memory, available_bytes=memory.available_bytes + holder.bytes))
        found.append(AfterUnload(holder.model_id, holder.engine_id, holder.bytes, fit.available_bytes, fit.fits))
    return found


def to_unload(holders: Sequence[Holder], fits: Callable[[int], bool]) -> list[str]:
    """Which loaded models would have to go: the smallest one that is enough, else the largest ones together; none where
    even that does not do."""
    by_size = sorted(holders, key=lambda holder: holder.bytes)
    for holder in by_size:
        if fits(holder.bytes):
            return [holder.model_id]
    freed, names = 0, []
    for holder in reversed(by_size):
        freed += holder.bytes
        names.append(holder.model_id)
        if fits(freed):
            return names
    return []


def ways_out(
    info: CheckpointInfo, options: LoadOptions, memory: Memory, fit: FitEstimate, holders: Sequence[Holder] = ()
) -> list[WayOut]:
    """What would fit instead. For a load that fits, but has failed for want of memory: what would take less."""
    found = []
    for kind, changes in _changes(options, fit):
        changed = replace(options, **changes)
        instead = _fit(info, changed, memory)
        if instead.fits and (not fit.fits or instead.total_bytes < fit.total_bytes):
            found.append(WayOut(kind, changes, [], instead.total_bytes))
    by_kind: dict[str, WayOut] = {}
    for way in found:  # the mildest of each kind
        by_kind.setdefault(way.kind, way)
    ways = list(by_kind.values())
    if fit.fits:
        return ways
    going = to_unload(
        holders, lambda freed: _fit(info, options, replace(memory, available_bytes=memory.available_bytes + freed)).fits
    )
    return [WayOut("unload", {}, going, fit.total_bytes), *ways] if going else ways


def _changes(options: LoadOptions, fit: FitEstimate) -> Iterable[tuple[str, dict[str, Any]]]:
    """Candidates, the mildest first."""
    if options.memory_limit_bytes is not None:
        yield "no_limit", {"memory_limit_bytes": None}
    if fit.drafter_bytes and options.speculation not in NEEDS_NO_DRAFTER:
        yield "without_drafter", {"speculation": "suffix", "drafter": ""}
    if options.kv_cache_dtype == "auto":
        yield "kv_8bit", {"kv_cache_dtype": "int8"}
    lengths = [fit.max_model_len // 2] if fit.fits else [fit.max_model_len_that_fits]
    for length in lengths:
        if SHORTEST_CONTEXT <= length < fit.max_model_len:
            yield "shorter_context", {"max_model_len": length}
    sequences = options.max_num_seqs // 2
    while sequences >= 1:
        yield "fewer_sequences", {"max_num_seqs": sequences}
        sequences //= 2


def _fit(info: CheckpointInfo, options: LoadOptions, memory: Memory) -> FitEstimate:
    return estimate(info, options, memory.available_bytes, memory.total_bytes, memory.device)
