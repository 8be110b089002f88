"""What has become of each block, for people to look at: the short form of its name, its hits, when it was last touched.

Owns three arrays over all blocks, written as the pool goes along so that reading them costs a copy of bytes, and which
parts of them have changed since they were last read. Decides nothing: the pool works the same without it. Invariant: a
block has a name here exactly when the pool can find its contents.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable
from itertools import pairwise

NAME_BYTES = 6  # the first four bytes of a block's hash, its last one (the KV group's), and 1; all 0 without a name
SHORT_HASH_BYTES = 4
SPAN_SHIFT = 6  # changes are noted by spans of 64 blocks


class BlockLedger:
    """hits: how often each block's contents were found since they got their name. touched_s: on the ledger's own clock,
    when it was last taken, found or given back. evictions_total: contents that were given up for new ones."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.names = bytearray(NAME_BYTES * num_blocks)
        self.hits = array("I", bytes(4 * num_blocks))
        self.touched_s = array("f", bytes(4 * num_blocks))
        self.evictions_total = 0
        self._started_s = time.monotonic()
        self._changed: set[int] = set()

    def now_s(self) -> float:
        """The ledger's clock: seconds since it began."""
        return time.monotonic() - self._started_s

    def touch(self, block_ids: Iterable[int]) -> None:
        """These were taken or given back."""
        now, touched, changed = self.now_s(), self.touched_s, self._changed
        for block_id in block_ids:
            touched[block_id] = now
            changed.add(block_id >> SPAN_SHIFT)

    def found(self, block_ids: Iterable[int]) -> None:
        """These were found by their names, and taken."""
        now, touched, changed, hits = self.now_s(), self.touched_s, self._changed, self.hits
        for block_id in block_ids:
            touched[block_id] = now
            hits[block_id] += 1
            changed.add(block_id >> SPAN_SHIFT)

    def named(self, block_id: int, block_hash: bytes) -> None:
        """The block can be found by this hash from now on."""
        short = block_hash[:SHORT_HASH_BYTES].ljust(SHORT_HASH_BYTES, b"\0")
        self.names[NAME_BYTES * block_id : NAME_BYTES * (block_id + 1)] = short + block_hash[-1:] + b"\1"
        self._changed.add(block_id >> SPAN_SHIFT)

    def forgotten(self, block_id: int) -> None:
        """Its contents were given up."""
        self.names[NAME_BYTES * block_id : NAME_BYTES * (block_id + 1)] = bytes(NAME_BYTES)
        self.hits[block_id] = 0
        self.evictions_total += 1
        self._changed.add(block_id >> SPAN_SHIFT)

    def take_changes(self, *, everything: bool = False) -> list[tuple[int, int]]:
        """The ranges of blocks, first and end, that have changed since the last call, in order."""
        changed, self._changed = sorted(self._changed), set()
        if everything:
            return [(0, self.num_blocks)]
        if not changed:
            return []
        breaks = [at for at, (left, right) in enumerate(pairwise(changed), 1) if right != left + 1]
        pieces = zip([0, *breaks], [*breaks, len(changed)], strict=True)
        return [
            (changed[first] << SPAN_SHIFT, min((changed[end - 1] + 1) << SPAN_SHIFT, self.num_blocks))
            for first, end in pieces
        ]
