"""Recorded steps on the CPU: the calls that a step made into the C++ library, made again by one call (tape.cpp).

Owns the tapes of the shapes that were met last. Knows nothing of what the calls compute.
Invariant: only a step that ran wholly inside the library is replayed; where one left it, the step runs as it is, and
`faults` says what it was. The buffers of a step, which the caller owns, outlive its tapes.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from kernels.cpu_ops.binding import leaves, symbol, watch
from kernels.ops import Ops
from kernels.recording import Step

MOST_TAPES = 512  # of some 30 KB each for 30 layers; chunks of prompts and verified drafts have many shapes
NOT_IN_A_STEP = frozenset({"row_alignment", "prepare_group_quant"})


class _Call(ctypes.Structure):
    """TapeCall of tape.cpp."""

    _fields_ = (("function", ctypes.c_void_p), ("arguments", ctypes.c_char_p))


class _Calls:
    """What a step did, kept while it runs: see `binding.Watcher`."""

    def __init__(self) -> None:
        self.made: list[tuple[int, bytes]] = []
        self.outside: list[str] = []

    def called(self, address: int, packet: bytes) -> None:
        """One more call."""
        self.made.append((address, packet))

    def left(self, what: str) -> None:
        """Something that a replay would miss."""
        self.outside.append(what)


class _Tape:
    """Calls as C++ wants them."""

    def __init__(self, made: Sequence[tuple[int, bytes]]) -> None:
        self._packets = [packet for _, packet in made]  # the calls point into these
        self._calls = (_Call * len(made))(*(_Call(*call) for call in made))
        self._run = symbol("pz_run_tape")
        self._run.argtypes, self._run.restype = [ctypes.c_void_p, ctypes.c_int], None
        self._address, self._count = ctypes.addressof(self._calls), len(made)

    def replay(self) -> None:
        """Makes all calls, in their order."""
        self._run(self._address, self._count)


class Tape:
    """The recorder of the CPU; see `kernels.recording.Recorder`."""

    def __init__(self, most: int = MOST_TAPES) -> None:
        """most: shapes whose tapes are kept."""
        self._most = most
        self._tapes: OrderedDict[Hashable, _Tape | None] = OrderedDict()  # None: such a step left the library
        self._outside: dict[str, None] = {}
        self.num_replays = 0

    def run(self, shape: Hashable, step: Step) -> None:
        """Replays the shape's tape; without one the step is called, and its calls kept."""
        if shape not in self._tapes:
            self._record(shape, step)
            return
        self._tapes.move_to_end(shape)
        tape = self._tapes[shape]
        if tape is None:
            step()
        else:
            self.num_replays += 1
            tape.replay()

    def prepare(self, shape: Hashable, step: Step) -> None:
        """Nothing to do: recording takes no time of its own."""

    def faults(self) -> Sequence[str]:
        """What was computed outside of the library."""
        return tuple(f"{what} is computed outside of the C++ kernels" for what in self._outside)

    def _record(self, shape: Hashable, step: Step) -> None:
        calls = _Calls()
        watch(calls)
        try:
            step()
        finally:
            watch(None)
        self._outside |= dict.fromkeys(calls.outside)
        self._tapes[shape] = None if calls.outside else _Tape(calls.made)
        if len(self._tapes) > self._most:
            self._tapes.popitem(last=False)


def telling(ops: Ops, outside: Collection[str]) -> Ops:
    """The same ops; those named in `outside`, which other backends serve, tell a recording that they were used."""
    told: dict[str, Any] = {name: _told(name, getattr(ops, name)) for name in outside if name not in NOT_IN_A_STEP}
    return dataclasses.replace(ops, **told)


def _told(name: str, function: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any, **named: Any) -> None:
        leaves(f"the op {name}")
        function(*arguments, **named)

    return call
