"""What a drafter knows of a runner's requests: the token in every KV slot, and which slots its own cache has filled.

Owns the book of block tables, tokens and entries; knows no tensors but the tables of a pass. An entry is *missing*
where the target has computed a token and the drafter has not. Invariant: `filled[b]` leading slots of block b hold
entries of the tokens that the block holds now; a block that is handed out anew has none. A shared block's tokens and
entries are those of every request that shares it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from engine.core.speculation import BlockIds, DraftShare
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.runner.block_tables import RequestTables


class DraftedRequest:
    """A request's block table, and how many of its leading entries are surely filled."""

    __slots__ = ("blocks", "num_filled", "tables")

    def __init__(self) -> None:
        self.tables = RequestTables(1)
        self.blocks = self.tables.blocks[0]
        self.num_filled = 0


class DraftSlots:
    """The slots of one runner."""

    def __init__(self, num_blocks: int, block_size: int, group: int) -> None:
        """group: the KV group of the target's full-attention layers, whose tables the drafter shares."""
        self.block_size, self.group = block_size, group
        self.token_ids = array("q", bytes(8 * num_blocks * block_size))
        self.filled = array("i", bytes(4 * num_blocks))
        self._known: dict[str, DraftedRequest] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the book."""
        return len(self.token_ids) * self.token_ids.itemsize + len(self.filled) * self.filled.itemsize

    def see(self, plan: SchedulerOutput) -> None:
        """Takes a plan in that is about to run."""
        self.forget(plan.ended)
        for share in plan.requests:
            request = self._begin(share) if share.first else self._known[share.request_id]
            if not share.first:
                self._extend(request, share.block_ids)
            self._write(request, share.num_computed_tokens, share.token_ids)

    def take(self, share: DraftShare) -> DraftedRequest:
        """The request of a draft plan, its last token and its new blocks taken in."""
        request = self._known[share.request_id]
        self._extend(request, share.block_ids)
        self._write(request, share.num_computed_tokens, share.token_ids)
        return request

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops requests. Their blocks keep tokens and entries: they may be found in the prefix cache."""
        for request_id in request_ids:
            self._known.pop(request_id, None)

    def first_missing(self, request: DraftedRequest) -> int:
        """The position of the first entry that is not filled: another request may have filled shared blocks."""
        size, position = self.block_size, request.num_filled
        while position // size < len(request.blocks):
            start = position - position % size
            reached = start + self.filled[request.blocks[position // size]]
            if reached <= position:
                break
            position = reached
            if reached < start + size:
                break
        request.num_filled = position
        return position

    def mark(self, request: DraftedRequest, end: int) -> None:
        """All entries before position `end` are filled now."""
        size = self.block_size
        for number in range(request.num_filled // size, -(-end // size)):
            block = request.blocks[number]
            self.filled[block] = max(self.filled[block], min(size, end - number * size))
        request.num_filled = max(request.num_filled, end)

    def slots(self, request: DraftedRequest, first: int, end: int) -> list[int]:
        """The KV slots of positions `first` to end - 1."""
        size, blocks = self.block_size, request.blocks
        return [blocks[position // size] * size + position % size for position in range(first, end)]

    def _begin(self, share: ScheduledRequest) -> DraftedRequest:
        request = self._known[share.request_id] = DraftedRequest()
        request.tables.extend((share.block_ids[self.group],))
        for block in request.blocks[share.num_computed_tokens // self.block_size :]:
            self.filled[block] = 0  # those before it are shared, and come with what is known of them
        return request

    def _extend(self, request: DraftedRequest, block_ids: BlockIds) -> None:
        added = block_ids[self.group] if block_ids else ()
        if added:
            request.tables.extend((added,))
            for block in added:
                self.filled[block] = 0

    def _write(self, request: DraftedRequest, start: int, token_ids: Sequence[int]) -> None:
        size, blocks, known = self.block_size, request.blocks, self.token_ids
        if len(token_ids) == 1:
            known[blocks[start // size] * size + start % size] = token_ids[0]
            return
        for offset, slot in enumerate(self.slots(request, start, start + len(token_ids))):
            known[slot] = token_ids[offset]
