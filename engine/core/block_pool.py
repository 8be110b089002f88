"""All KV blocks of an engine: which are free, which are used and by how many, and what the full ones hold.

Owns block ids, reference counts and the map from hashes to blocks; knows nothing of requests or tensors. Block 0 is the
null block: never handed out, used as padding. A block that nobody refers to keeps its contents until it is taken again,
so a prefix can be found in it: it is free and cached at once. Invariant, proved by `check()`: free + cached + used =
total, and a block is used exactly when somebody refers to it. (PagedAttention, arXiv 2309.06180.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.block_ledger import BlockLedger

NULL_BLOCK_ID = 0


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """One physical block.

    block_hash, token_ids: the name and contents of a full block that can be found; None otherwise. `previous` and
    `following` link it into the free queue while nobody refers to it.
    """

    block_id: int
    ref_count: int = 0
    block_hash: bytes | None = None
    token_ids: tuple[int, ...] | None = None
    previous: KVCacheBlock | None = field(default=None, repr=False)
    following: KVCacheBlock | None = field(default=None, repr=False)


class FreeBlockQueue:
    """Free blocks, least recently used first: a doubly linked list, so that any block leaves it in O(1)."""

    def __init__(self) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.following, self._tail.previous = self._tail, self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, block: KVCacheBlock) -> None:
        """Makes the block the last to be taken."""
        last = self._tail.previous
        assert last is not None
        block.previous, block.following = last, self._tail
        last.following = self._tail.previous = block
        self._length += 1

    def remove(self, block: KVCacheBlock) -> None:
        """Takes a block out wherever it stands. ValueError when it is not in the queue."""
        if block.previous is None or block.following is None:
            raise ValueError(f"block {block.block_id} is not free")
        block.previous.following, block.following.previous = block.following, block.previous
        block.previous = block.following = None
        self._length -= 1

    def pop_first(self) -> KVCacheBlock:
        """Takes the least recently used block. IndexError when there is none."""
        first = self._head.following
        if first is None or first is self._tail:
            raise IndexError("no free block")
        self.remove(first)
        return first

    def ids(self) -> list[int]:
        """The free block ids in the order they will be taken."""
        found: list[int] = []
        block = self._head.following
        while block is not None and block is not self._tail:
            found.append(block.block_id)
            block = block.following
        return found


class BlockPool:
    """Hands out blocks and takes them back.

    num_blocks counts the null block; `num_total` does not. ledger: what becomes of the blocks, for who wants to see it.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool of {num_blocks} blocks: at least 2 are needed, the null block and one to use")
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self._free = FreeBlockQueue()
        self._by_hash: dict[bytes, KVCacheBlock] = {}
        self._num_cached = 0
        self.ledger = BlockLedger(num_blocks)
        for block in self.blocks[1:]:
            self._free.append(block)

    @property
    def null_block(self) -> KVCacheBlock:
        """Stands in block tables for what is not there. Nobody owns it."""
        return self.blocks[NULL_BLOCK_ID]

    @property
    def num_total(self) -> int:
        return len(self.blocks) - 1

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free and cached ones."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody refers to and whose contents can still be found."""
        return self._num_cached

    @property
    def num_used(self) -> int:
        return self.num_total - self.num_available

    def allocate(self, count: int) -> list[KVCacheBlock] | None:
        """`count` blocks with one reference each, least recently used first, or None having changed nothing."""
        if count > len(self._free):
            return None
        taken = [self._free.pop_first() for _ in range(count)]
        for block in taken:
            self._forget(block)
            block.ref_count = 1
        self.ledger.touch([block.block_id for block in taken])
        return taken

    def find(self, block_hash: bytes, token_ids: tuple[int, ...]) -> KVCacheBlock | None:
        """The block that holds these tokens under this hash; it is not taken. A collision of hashes is no hit."""
        block = self._by_hash.get(block_hash)
        return block if block is not None and block.token_ids == token_ids else None

    def share(self, blocks: Sequence[KVCacheBlock]) -> None:
        """One more reference to each."""
        for block in blocks:
            if block.ref_count == 0:
                self._free.remove(block)
                self._num_cached -= block.block_hash is not None
            block.ref_count += 1
        self.ledger.found([block.block_id for block in blocks])

    def name(self, block: KVCacheBlock, block_hash: bytes, token_ids: tuple[int, ...]) -> None:
        """Lets a full block be found. Of several equal ones, the first is."""
        if block.block_hash is None and block_hash not in self._by_hash:
            block.block_hash, block.token_ids = block_hash, token_ids
            self._by_hash[block_hash] = block
            self._num_cached += block.ref_count == 0
            self.ledger.named(block.block_id, block_hash)

    def _forget(self, block: KVCacheBlock) -> None:
        """Evicts a block's contents."""
        if block.block_hash is not None:
            del self._by_hash[block.block_hash]
            self._num_cached -= block.ref_count == 0
            block.block_hash = block.token_ids = None
            self.ledger.forgotten(block.block_id)

    def release(self, blocks: list[KVCacheBlock]) -> None:
        """Drops one reference of each, last block first, so that the tail of a sequence is reused before its start."""
        for block in reversed(blocks):
            if block.ref_count <= 0:
                raise ValueError(f"block {block.block_id} is released more often than it was taken")
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free.append(block)
                self._num_cached += block.block_hash is not None
        self.ledger.touch([block.block_id for block in blocks])

    def check(self) -> None:
        """Proves the invariant. AssertionError says what is wrong."""
        free = self._free.ids()
        assert len(free) == len(set(free)) == len(self._free), f"free queue is broken: {free}"
        assert NULL_BLOCK_ID not in free, "the null block is free"
        in_use = {block.block_id for block in self.blocks[1:] if block.ref_count > 0}
        assert not in_use & set(free), f"free and used at once: {sorted(in_use & set(free))}"
        assert len(in_use) + len(free) == self.num_total, f"{self.num_total - len(in_use) - len(free)} blocks are lost"
        named = {block.block_id for block in self.blocks if block.block_hash is not None}
        found = {block.block_id for block in self._by_hash.values()}
        assert named == found, f"named but not found, or the reverse: {sorted(named ^ found)}"
        cached = sum(block.ref_count == 0 for block in self._by_hash.values())
        assert cached == self._num_cached, f"{cached} blocks are cached, {self._num_cached} are counted"
