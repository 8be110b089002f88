"""A block state as the API and the live topic tell it: counts, owners, and cells as runs.

Owns these shapes and their arithmetic. Knows no engine and no time but the state's own. Invariant: the runs of changes,
laid over the cells they follow, give the cells they were made of; free + cached + held is the number of blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from app.block_state import (
    AHEAD,
    FILL_MASK,
    FILL_SHIFT,
    REFS_MASK,
    REFS_SHIFT,
    BlockState,
    Cells,
    Numbers,
)


def runs(cells: Cells, before: Cells | None = None) -> list[int]:
    """Flat quadruples: first block, how many, their code, their owner's number. With `before`, only what differs."""
    codes, owners = cells.codes, cells.owners
    told = np.ones(len(codes), dtype=bool)
    if before is not None and len(before.codes) == len(codes):
        told = (codes != before.codes) | (owners != before.owners)
    told[0] = False  # the null block is nobody's business
    begins = told.copy()
    begins[1:] &= ~(told[:-1] & (codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1]))
    ends = told.copy()
    ends[:-1] &= ~told[1:] | begins[1:]
    first, last = np.flatnonzero(begins), np.flatnonzero(ends)
    flat: list[int] = np.stack([first, last - first + 1, codes[first], owners[first]], axis=1).ravel().tolist()
    return flat


def counts(state: BlockState, cells: Cells) -> dict[str, int]:
    """Blocks by what they are, and the engine's counters."""
    frame, codes = state.known, cells.codes[1:]
    states = np.bincount(codes & 3, minlength=3).tolist()
    fill = (codes >> FILL_SHIFT) & FILL_MASK
    partial = fill > 0
    return {
        "total": len(codes),
        "free": states[0],
        "cached": states[1],
        "held": states[2],
        "shared": int(np.count_nonzero(((codes >> REFS_SHIFT) & REFS_MASK) > 1)),
        "partial": int(np.count_nonzero(partial)),
        "empty_slots": int((frame.block_size - fill[partial]).sum()),
        "ahead": int(np.count_nonzero(codes & AHEAD)),
        "num_running": frame.num_running,
        "num_waiting": frame.num_waiting,
        "evictions_total": frame.evictions_total,
        "preemptions_total": frame.preemptions_total,
        "prefix_queries_total": frame.prefix_queries_total,
        "prefix_hits_total": frame.prefix_hits_total,
    }


def owners(state: BlockState, cells: Cells) -> list[dict[str, Any]]:
    """Who holds blocks, the earliest first."""
    return [
        {
            "id": holder.number,
            "request_id": holder.told.request_id,
            "index": holder.told.index,
            "num_prompt_tokens": holder.told.num_prompt_tokens,
            "num_tokens": holder.told.num_tokens,
            "num_computed_tokens": holder.told.num_computed_tokens,
            "num_cached_tokens": holder.told.num_cached_tokens,
            **_held(holder.tables, cells.codes, cells.refs),
        }
        for holder in sorted(state.holders.values(), key=lambda one: one.number)
    ]


def _held(tables: Any, codes: Numbers, refs: Numbers) -> dict[str, int]:
    """An owner's blocks: how many, and how many of these are shared, or wait for drafts."""
    held = np.concatenate([table.numbers()[table.passed :] for table in tables])
    return {
        "blocks": len(held),
        "shared": int(np.count_nonzero(refs[held] > 1)),
        "ahead": int(np.count_nonzero(codes[held] & AHEAD)),
    }


def header(state: BlockState, cells: Cells, run_id: str, number: int) -> dict[str, Any]:
    """All of a view but its cells."""
    frame = state.known
    return {
        "engine_run_id": run_id,
        "number": number,
        "t": frame.t_s,
        "num_blocks": frame.num_blocks - 1,
        "block_size": frame.block_size,
        "windows": list(frame.windows),
        "counts": counts(state, cells),
        "owners": owners(state, cells),
    }


def full(state: BlockState, cells: Cells, run_id: str, number: int) -> dict[str, Any]:
    """Everything."""
    return {"kind": "full", "after": None, **header(state, cells, run_id, number), "runs": runs(cells)}


def change(state: BlockState, cells: Cells, before: Cells, run_id: str, number: int) -> dict[str, Any]:
    """What is new since the view of the number before."""
    view = header(state, cells, run_id, number)
    return {"kind": "change", "after": number - 1, **view, "runs": runs(cells, before)}
