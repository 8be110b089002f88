"""From a plan to the tensors of a step.

Owns what the runner knows of requests (their block tables, and the tokens of those whose draws depend on them) and the
fixed buffers that hold a step's inputs. Knows nothing of weights. Invariant: rows stand in the plan's order, padded to
the step's shape with rows that write nowhere and belong to nobody; steps of one shape have the same tensors, so that a
recorded step finds its inputs where they were.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.core.kv_groups import KVGroup
from engine.core.speculation import BlockIds
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.models.decoder import StepInputs
from engine.runner.block_tables import RequestTables, StepTables
from engine.runner.recorded_step import StepShape, StepShapes
from engine.runner.step_buffer import StepBuffer
from engine.sample.row import SamplingRow
from kernels.ops import AttentionMetadata

MOST_VIEWS = 512  # shapes whose tensors are kept: as many as the CPU keeps tapes of


@dataclass(slots=True)
class _Columns:
    """The rows of a step while they are gathered. slots: of each KV group. longest: the most rows of one request."""

    slots: list[list[int]]
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    sample_rows: list[int] = field(default_factory=list)
    longest: int = 0


@dataclass(slots=True)
class _Known:
    """A request as the runner knows it. token_ids: where draws depend on them."""

    tables: RequestTables
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """A step ready to run. `sampling` belongs to the first rows of its logits, in order: of each of the shares
    `sampled` the row before its drafts, and the row of each draft."""

    step: StepInputs
    shape: StepShape
    sampled: list[ScheduledRequest]
    sampling: list[SamplingRow]


class InputBatch:
    """Builds `BatchInputs`; remembers block tables and tokens between steps."""

    def __init__(
        self,
        rows: int,
        sample_rows: int,
        tables: tuple[int, int],
        block_size: int,
        groups: Sequence[KVGroup],
        shapes: StepShapes,
        device: torch.device,
    ) -> None:
        """rows, sample_rows: of the largest step, padded. tables: requests and blocks of the largest block tables."""
        self.block_size = block_size
        self.groups = tuple(groups)
        self.shapes = shapes
        self._known: dict[str, _Known] = {}
        self._tables = StepTables(*tables, block_size, self.groups, device)
        self._token_ids = StepBuffer(1, rows, torch.int64, device)
        self._positions = StepBuffer(1, rows, torch.int64, device)
        self._slots = StepBuffer(len(self.groups), rows, torch.int64, device, -1)
        self._owners = StepBuffer(1, rows, torch.int32, device, -1)
        self._starts = StepBuffer(1, tables[0] + 1, torch.int32, device)
        self._sample_rows = StepBuffer(1, sample_rows, torch.int64, device)
        self._step = functools.lru_cache(MOST_VIEWS)(self._make_step)
        # The device may still be reading pinned memory when the next step is built: not every step waits for its end.
        self._sent: Any = None if device.type == "cpu" else torch.cuda.Event()  # type: ignore[no-untyped-call]

    def build(self, plan: SchedulerOutput) -> BatchInputs:
        """The tensors of a plan that is not empty. They are valid until the next call."""
        self.forget(plan.ended)
        if self._sent is not None:
            self._sent.synchronize()
        columns = _Columns([[] for _ in self.groups])
        sampled: list[ScheduledRequest] = []
        sampling: list[SamplingRow] = []
        for index, request in enumerate(plan.requests):
            known = self._append(columns, index, request)
            if request.samples:
                rows, end = 1 + request.num_drafts, len(columns.token_ids)
                columns.sample_rows.extend(range(end - rows, end))
                sampled.append(request)
                sampling.extend(_sampling_rows(request, known.token_ids))
        shape = self.shapes.of(len(columns.token_ids), len(sampling), len(plan.requests), columns.longest)
        self._write(columns, shape)
        return BatchInputs(self._step(shape), shape, sampled, sampling)

    def idle(self, shape: StepShape) -> StepInputs:
        """A step of a class's shape that changes nothing: each request has its most rows, and they write nowhere.

        For recording ahead; the tables of running requests have to be written anew after it.
        """
        columns = _Columns([[] for _ in self.groups])
        for index in range(shape.requests):
            columns.positions.extend(range(shape.longest))
            columns.owners.extend([index] * shape.longest)
            columns.starts.append(len(columns.positions))
        columns.sample_rows.extend(range(min(len(columns.positions), shape.sample_rows)))
        self._tables.clear()
        self._write(columns, shape)
        return self._step(shape)

    def extend(self, request_id: str, block_ids: BlockIds) -> None:
        """Takes blocks in that were added to a request's tables before its next step."""
        self._known[request_id].tables.extend(block_ids)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is remembered of requests that ended or lost their blocks."""
        for request_id in request_ids:
            self._known.pop(request_id, None)

    def _append(self, columns: _Columns, index: int, request: ScheduledRequest) -> _Known:
        """Adds one request's rows and has its block tables in line `index`."""
        if request.first:
            tables = RequestTables(len(self.groups))
            self._known[request.request_id] = _Known(tables, list(request.known_token_ids))
        known = self._known[request.request_id]
        start, count, size = request.num_computed_tokens, len(request.token_ids), self.block_size
        if request.sampling.needs_token_ids:
            known.token_ids[start:] = request.token_ids
        known.tables.extend(request.block_ids)
        self._tables.place(index, known.tables, start)
        columns.token_ids.extend(request.token_ids)
        columns.starts.append(len(columns.token_ids))
        columns.longest = max(columns.longest, count)
        if count == 1:  # most rows of most steps
            columns.positions.append(start)
            columns.owners.append(index)
            number, offset = divmod(start, size)
            for slots, table in zip(columns.slots, known.tables.blocks, strict=True):
                slots.append(table[number] * size + offset)
            return known
        positions = range(start, start + count)
        columns.positions.extend(positions)
        columns.owners.extend([index] * count)
        for slots, table in zip(columns.slots, known.tables.blocks, strict=True):
            slots.extend([table[position // size] * size + position % size for position in positions])
        return known

    def _write(self, columns: _Columns, shape: StepShape) -> None:
        """Fills the buffers, and brings them to the device."""
        starts = columns.starts
        starts.extend(starts[-1:] * (shape.requests + 1 - len(starts)))
        for buffer, values, end in (
            (self._token_ids, columns.token_ids, shape.rows),
            (self._positions, columns.positions, shape.rows),
            (self._owners, columns.owners, shape.rows),
            (self._starts, starts, shape.requests + 1),
            (self._sample_rows, columns.sample_rows, shape.sample_rows),
        ):
            buffer.write(values, end)
            buffer.send(end)
        for group, slots in enumerate(columns.slots):
            self._slots.write(slots, shape.rows, group)
        self._slots.send(shape.rows)
        self._tables.send()
        if self._sent is not None:
            self._sent.record()

    def _make_step(self, shape: StepShape) -> StepInputs:
        """The views of a shape. Where requests begin is read on the host from the memory that is written there."""
        starts = self._starts.memory[: shape.requests + 1]
        shared: dict[str, Any] = {
            "positions": self._positions.view(shape.rows),
            "query_start_loc": starts,
            "query_starts": self._starts.view(shape.requests + 1),
            "row_request": self._owners.view(shape.rows),
        }
        metadata = tuple(
            AttentionMetadata(
                slot_mapping=self._slots.view(shape.rows, group),
                block_tables=self._tables.view(group, shape.requests),
                **shared,
            )
            for group in range(len(self.groups))
        )
        token_ids, sample_rows = self._token_ids.view(shape.rows), self._sample_rows.view(shape.sample_rows)
        return StepInputs(token_ids, sample_rows, metadata)


def _sampling_rows(request: ScheduledRequest, token_ids: Sequence[int]) -> list[SamplingRow]:
    """How the tokens after each of a share's last rows are drawn: as if the drafts before it were the text."""
    end, sampling = request.num_computed_tokens + len(request.token_ids), request.sampling
    wish = request.inspect  # of an answer that stands behind its prompt already
    num_prompt = request.num_prompt_tokens if wish is None else wish.num_prompt_tokens
    sample_index = request.sample_index if wish is None else wish.sample_index
    rows = []
    for position in range(end - request.num_drafts, end + 1):
        number = position - end + request.num_drafts
        before = token_ids if position == end or not sampling.needs_token_ids else token_ids[:position]
        rows.append(
            SamplingRow(
                sampling=sampling,
                seed=request.seed,
                position=position,
                sample_index=sample_index,
                num_prompt_tokens=num_prompt,
                allowed=request.allowed[number] if request.allowed else b"",
                token_ids=before if sampling.needs_token_ids else (),
                end_token_ids=request.end_token_ids,
            )
        )
    return rows
