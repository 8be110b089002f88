"""The names of full blocks: a hash chain over everything that their keys and values depend on.

A block's hash covers its own tokens, its parent's hash, and by the root the model, the KV dtype, the block size and the
request's cache salt. Equal hashes mean equal contents; the pool still compares the tokens. Drafts never come here: only
tokens that are decided have hashes. (vLLM's design; the chain makes a tree without building one.)
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

DIGEST_BYTES = 16


class PrefixHasher:
    """Hashes of one engine. `identity`: what is common to all its blocks, such as model, KV dtype and block size."""

    def __init__(self, identity: str, block_size: int) -> None:
        self.block_size = block_size
        self._identity = identity

    def extend(self, hashes: list[bytes], token_ids: Sequence[int], cache_salt: str) -> None:
        """Appends the hashes of the full blocks of `token_ids` that `hashes` lacks."""
        size = self.block_size
        for index in range(len(hashes), len(token_ids) // size):
            parent = hashes[-1] if hashes else self._root(cache_salt)
            tokens = array("q", token_ids[index * size : (index + 1) * size])
            hashes.append(hashlib.blake2b(parent + tokens.tobytes(), digest_size=DIGEST_BYTES).digest())

    def _root(self, cache_salt: str) -> bytes:
        """The parent of first blocks: requests with different salts share nothing."""
        return hashlib.blake2b(f"{self._identity}\0{cache_salt}".encode(), digest_size=DIGEST_BYTES).digest()
