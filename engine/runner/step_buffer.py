"""A fixed tensor that Python writes in every step, and that kernels read where they run.

Invariant: the tensor on the device keeps its address; on a CPU it is the memory that Python writes, elsewhere `send`
copies what changed, from pinned memory and without waiting.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

FORMATS: dict[torch.dtype, Literal["q", "i"]] = {torch.int64: "q", torch.int32: "i"}


class StepBuffer:
    """Some lines of integers, each of `width`."""

    def __init__(self, lines: int, width: int, dtype: torch.dtype, device: torch.device, padding: int = 0) -> None:
        """dtype: int64 or int32. padding: what stands where nothing was written."""
        self.width = width
        self.padding = padding
        self.host = torch.full((lines, width), padding, dtype=dtype, pin_memory=device.type == "cuda")
        self.tensor = self.host if device.type == "cpu" else self.host.to(device)
        self._format: Literal["q", "i"] = FORMATS[dtype]
        raw = (ctypes.c_byte * self.host.nbytes).from_address(self.host.data_ptr())  # self.host outlives it
        self.memory = memoryview(raw).cast("B").cast(self._format)

    def write(self, values: Sequence[int], end: int, line: int = 0) -> None:
        """values, then padding up to `end`, into a line."""
        start, count = line * self.width, len(values)
        self.memory[start : start + count] = array(self._format, values)
        if count < end:
            self.memory[start + count : start + end] = array(self._format, (self.padding,)) * (end - count)

    def send(self, end: int) -> None:
        """Brings the first `end` entries of every line to the device."""
        if self.tensor is not self.host:
            for line in range(len(self.host)):  # each is one piece of memory
                self.tensor[line, :end].copy_(self.host[line, :end], non_blocking=True)

    def view(self, end: int, line: int = 0) -> Tensor:
        """The first `end` entries of a line, where the kernels run."""
        return self.tensor[line, :end]
