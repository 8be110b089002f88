"""From a plan to the tensors of a step.

Owns the block tables of the requests that the runner knows, one for each KV group, the tokens of those whose draws
depend on them, and the fixed buffers that hold a step's inputs. Knows nothing of weights. Invariant: rows stand in the
plan's order, padded to a multiple of `row_alignment` with rows that write nowhere; no table names a block that its
window has passed, since that may be another request's by now.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.core.block_pool import NULL_BLOCK_ID
from engine.core.kv_groups import KVGroup
from engine.core.scheduler import ScheduledRequest, SchedulerOutput
from engine.models.decoder import StepInputs
from engine.sample.row import SamplingRow
from kernels.ops import AttentionMetadata


def aligned(rows: int, alignment: int) -> int:
    """`rows` rounded up to a multiple of `alignment`, at least one of it."""
    return max(1, -(-rows // alignment)) * alignment


@dataclass(slots=True)
class _Columns:
    """The rows of a step while they are gathered. slots: of each KV group."""

    slots: list[list[int]]
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    sample_rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """A step ready to run: `sampled_ids` and `sampling` belong to the first rows of its logits, in order."""

    step: StepInputs
    num_rows: int
    num_sample_rows: int
    sampled_ids: list[str]
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
        alignment: int,
        device: torch.device,
    ) -> None:
        """rows, sample_rows: of the largest step, aligned. tables: requests and blocks of the largest block tables."""
        self.block_size = block_size
        self.groups = tuple(groups)
        self.alignment = alignment
        self._tables: dict[str, list[array[int]]] = {}
        self._histories: dict[str, list[int]] = {}
        self._token_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = torch.full((len(groups), rows), -1, dtype=torch.int64, device=device)
        self._owners = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self._sample_rows = torch.zeros(sample_rows, dtype=torch.int64, device=device)
        self._num_lines, self._line_size = tables
        # Block tables are copied as bytes into one line a request and group: a tensor operation for each would cost
        # several times as much in every step. The device's tensor is that memory itself, or a copy of it.
        self._lines = memoryview(array("i", bytes(4 * len(groups) * self._num_lines * self._line_size)))
        host = torch.frombuffer(self._lines, dtype=torch.int32).view(len(groups), *tables)
        self._null_line = memoryview(array("i", [NULL_BLOCK_ID] * self._line_size))
        self._host_block_tables = host
        self._block_tables = host if device.type == "cpu" else host.to(device)

    def build(self, plan: SchedulerOutput) -> BatchInputs:
        """The tensors of a plan that is not empty. They are valid until the next call."""
        self.forget(plan.ended)
        columns = _Columns([[] for _ in self.groups])
        sampled_ids: list[str] = []
        sampling: list[SamplingRow] = []
        for index, request in enumerate(plan.requests):
            self._append(columns, index, request)
            if request.samples:
                columns.sample_rows.append(len(columns.token_ids) - 1)
                sampled_ids.append(request.request_id)
                sampling.append(self._sampling_row(request))
        rows = aligned(len(columns.token_ids), self.alignment)
        sample_rows = aligned(len(sampled_ids), self.alignment)
        step = StepInputs(
            token_ids=_fill(self._token_ids, columns.token_ids, 0, rows),
            sample_rows=_fill(self._sample_rows, columns.sample_rows, 0, sample_rows),
            attention=self._attention(columns, rows, len(plan.requests)),
        )
        return BatchInputs(step, rows, sample_rows, sampled_ids, sampling)

    def _attention(self, columns: _Columns, rows: int, num_requests: int) -> tuple[AttentionMetadata, ...]:
        """Of each KV group."""
        if self._block_tables is not self._host_block_tables:
            self._block_tables[:, :num_requests].copy_(self._host_block_tables[:, :num_requests])
        positions = _fill(self._positions, columns.positions, 0, rows)
        owners = _fill(self._owners, columns.owners, -1, rows)
        slots = _fill(self._slots, columns.slots, -1, rows)
        return tuple(
            AttentionMetadata(
                positions=positions,
                slot_mapping=slots[group],
                block_tables=self._block_tables[group, :num_requests],
                query_start_loc=columns.starts,
                row_request=owners,
            )
            for group in range(len(self.groups))
        )

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is remembered of requests that ended or lost their blocks."""
        for request_id in request_ids:
            self._tables.pop(request_id, None)
            self._histories.pop(request_id, None)

    def _sampling_row(self, request: ScheduledRequest) -> SamplingRow:
        """How the token after a request's share is drawn."""
        return SamplingRow(
            sampling=request.sampling,
            seed=request.seed,
            position=request.num_computed_tokens + len(request.token_ids),
            sample_index=request.sample_index,
            num_prompt_tokens=request.num_prompt_tokens,
            allowed=request.allowed,
            token_ids=self._histories.get(request.request_id, ()),
            end_token_ids=request.end_token_ids,
        )

    def _append(self, columns: _Columns, index: int, request: ScheduledRequest) -> None:
        """Adds one request's rows and writes its block tables into line `index`."""
        if request.first:
            self._tables[request.request_id] = [array("i") for _ in self.groups]
        if request.sampling.needs_token_ids:
            if request.first:
                self._histories[request.request_id] = list(request.known_token_ids)
            self._histories[request.request_id][request.num_computed_tokens :] = request.token_ids
        size = self.block_size
        positions = range(request.num_computed_tokens, request.num_computed_tokens + len(request.token_ids))
        columns.token_ids.extend(request.token_ids)
        columns.positions.extend(positions)
        columns.owners.extend([index] * len(positions))
        columns.starts.append(len(columns.token_ids))
        for group, table in enumerate(self._tables[request.request_id]):
            table.extend(request.block_ids[group])
            columns.slots[group].extend(table[position // size] * size + position % size for position in positions)
            start = (group * self._num_lines + index) * self._line_size
            passed = self.groups[group].blocks_passed(request.num_computed_tokens, size)
            if passed:
                self._lines[start : start + passed] = self._null_line[:passed]
            self._lines[start + passed : start + len(table)] = memoryview(table)[passed:]


def _fill(buffer: torch.Tensor, values: list[int] | list[list[int]], padding: int, rows: int) -> torch.Tensor:
    """The buffer's first `rows` entries, of each of its lines where it has several: `values`, then padding."""
    filled = torch.tensor(values, dtype=buffer.dtype)
    view, width = buffer[..., :rows], filled.shape[-1]
    view[..., :width] = filled
    view[..., width:] = padding
    return view
