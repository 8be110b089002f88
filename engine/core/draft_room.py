"""Blocks for drafts: what a running request may take of the pool ahead of its need.

Knows the scheduler's rules; plans nothing. Invariant: behind what it gives, the pool still has what every other running
request takes next, its next block or the chunk of its prompt, and the reserve that new requests leave, too. A draft
takes a block at most a block's worth of tokens too early, so nobody loses theirs for a guess.
"""

from __future__ import annotations

from engine.core.request import Request
from engine.core.scheduler import Scheduler


class DraftRoom:
    """Of one turn of the engine, between two plans."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ahead: int | None = None  # blocks that running requests take next, and the reserve; None: not counted

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Room for `num_tokens` tokens of a running request, if it has that or the others can spare it."""
        kv = self._scheduler.kv
        if not kv.blocks_to_take(request.request_id, num_tokens):
            return True
        if self._ahead is None:
            self._ahead = self._scheduler.watermark + sum(map(self._next_blocks, self._scheduler.running))
        others = self._ahead - self._next_blocks(request)
        added = kv.allocate_slots(request.request_id, num_tokens, spare=others)
        if added is None:
            return False
        request.untold_blocks.append(added)
        self._ahead = others + self._next_blocks(request)
        return True

    def _next_blocks(self, request: Request) -> int:
        kv, reached = self._scheduler.kv, request.num_computed_tokens
        chunk = min(request.num_tokens, reached + self._scheduler.most_per_request)
        return kv.blocks_to_take(request.request_id, max(reached + kv.block_size, chunk))
