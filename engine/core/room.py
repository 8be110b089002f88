"""Whether a request would find room now, and what it would take: the admission's own arithmetic, changing nothing.

Knows the scheduler's rules (its reserve, its order, its sequences); decides nothing for it. Invariant: asking takes no
block and counts no hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.kv_groups import most_blocks
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Room:
    """num_cached_tokens: of the prompt, found in the cache; None where only its length is known.

    blocks_for_prompt, blocks_in_all: the most that it holds at once, in all KV groups, for its prompt and to its last
    token. blocks_shared: of these, those that others hold already. blocks_available: free ones, cached ones among them.
    blocks_reserved: of these, those that are kept from new requests while others run.
    """

    num_tokens: int
    max_num_tokens: int
    num_cached_tokens: int | None
    blocks_for_prompt: int
    blocks_in_all: int
    blocks_shared: int
    blocks_available: int
    blocks_reserved: int
    blocks_total: int
    num_running: int
    max_num_seqs: int
    num_waiting: int


def room_for(
    scheduler: Scheduler, token_ids: Sequence[int] | None, num_tokens: int, max_num_tokens: int, cache_salt: str
) -> Room:
    """Room for a prompt, of these tokens or only of so many, that may grow to `max_num_tokens`."""
    kv = scheduler.kv
    cached: int | None = None
    shared = 0
    if token_ids is not None:
        asked = Request("", list(token_ids), SamplingParams(), 0, frozenset(), 1, cache_salt=cache_salt)
        prefix = kv.cached_prefix(asked)
        cached = prefix.num_blocks * kv.block_size
        shared = sum(block.ref_count > 0 for table in prefix.tables for block in table)
    chunk = scheduler.most_per_request
    return Room(
        num_tokens=num_tokens,
        max_num_tokens=max_num_tokens,
        num_cached_tokens=cached,
        blocks_for_prompt=most_blocks(kv.groups, num_tokens, chunk, kv.block_size),
        blocks_in_all=most_blocks(kv.groups, max_num_tokens, chunk, kv.block_size),
        blocks_shared=shared,
        blocks_available=kv.pool.num_available,
        blocks_reserved=scheduler.watermark if scheduler.running else 0,
        blocks_total=kv.pool.num_total,
        num_running=len(scheduler.running),
        max_num_seqs=scheduler.max_num_seqs,
        num_waiting=len(scheduler.waiting),
    )
