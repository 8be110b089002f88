"""The tensors of a drafter's passes: fixed buffers that Python fills once a turn, so that passes can be replayed.

Owns the rows of the first pass (all that a request has yet to catch up with) and of those behind it (one row a request,
on tokens that the pass before drew). Knows no model. Invariant: row i of every pass belongs to the i-th request of the
turn; padding rows write nowhere and belong to nobody; a pass of the same shape finds its tensors where they were.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.core.kv_groups import KVGroup
from engine.runner.block_tables import RequestTables, StepTables
from engine.runner.step_buffer import StepBuffer
from kernels.ops import AttentionMetadata

MOST_VIEWS = 512  # shapes of passes whose tensors are kept


class PassShape(NamedTuple):
    """The sizes of a pass, padding included. number: 0 is the first pass. samples: rows that are drafted from."""

    number: int
    rows: int
    samples: int
    requests: int


@dataclass(frozen=True, slots=True)
class DraftPass:
    """One pass. token_ids int64 [T] of the first pass; the others read what was drawn. feature_rows int64 [T]: the slot
    of the token before each row's, 0 where there is none. sample_rows int64 [S]: the rows that are drafted from."""

    token_ids: Tensor
    feature_rows: Tensor
    sample_rows: Tensor
    attention: AttentionMetadata


@dataclass(slots=True)
class FirstRows:
    """The rows of a first pass while they are gathered, request by request."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    feature_rows: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    sample_rows: list[int] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], first: int, slots: Sequence[int], before: int, drafts: bool) -> None:
        """The entries of one request from position `first` on; before: the slot of the token before them, or 0."""
        count = len(token_ids)
        self.owners.extend([len(self.starts) - 1] * count)
        self.token_ids.extend(token_ids)
        self.positions.extend(range(first, first + count))
        self.slots.extend(slots)
        self.feature_rows.append(before)
        self.feature_rows.extend(slots[:-1])
        self.starts.append(len(self.token_ids))
        if drafts:
            self.sample_rows.append(len(self.token_ids) - 1)


class DraftBatch:
    """The buffers of one drafter."""

    def __init__(
        self, rows: int, tables: tuple[int, int], passes: int, block_size: int, alignment: int, device: torch.device
    ) -> None:
        """rows: of the largest first pass. tables: requests and blocks of the largest block tables. passes: behind the
        first one. alignment: rows of a pass are padded to a multiple of it."""
        self.most_rows, self.alignment = rows, alignment
        rows, requests = self._aligned(rows), self._aligned(tables[0])
        self._tables = StepTables(*tables, block_size, (KVGroup((0,)),), device)
        self._token_ids = StepBuffer(1, rows, torch.int64, device)
        self._feature_rows = StepBuffer(1, rows, torch.int64, device)
        self._sample_rows = StepBuffer(1, requests, torch.int64, device)
        width = max(rows, requests)
        lines = 1 + passes
        self._positions = StepBuffer(lines, width, torch.int64, device)
        self._slots = StepBuffer(lines, width, torch.int64, device, -1)
        self._owners = StepBuffer(lines, width, torch.int32, device, -1)
        self._starts = StepBuffer(lines, requests + 1, torch.int32, device)
        self.view = functools.lru_cache(MOST_VIEWS)(self._make)
        self._sent: Any = None if device.type == "cpu" else torch.cuda.Event()  # type: ignore[no-untyped-call]

    def begin(self, tables: Sequence[RequestTables]) -> None:
        """A turn of requests with these block tables. Waits until the device has read those of the last turn."""
        if self._sent is not None:
            self._sent.synchronize()
        for line, one in enumerate(tables):
            self._tables.place(line, one, 0)
        self._tables.send()

    def first(self, rows: FirstRows) -> PassShape:
        """Fills the first pass, which drafts from one row at least."""
        requests, samples = len(rows.starts) - 1, self._aligned(max(1, len(rows.sample_rows)))
        count = self._aligned(len(rows.token_ids))
        self._token_ids.write(rows.token_ids, count)
        self._feature_rows.write(rows.feature_rows, count)
        self._sample_rows.write(rows.sample_rows, samples)
        for buffer, end in ((self._token_ids, count), (self._feature_rows, count), (self._sample_rows, samples)):
            buffer.send(end)
        self._write(0, rows.positions, rows.slots, rows.owners, rows.starts, count)
        return PassShape(0, count, samples, requests)

    def next(self, index: int, positions: Sequence[int], slots: Sequence[int]) -> None:
        """Fills pass `index`, from 1 on: one row for each of the first requests."""
        count = len(positions)
        owners, starts = range(count), range(count + 1)
        self._write(index, positions, slots, owners, starts, self._aligned(count))

    def shape_of(self, index: int, requests: int) -> PassShape:
        """The shape of pass `index`, from 1 on, of so many requests."""
        rows = self._aligned(requests)
        return PassShape(index, rows, rows, requests)

    def sent(self) -> None:
        """All passes of the turn are filled."""
        if self._sent is not None:
            self._sent.record()

    def _aligned(self, rows: int) -> int:
        return -(-rows // self.alignment) * self.alignment

    def _write(
        self,
        line: int,
        positions: Sequence[int],
        slots: Sequence[int],
        owners: Sequence[int],
        starts: Sequence[int],
        count: int,
    ) -> None:
        for buffer, values in ((self._positions, positions), (self._slots, slots), (self._owners, owners)):
            buffer.write(values, count, line)
        self._starts.write(starts, len(starts), line)
        if self._starts.tensor is not self._starts.host:
            for buffer in (self._positions, self._slots, self._owners, self._starts):
                end = len(starts) if buffer is self._starts else count
                buffer.tensor[line, :end].copy_(buffer.host[line, :end], non_blocking=True)

    def _make(self, shape: PassShape) -> DraftPass:
        """The tensors of a pass."""
        line, rows, samples, requests = shape
        first = line * self._starts.width
        attention = AttentionMetadata(
            positions=self._positions.view(rows, line),
            slot_mapping=self._slots.view(rows, line),
            block_tables=self._tables.view(0, requests),
            query_start_loc=self._starts.memory[first : first + requests + 1],
            query_starts=self._starts.view(requests + 1, line),
            row_request=self._owners.view(rows, line),
        )
        given, sampled = (rows, samples) if line == 0 else (0, 0)
        return DraftPass(
            token_ids=self._token_ids.view(given),
            feature_rows=self._feature_rows.view(given),
            sample_rows=self._sample_rows.view(sampled),
            attention=attention,
        )
