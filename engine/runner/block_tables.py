"""The block tables of the requests that a runner knows, and the tables of a step that are made of them.

Owns one table for each KV group of every request, and the fixed lines in which kernels find those of a step.
Invariant: no line names a block that its window has passed, since that may be another request's by now; what lies in a
line behind a table's end is never read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.block_pool import NULL_BLOCK_ID
from engine.core.kv_groups import KVGroup
from engine.core.speculation import BlockIds
from engine.runner.step_buffer import StepBuffer


class RequestTables:
    """One request's block tables. version: changes whenever their lines must be written anew."""

    __slots__ = ("blocks", "passed", "version")

    def __init__(self, num_groups: int) -> None:
        self.blocks: list[array[int]] = [array("i") for _ in range(num_groups)]
        self.passed: list[int] = [0] * num_groups
        self.version = 0

    def extend(self, added: BlockIds) -> None:
        """Appends new blocks of every group."""
        for table, blocks in zip(self.blocks, added, strict=True):
            if blocks:
                table.extend(blocks)
                self.version += 1


class StepTables:
    """The lines of a step. They are kept between steps, and only those that change are written."""

    def __init__(
        self, lines: int, width: int, block_size: int, groups: Sequence[KVGroup], device: torch.device
    ) -> None:
        """lines, width: requests of the largest step, and blocks of the longest one."""
        self._lines = lines
        self._block_size = block_size
        self._sliding = [(index, group) for index, group in enumerate(groups) if group.window]
        self.buffer = StepBuffer(len(groups), lines * width, torch.int32, device, NULL_BLOCK_ID)
        self._width = width
        self._null_line = memoryview(array("i", [NULL_BLOCK_ID] * width))
        self._held: list[tuple[RequestTables | None, int]] = [(None, 0)] * lines  # whose tables, of which version
        self._changed: tuple[int, int] = (lines, 0)  # from which line to before which one the device's are old

    def place(self, line: int, tables: RequestTables, num_computed_tokens: int) -> None:
        """Has the request's tables in line `line`."""
        for index, group in self._sliding:
            passed = group.blocks_passed(num_computed_tokens, self._block_size)
            if passed != tables.passed[index]:
                tables.passed[index] = passed
                tables.version += 1
        held, version = self._held[line]
        if held is tables and version == tables.version:
            return
        memory = self.buffer.memory
        for index, (table, passed) in enumerate(zip(tables.blocks, tables.passed, strict=True)):
            start = (index * self._lines + line) * self._width
            memory[start : start + passed] = self._null_line[:passed]
            memory[start + passed : start + len(table)] = memoryview(table)[passed:]
        self._held[line] = tables, tables.version
        first, end = self._changed
        self._changed = min(first, line), max(end, line + 1)

    def clear(self) -> None:
        """Only null blocks in every line."""
        self.buffer.host.fill_(NULL_BLOCK_ID)
        self._held = [(None, 0)] * self._lines
        self._changed = 0, self._lines

    def send(self) -> None:
        """Brings the lines that changed to the device."""
        (first, end), self._changed = self._changed, (self._lines, 0)
        host, tensor = self.buffer.host, self.buffer.tensor
        if tensor is host or first >= end:
            return
        part = slice(first * self._width, end * self._width)
        for group in range(len(host)):
            tensor[group, part].copy_(host[group, part], non_blocking=True)

    def view(self, group: int, lines: int) -> Tensor:
        """The first lines of a group, int32 [lines, width], where the kernels run."""
        return self.buffer.view(lines * self._width, group).view(lines, self._width)
