"""The last ten minutes of an engine's block frames, so that any moment of them can be looked at again.

Owns the frames, packed: now and then one that tells everything, then the changes as the engine sent them. Knows nothing
of who looks. Invariant: never older than KEEP_S nor larger than its cap, and what is kept begins with a whole frame.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Any

from app.block_state import BlockState, OwnerNumbers
from engine.core.block_map import BlockFrame
from engine.protocol import BlockMap, decode_from_engine, encode

KEEP_S = 600.0
MAX_BYTES = 32 << 20
WHOLE_EVERY = 40  # frames, so that looking back lays no more than so many over each other


@dataclass(slots=True)
class _Kept:
    t: float
    whole: bool
    packed: bytes
    number: int
    counts: dict[str, int]


class BlockHistory:
    """Frames in the order of time."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: deque[_Kept] = deque()
        self._max_bytes = max_bytes
        self._since_whole = 0
        self.num_bytes = 0

    def add(self, frame: BlockFrame, state: BlockState, number: int, counts: dict[str, int]) -> None:
        """Keep a frame that was just laid over `state`."""
        whole = frame.number == 1 or self._since_whole >= WHOLE_EVERY or not self._kept
        told = state.whole() if whole and frame.number != 1 else frame
        packed = zlib.compress(encode(BlockMap(told)), 1)
        self._kept.append(_Kept(frame.t_s, whole, packed, number, counts))
        self._since_whole = 1 if whole else self._since_whole + 1
        self.num_bytes += len(packed)
        self._drop(frame.t_s - KEEP_S)

    def at(self, t: float, numbers: OwnerNumbers) -> tuple[BlockState, int] | None:
        """The state as of `t`, and its number; None where nothing is kept from before it."""
        place = bisect_right(self._kept, t, key=lambda kept: kept.t) - 1
        if place < 0:
            return None
        kept = list(self._kept)
        start = next(at for at in range(place, -1, -1) if kept[at].whole)
        state = BlockState(numbers)
        for entry in kept[start : place + 1]:
            message = decode_from_engine(zlib.decompress(entry.packed))
            assert isinstance(message, BlockMap)
            state.apply(message.frame, in_order=True)
        return state, kept[place].number

    def line(self, since: float, until: float) -> dict[str, Any]:
        """The counts over time, by columns."""
        kept = [entry for entry in self._kept if since <= entry.t <= until]
        names = list(kept[0].counts) if kept else []
        return {
            "t": [entry.t for entry in kept],
            "columns": {name: [entry.counts[name] for entry in kept] for name in names},
        }

    def growth(self, name: str, span_s: float) -> tuple[int, float] | None:
        """How much a counter grew over up to the last `span_s` seconds, and over how many; None for less than two."""
        if len(self._kept) < 2:
            return None
        newest = self._kept[-1]
        place = bisect_right(self._kept, newest.t - span_s, key=lambda kept: kept.t)
        oldest = self._kept[min(place, len(self._kept) - 2)]
        return newest.counts[name] - oldest.counts[name], newest.t - oldest.t

    def _drop(self, oldest: float) -> None:
        """Everything up to a whole frame goes when its first one is too old, or too much is kept."""
        while len(self._kept) > 1 and (self._next_whole_is_old(oldest) or self.num_bytes > self._max_bytes):
            self.num_bytes -= len(self._kept.popleft().packed)
            while self._kept and not self._kept[0].whole:
                self.num_bytes -= len(self._kept.popleft().packed)

    def _next_whole_is_old(self, oldest: float) -> bool:
        following = next((kept for at, kept in enumerate(self._kept) if at and kept.whole), None)
        return following is not None and following.t <= oldest
