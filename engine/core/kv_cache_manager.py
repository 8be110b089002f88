"""The block tables of each request, and what of a request's tokens is in the cache already.

Owns which request holds which blocks, in a table for each KV group; the pool owns the blocks themselves. Knows nothing
of the scheduler's choices. Invariant: a request's tables are of one length and cover at least its computed tokens; in a
group with a window the blocks that it has passed are the null block; and `allocate_slots` changes nothing when it
fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.core.block_pool import BlockPool, KVCacheBlock
from engine.core.kv_groups import KVGroup, most_blocks
from engine.core.prefix import PrefixHasher
from engine.core.request import Request
from engine.core.speculation import BlockIds

ONE_GROUP = (KVGroup(layers=(0,)),)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Blocks that hold the beginning of a request; they are not taken yet.

    tables: `num_blocks` blocks for each KV group, the null block where the group's window has passed.
    """

    num_blocks: int
    tables: tuple[list[KVCacheBlock], ...]


class KVCacheManager:
    """Gives requests room for their keys and values, a block of `block_size` tokens at a time.

    hasher: names full blocks, so that prefixes are shared; None: nothing is shared. groups: the model's, each with a
    block table of its own (`engine.core.kv_groups`).
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        hasher: PrefixHasher | None = None,
        groups: Sequence[KVGroup] = ONE_GROUP,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.groups = tuple(groups)
        self._hasher = hasher
        self._sliding = [index for index, group in enumerate(groups) if group.window]
        self._key_suffixes = [bytes([index]) for index in range(len(groups))]
        self._no_prefix = CachedPrefix(0, tuple([] for _ in groups))
        self._nothing_added: BlockIds = tuple(() for _ in self.groups)
        self._tables: dict[str, tuple[list[KVCacheBlock], ...]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks of a group hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def blocks_to_come(self, num_tokens: int, first: int, end: int, chunk: int) -> int:
        """How many more blocks than for its tokens `first` to `end` a request may come to hold.

        It computes those in its first step, up to `chunk` in later ones, and `num_tokens` in all.
        """
        size = self.block_size
        held = sum(self.blocks_for(end) - group.blocks_passed(first, size) for group in self.groups)
        return max(0, most_blocks(self.groups, num_tokens, chunk, size) - held)

    def cached_prefix(self, request: Request) -> CachedPrefix:
        """The longest prefix of the request that every group can serve.

        A group with a window needs only the last window of it. At least one token is left to compute: its logits are
        wanted.
        """
        if self._hasher is None:
            return self._no_prefix
        self._hasher.extend(request.block_hashes, request.token_ids, request.cache_salt)
        num_blocks = (request.num_tokens - 1) // self.block_size
        tables: list[list[KVCacheBlock]] = [[] for _ in self.groups]
        for index, group in enumerate(self.groups):
            if not group.window:
                tables[index] = self._find_beginning(request, index, num_blocks)
                num_blocks = len(tables[index])
        if self._sliding:
            num_blocks, found = self._find_windows(request, num_blocks)
            for index in self._sliding:
                passed = self._passed(index, num_blocks)
                held = [found[index, number] for number in range(passed, num_blocks)]
                tables[index] = [self.pool.null_block] * passed + held
        return CachedPrefix(num_blocks, tuple(table[:num_blocks] for table in tables))

    def allocate_slots(
        self, request_id: str, num_tokens: int, *, prefix: CachedPrefix | None = None, spare: int = 0
    ) -> BlockIds | None:
        """Room for the first `num_tokens` tokens of a request.

        prefix: shared blocks that a request without tables starts with. spare: blocks that must stay available, if it
        takes any. Returns the ids of the blocks that were added to each table (perhaps none), or None having changed
        nothing.
        """
        tables = self._tables.get(request_id)
        if tables is not None and num_tokens <= len(tables[0]) * self.block_size:
            return self._nothing_added  # most steps of most requests
        prefix = prefix or self._no_prefix
        known = prefix.num_blocks if tables is None else len(tables[0])
        missing = max(0, self.blocks_for(num_tokens) - known)
        shared = [block for table in prefix.tables for block in table if block is not self.pool.null_block]
        idle = sum(block.ref_count == 0 for block in shared)
        if missing * len(self.groups) + idle + spare > self.pool.num_available:
            return None
        self.pool.share(shared)
        fresh = self.pool.allocate(missing * len(self.groups)) or []
        if tables is None:
            tables = self._tables[request_id] = tuple([] for _ in self.groups)
        added = [
            [*prefix.tables[index], *fresh[index * missing : (index + 1) * missing]] for index in range(len(tables))
        ]
        for table, blocks in zip(tables, added, strict=True):
            table.extend(blocks)
        return tuple(tuple(block.block_id for block in blocks) for blocks in added)

    def commit(self, request: Request) -> None:
        """Takes the request's computed tokens as certain, once their keys and values are written.

        Their full blocks can be found from now on, and the blocks that their windows have passed are released. Tokens
        that are not decided yet count for neither.
        """
        tables = self._tables[request.request_id]
        certain = min(request.num_computed_tokens, request.num_tokens)
        full = certain // self.block_size
        if self._hasher is not None and full > request.num_published_blocks:
            self._hasher.extend(request.block_hashes, request.token_ids, request.cache_salt)
            for number in range(request.num_published_blocks, full):
                tokens = self._tokens(request, number)
                for index, table in enumerate(tables):
                    if table[number] is not self.pool.null_block:
                        self.pool.name(table[number], self._key(request, index, number), tokens)
            request.num_published_blocks = full
        for index in self._sliding:
            self._release_passed(tables[index], self.groups[index].blocks_passed(certain, self.block_size))

    def blocks_to_take(self, request_id: str, num_tokens: int) -> int:
        """How many blocks `allocate_slots` would add to the tables of a request that has some."""
        return max(0, self.blocks_for(num_tokens) - len(self._tables[request_id][0])) * len(self.groups)

    def block_ids(self, request_id: str) -> BlockIds:
        """The request's block tables; empty ones for a request without blocks."""
        tables = self._tables.get(request_id, self._no_prefix.tables)
        return tuple(tuple(block.block_id for block in table) for table in tables)

    def tables(self) -> Mapping[str, tuple[list[KVCacheBlock], ...]]:
        """The tables of all requests that have blocks, as they are: to look at, not to keep."""
        return self._tables

    def free(self, request_id: str) -> None:
        """Gives all blocks of a request back, the tails of all tables first. A request without blocks is fine."""
        rows = zip(*self._tables.pop(request_id, ()), strict=True)
        self.pool.release([block for row in rows for block in row if block is not self.pool.null_block])

    def check(self) -> None:
        """Proves that the tables and the pool agree: every reference has an owner, and only windows leave gaps."""
        self.pool.check()
        references: dict[int, int] = {}
        for request_id, tables in self._tables.items():
            assert len({len(table) for table in tables}) == 1, f"tables of {request_id!r} differ in length"
            for group, table in zip(self.groups, tables, strict=True):
                held = [block.block_id for block in table if block is not self.pool.null_block]
                gap = len(table) - len(held)
                assert gap == 0 or group.window, f"{request_id!r}: null blocks in a table without a window"
                assert held == [block.block_id for block in table[gap:]], f"{request_id!r}: a gap behind its front"
                for block_id in held:
                    references[block_id] = references.get(block_id, 0) + 1
        for block in self.pool.blocks:
            owners = references.get(block.block_id, 0)
            assert owners == block.ref_count, f"block {block.block_id}: {block.ref_count} references, {owners} owners"

    def _find_beginning(self, request: Request, index: int, most: int) -> list[KVCacheBlock]:
        """The known blocks of one group from the request's start on, up to `most`."""
        found: list[KVCacheBlock] = []
        while len(found) < most and (block := self._find(request, index, len(found))) is not None:
            found.append(block)
        return found

    def _find_windows(self, request: Request, num_blocks: int) -> tuple[int, dict[tuple[int, int], KVCacheBlock]]:
        """The longest prefix of up to `num_blocks` whose last window is known to every sliding group, and its blocks
        by group and number.

        One walk from the end: where a block is missing, only prefixes that end before it are left.
        """
        found: dict[tuple[int, int], KVCacheBlock] = {}
        passed = {index: self._passed(index, num_blocks) for index in self._sliding}
        number = num_blocks - 1
        while number >= min(passed.values()):
            for index in self._sliding:
                if number < passed[index]:
                    continue
                block = self._find(request, index, number)
                if block is None:
                    num_blocks = number
                    passed = {index: self._passed(index, num_blocks) for index in self._sliding}
                    break
                found[index, number] = block
            number -= 1
        return num_blocks, found

    def _find(self, request: Request, index: int, number: int) -> KVCacheBlock | None:
        """The block of group `index` that holds the request's tokens of block `number`."""
        return self.pool.find(self._key(request, index, number), self._tokens(request, number))

    def _passed(self, index: int, num_blocks: int) -> int:
        """The blocks that the window of group `index` has passed behind `num_blocks` whole ones."""
        return self.groups[index].blocks_passed(num_blocks * self.block_size, self.block_size)

    def _release_passed(self, table: list[KVCacheBlock], passed: int) -> None:
        """Gives the first `passed` blocks back, those that are still there."""
        first = passed
        while first > 0 and table[first - 1] is not self.pool.null_block:
            first -= 1
        if first < passed:
            self.pool.release(table[first:passed])
            table[first:passed] = [self.pool.null_block] * (passed - first)

    def _key(self, request: Request, index: int, number: int) -> bytes:
        """The name of the request's block `number` in group `index`: other layers, other contents."""
        return request.block_hashes[number] + self._key_suffixes[index]

    def _tokens(self, request: Request, number: int) -> tuple[int, ...]:
        """The tokens of the request's block `number`."""
        return tuple(request.token_ids[number * self.block_size : (number + 1) * self.block_size])
