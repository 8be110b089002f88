"""What lies in which block, as plain data that can be sent: whole at first, then what has changed.

Owns the frames of a watch and the copies of the block tables that tell what is new in them. Knows no pipe, and costs
nothing while nobody watches. Between two steps a table covers exactly the tokens that are computed, so that blocks
beyond them are those that were reserved for drafts. Invariant: the frames of a watch, laid over each other from number
1 on, are the tables and the pool's ledger as they were when the last one was made.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field

from engine.core.block_ledger import NAME_BYTES
from engine.core.block_pool import KVCacheBlock
from engine.core.scheduler import Scheduler

FRAME_INTERVAL_S = 0.5
LONGEST_WATCH_S = 60.0


@dataclass(frozen=True, slots=True)
class TableChange:
    """What is new in one block table. passed: how many leading blocks its window has passed and given back. Behind the
    first `start` blocks, which stand as they were, come `block_ids`: unsigned 32-bit numbers, little-endian."""

    passed: int
    start: int
    block_ids: bytes


@dataclass(frozen=True, slots=True)
class BlockOwner:
    """A request, or a sample of one, that holds blocks. num_computed_tokens: those whose keys and values are written
    and certain. tables: one for each KV group."""

    request_id: str
    index: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    tables: list[TableChange]


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """The ledger's record of the blocks from `first` on (see `BlockLedger`): NAME_BYTES, an unsigned 32-bit number of
    hits and a 32-bit float of seconds for each, little-endian."""

    first: int
    names: bytes
    hits: bytes
    touched_s: bytes


@dataclass(frozen=True, slots=True)
class BlockFrame:
    """One look at all blocks. number: 1 tells everything, the next ones what has changed since the one before.

    now_s: the ledger's clock at `t_s`. num_blocks counts the null block. windows: of each KV group, 0: it sees all.
    owners: all that hold blocks; who is missing holds none. The counters are the engine's, ever-growing.
    """

    number: int
    t_s: float
    now_s: float
    num_blocks: int
    block_size: int
    windows: list[int]
    owners: list[BlockOwner]
    spans: list[BlockSpan]
    num_used: int
    num_cached: int
    num_running: int
    num_waiting: int
    evictions_total: int
    preemptions_total: int
    prefix_queries_total: int
    prefix_hits_total: int


@dataclass(slots=True)
class _Copy:
    """A request's tables as they were last told."""

    tables: tuple[list[KVCacheBlock], ...]
    lengths: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)


class BlockWatch:
    """Makes frames of one scheduler's blocks for as long as somebody watches."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._until_s = 0.0
        self._next_s = 0.0
        self._number = 0
        self._copies: dict[str, _Copy] = {}

    def renew(self, seconds: float, *, afresh: bool = False) -> None:
        """Watch for so long from now. afresh: begin again with a frame that tells everything."""
        now = time.monotonic()
        if afresh or now > self._until_s:
            self._number, self._next_s = 0, now
        self._until_s = now + min(seconds, LONGEST_WATCH_S)

    def due(self) -> BlockFrame | None:
        """The next frame when it is time for one, else None."""
        now = time.monotonic()
        if now > self._until_s:
            self._copies.clear()
            return None
        if now < self._next_s:
            return None
        self._next_s = now + FRAME_INTERVAL_S
        return self.frame()

    def frame(self) -> BlockFrame:
        """What has changed since the last frame of this watch."""
        self._number += 1
        first = self._number == 1
        if first:
            self._copies.clear()
        scheduler = self._scheduler
        kv, pool = scheduler.kv, scheduler.kv.pool
        return BlockFrame(
            number=self._number,
            t_s=time.time(),
            now_s=pool.ledger.now_s(),
            num_blocks=len(pool.blocks),
            block_size=kv.block_size,
            windows=[group.window for group in kv.groups],
            owners=self._owners(),
            spans=[self._span(start, end) for start, end in pool.ledger.take_changes(everything=first)],
            num_used=pool.num_used,
            num_cached=pool.num_cached,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + len(scheduler.held),
            evictions_total=pool.ledger.evictions_total,
            preemptions_total=scheduler.num_preemptions,
            prefix_queries_total=scheduler.prefix_queries,
            prefix_hits_total=scheduler.prefix_hits,
        )

    def _owners(self) -> list[BlockOwner]:
        copies, self._copies = self._copies, {}
        owners: list[BlockOwner] = []
        for request_id, tables in self._scheduler.kv.tables().items():
            request = self._scheduler.requests[request_id]
            copy = copies.get(request_id)
            if copy is None or copy.tables is not tables:  # a request that was preempted has come back to new ones
                copy = _Copy(tables, [0] * len(tables), [0] * len(tables))
            self._copies[request_id] = copy
            owners.append(
                BlockOwner(
                    request_id=request.client_id,
                    index=request.sample_index,
                    num_prompt_tokens=request.num_prompt_tokens,
                    num_tokens=request.num_tokens,
                    num_computed_tokens=min(request.num_computed_tokens, request.num_tokens),
                    num_cached_tokens=request.num_cached_tokens,
                    tables=[self._table_change(copy, group, table) for group, table in enumerate(tables)],
                )
            )
        return owners

    def _table_change(self, copy: _Copy, group: int, table: list[KVCacheBlock]) -> TableChange:
        start, passed = copy.lengths[group], copy.passed[group]
        null = self._scheduler.kv.pool.null_block
        while passed < len(table) and table[passed] is null:
            passed += 1
        copy.lengths[group], copy.passed[group] = len(table), passed
        fresh = array("I", [block.block_id for block in table[start:]]) if start < len(table) else b""
        return TableChange(passed, start, bytes(fresh))

    def _span(self, first: int, end: int) -> BlockSpan:
        ledger = self._scheduler.kv.pool.ledger
        return BlockSpan(
            first,
            bytes(ledger.names[NAME_BYTES * first : NAME_BYTES * end]),
            ledger.hits[first:end].tobytes(),
            ledger.touched_s[first:end].tobytes(),
        )
