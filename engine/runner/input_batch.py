"""From a plan to the tensors of a step.

Owns the block tables of the requests that the runner knows, the tokens of those whose draws depend on them, and the
fixed buffers that hold a step's inputs. Knows nothing of weights. Invariant: rows stand in the plan's order, padded to
a multiple of `row_alignment` with rows that write nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.core.scheduler import ScheduledRequest, SchedulerOutput
from engine.models.decoder import StepInputs
from engine.sample.row import SamplingRow
from kernels.ops import AttentionMetadata


def aligned(rows: int, alignment: int) -> int:
    """`rows` rounded up to a multiple of `alignment`, at least one of it."""
    return max(1, -(-rows // alignment)) * alignment


@dataclass(slots=True)
class _Columns:
    """The rows of a step while they are gathered."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
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
        alignment: int,
        device: torch.device,
    ) -> None:
        """rows, sample_rows: of the largest step, aligned. tables: requests and blocks of the largest block table."""
        self.block_size = block_size
        self.alignment = alignment
        self._tables: dict[str, list[int]] = {}
        self._histories: dict[str, list[int]] = {}
        self._token_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self._owners = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self._sample_rows = torch.zeros(sample_rows, dtype=torch.int64, device=device)
        self._block_tables = torch.zeros(tables, dtype=torch.int32, device=device)

    def build(self, plan: SchedulerOutput) -> BatchInputs:
        """The tensors of a plan that is not empty. They are valid until the next call."""
        self.forget(plan.ended)
        columns = _Columns()
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
            attention=AttentionMetadata(
                positions=_fill(self._positions, columns.positions, 0, rows),
                slot_mapping=_fill(self._slots, columns.slots, -1, rows),
                block_tables=self._block_tables[: len(plan.requests)],
                query_start_loc=columns.starts,
                row_request=_fill(self._owners, columns.owners, -1, rows),
            ),
        )
        return BatchInputs(step, rows, sample_rows, sampled_ids, sampling)

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
        """Adds one request's rows and writes its block table into line `index`."""
        if request.first:
            self._tables[request.request_id] = []
        if request.sampling.needs_token_ids:
            if request.first:
                self._histories[request.request_id] = list(request.known_token_ids)
            self._histories[request.request_id][request.num_computed_tokens :] = request.token_ids
        table = self._tables[request.request_id]
        table.extend(request.block_ids)
        self._block_tables[index, : len(table)] = torch.tensor(table, dtype=torch.int32)
        size = self.block_size
        positions = range(request.num_computed_tokens, request.num_computed_tokens + len(request.token_ids))
        columns.token_ids.extend(request.token_ids)
        columns.positions.extend(positions)
        columns.slots.extend(table[position // size] * size + position % size for position in positions)
        columns.owners.extend([index] * len(positions))
        columns.starts.append(len(columns.token_ids))


def _fill(buffer: torch.Tensor, values: list[int], padding: int, rows: int) -> torch.Tensor:
    """The buffer's first `rows` entries: `values`, then padding."""
    view = buffer[:rows]
    view[: len(values)] = torch.tensor(values, dtype=buffer.dtype)
    view[len(values) :] = padding
    return view
