"""The block table of each request.

Owns which request holds which blocks; the pool owns the blocks themselves. Knows nothing of the scheduler's choices.
Invariant: a request's table covers at least its computed tokens, and `allocate_slots` changes nothing when it fails.
"""

from __future__ import annotations

from engine.core.block_pool import BlockPool, KVCacheBlock


class KVCacheManager:
    """Gives requests room for their keys and values, a block of `block_size` tokens at a time."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self._tables: dict[str, list[KVCacheBlock]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def allocate_slots(self, request_id: str, num_tokens: int) -> list[int] | None:
        """Room for the first `num_tokens` tokens of a request.

        Returns the ids of the blocks that were added (perhaps none), or None having changed nothing.
        """
        table = self._tables.get(request_id, [])
        missing = self.blocks_for(num_tokens) - len(table)
        if missing <= 0:
            return []
        added = self.pool.allocate(missing)
        if added is None:
            return None
        self._tables[request_id] = table + added
        return [block.block_id for block in added]

    def block_ids(self, request_id: str) -> list[int]:
        """The request's block table."""
        return [block.block_id for block in self._tables.get(request_id, [])]

    def free(self, request_id: str) -> None:
        """Gives all blocks of a request back. A request without blocks is fine."""
        self.pool.release(self._tables.pop(request_id, []))

    def check(self) -> None:
        """Proves that the tables and the pool agree: every reference has an owner."""
        self.pool.check()
        references: dict[int, int] = {}
        for table in self._tables.values():
            for block in table:
                references[block.block_id] = references.get(block.block_id, 0) + 1
        for block in self.pool.blocks[1:]:
            owners = references.get(block.block_id, 0)
            assert owners == block.ref_count, f"block {block.block_id}: {block.ref_count} references, {owners} owners"
