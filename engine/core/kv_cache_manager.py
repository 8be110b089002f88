"""The block table of each request, and what of a request's tokens is in the cache already.

Owns which request holds which blocks; the pool owns the blocks themselves. Knows nothing of the scheduler's choices.
Invariant: a request's table covers at least its computed tokens, and `allocate_slots` changes nothing when it fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.block_pool import BlockPool, KVCacheBlock
from engine.core.prefix import PrefixHasher
from engine.core.request import Request


class KVCacheManager:
    """Gives requests room for their keys and values, a block of `block_size` tokens at a time.

    hasher: names full blocks, so that prefixes are shared; None: nothing is shared.
    """

    def __init__(self, pool: BlockPool, block_size: int, hasher: PrefixHasher | None = None) -> None:
        self.pool = pool
        self.block_size = block_size
        self._hasher = hasher
        self._tables: dict[str, list[KVCacheBlock]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def cached_prefix(self, request: Request) -> list[KVCacheBlock]:
        """The blocks that hold the longest known prefix of the request; they are not taken yet.

        At least one token is left to compute: its logits are wanted.
        """
        if self._hasher is None:
            return []
        self._hasher.extend(request.block_hashes, request.token_ids, request.cache_salt)
        found: list[KVCacheBlock] = []
        for index in range((request.num_tokens - 1) // self.block_size):
            block = self.pool.find(request.block_hashes[index], self._tokens(request, index))
            if block is None:
                break
            found.append(block)
        return found

    def allocate_slots(
        self, request_id: str, num_tokens: int, *, prefix: Sequence[KVCacheBlock] = (), spare: int = 0
    ) -> list[int] | None:
        """Room for the first `num_tokens` tokens of a request.

        prefix: shared blocks that a request without a table starts with. spare: blocks that must stay available.
        Returns the ids of the blocks that were added (perhaps none), or None having changed nothing.
        """
        table = self._tables.get(request_id, [])
        missing = self.blocks_for(num_tokens) - len(table) - len(prefix)
        idle = sum(block.ref_count == 0 for block in prefix)
        if max(0, missing) + idle + spare > self.pool.num_available:
            return None
        self.pool.share(prefix)
        added = [*prefix, *(self.pool.allocate(max(0, missing)) or [])]
        if added:
            self._tables[request_id] = table + added
        return [block.block_id for block in added]

    def publish(self, request: Request) -> None:
        """Lets the request's computed full blocks be found. Called once their keys and values are written."""
        if self._hasher is None:
            return
        self._hasher.extend(request.block_hashes, request.token_ids, request.cache_salt)
        table = self._tables[request.request_id]
        full = request.num_computed_tokens // self.block_size
        for index in range(request.num_published_blocks, full):
            self.pool.name(table[index], request.block_hashes[index], self._tokens(request, index))
        request.num_published_blocks = full

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

    def _tokens(self, request: Request, index: int) -> tuple[int, ...]:
        """The tokens of the request's block number `index`."""
        return tuple(request.token_ids[index * self.block_size : (index + 1) * self.block_size])
