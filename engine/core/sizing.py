"""How large the KV pool of a load becomes: integers in, integers out.

Owns the byte counts of KV blocks, and the choice of pool size and context length. Does not know devices, files or
tensors: the caller measures memory and says how much of it is free.
Invariant: a `KVPlan` holds at least one sequence of its `max_model_len` beside the null block, inside the memory it
was given; whatever cannot be so is a `SizingError` with the numbers, never a smaller pool than the one asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import GIB, MIB, LoadOptions, ModelConfig
from engine.core.kv_groups import KVGroup, kv_groups, layers_per_group, longest_sequence, most_blocks

CPU_POOL_SHARE = 0.25  # a laptop has other work: the default pool leaves three quarters of what is free
CPU_POOL_CAP_BYTES = 2 * GIB
# An engine process beside its tensors: 165 its own, 255 with what it shares (CPU torch), and up to 34 of past answers
# that suffix decoding keeps.
RUNTIME_BYTES = 300 * MIB
NULL_BLOCKS = 1  # block 0 is never handed out
CODE_BYTES, SCALE_BYTES = 1, 4  # of a KV cache in codes: one scale for each token and head of keys, and of values

DTYPE_BYTES = {"auto": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class SizingError(ValueError):
    """A pool or a context that does not fit. `max_model_len_that_fits` is 0 where not even one block does."""

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int, max_model_len_that_fits: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.max_model_len_that_fits = max_model_len_that_fits


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The pool: `num_blocks` counts the null block. `reason` says why the context was shortened, else is empty.

    groups: the model's KV groups, which share the pool. max_model_len_that_fits: the longest context of one request
    that the pool holds, up to the model's own. drafter_bytes: what a drafter keeps in the same blocks, in tensors of
    its own.
    """

    num_blocks: int
    kv_bytes: int
    max_model_len: int
    reason: str
    groups: tuple[KVGroup, ...]
    max_model_len_that_fits: int
    drafter_bytes: int = 0


def format_bytes(count: int) -> str:
    """`count` for a message: GiB from one on, MiB below."""
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def kv_bytes_per_token(
    config: ModelConfig, dtype_bytes: int, context: int | None = None, kv_cache_dtype: str = "auto"
) -> int:
    """Keys and values of one token in all layers, on average over a text of `context` tokens (the model's own if None).

    The average matters where layers have a window: they hold that much of the text and no more.
    """
    context = context or config.max_position_embeddings
    held = sum(min(group.window or context, context) for group in kv_groups(config))
    return -(-held * kv_bytes_per_block(config, 1, dtype_bytes, kv_cache_dtype) // context)


def kv_bytes_per_block(config: ModelConfig, block_size: int, dtype_bytes: int, kv_cache_dtype: str = "auto") -> int:
    """Keys and values of one block, which holds the layers of one KV group: all layers of a model without windows.

    kv_cache_dtype: that of `LoadOptions`; all but "auto" are codes, with their scales.
    """
    layers = layers_per_group(kv_groups(config))
    plain = config.head_dim * dtype_bytes
    vector = plain if kv_cache_dtype == "auto" else config.head_dim * CODE_BYTES + SCALE_BYTES
    return 2 * layers * config.num_key_value_heads * block_size * vector


@dataclass(frozen=True, slots=True)
class _Geometry:
    """What a pool of a model's blocks holds. block_bytes: the model's and, of these, kept_bytes a drafter's. chunk: the
    most tokens of one sequence in a step."""

    groups: tuple[KVGroup, ...]
    block_size: int
    block_bytes: int
    kept_bytes: int
    chunk: int

    @classmethod
    def of(cls, config: ModelConfig, options: LoadOptions, dtype_bytes: int, kept_bytes: int) -> _Geometry:
        most, threshold = options.max_num_batched_tokens, options.long_prefill_token_threshold
        block_bytes = kv_bytes_per_block(config, options.block_size, dtype_bytes, options.kv_cache_dtype) + kept_bytes
        return cls(kv_groups(config), options.block_size, block_bytes, kept_bytes, min(threshold or most, most))

    def sequence_blocks(self, num_tokens: int) -> int:
        """The blocks that one sequence of `num_tokens` may hold at once."""
        return most_blocks(self.groups, num_tokens, self.chunk, self.block_size)

    def pool_bytes(self, num_tokens: int) -> int:
        """The smallest pool that serves one sequence of `num_tokens`."""
        return (self.sequence_blocks(num_tokens) + NULL_BLOCKS) * self.block_bytes

    def longest(self, num_blocks: int, limit: int) -> int:
        """The longest sequence, up to `limit`, that a pool of `num_blocks` serves."""
        return longest_sequence(self.groups, num_blocks - NULL_BLOCKS, limit, self.chunk, self.block_size)


def plan_kv(
    config: ModelConfig,
    options: LoadOptions,
    available_bytes: int,
    dtype_bytes: int,
    device: str = "cpu",
    kept_bytes: int = 0,
) -> KVPlan:
    """Size the pool from `available_bytes`, the memory that is left once weights, workspace and runtime have theirs.

    On a GPU that figure already honours `gpu_memory_utilization`, and the pool takes all of it. kept_bytes: what a
    drafter keeps in every block beside the model's keys and values; `kv_cache_memory_bytes` counts these alone.
    """
    available_bytes = max(0, available_bytes)
    own_context = config.max_position_embeddings
    wanted = options.max_model_len or own_context
    if wanted > config.longest_context:
        raise SizingError(
            f"max_model_len={wanted}: the model's own context is {own_context} tokens; ask for at most "
            + ("that" if config.longest_context == own_context else f"{config.longest_context}, by rope scaling"),
            needed_bytes=0,
            available_bytes=available_bytes,
            max_model_len_that_fits=own_context,
        )
    geometry = _Geometry.of(config, options, dtype_bytes, kept_bytes)
    num_blocks = _pool_bytes(options, available_bytes, wanted, geometry, device) // geometry.block_bytes
    kept, kv_bytes = num_blocks * kept_bytes, num_blocks * (geometry.block_bytes - kept_bytes)
    longest = geometry.longest(num_blocks, max(wanted, own_context))
    if longest >= wanted:
        return KVPlan(num_blocks, kv_bytes, wanted, "", geometry.groups, longest, kept)
    if options.max_model_len is not None or longest == 0:
        raise _too_small(wanted, longest, kv_bytes, available_bytes, geometry)
    reason = (
        f"the model's own context of {own_context} tokens needs {format_bytes(geometry.pool_bytes(own_context))} of "
        f"KV cache for one request, the pool has {format_bytes(kv_bytes)}; a larger kv_cache_memory_bytes lengthens it"
    )
    return KVPlan(num_blocks, kv_bytes, longest, reason, geometry.groups, longest, kept)


def _pool_bytes(
    options: LoadOptions, available_bytes: int, max_model_len: int, geometry: _Geometry, device: str
) -> int:
    """The pool's size before rounding down to whole blocks."""
    exact = options.kv_cache_memory_bytes
    if exact is not None:
        own = geometry.block_bytes - geometry.kept_bytes
        whole = exact + exact // own * geometry.kept_bytes
        if whole > available_bytes:
            beside = f", with a drafter's part {format_bytes(whole)}" if whole > exact else ""
            raise SizingError(
                f"kv_cache_memory_bytes={exact} ({format_bytes(exact)}{beside}): only {format_bytes(available_bytes)} "
                f"({available_bytes} bytes) are left beside the weights; ask for less, or unload another model",
                needed_bytes=whole,
                available_bytes=available_bytes,
                max_model_len_that_fits=geometry.longest(available_bytes // geometry.block_bytes, max_model_len),
            )
        return exact // own * geometry.block_bytes
    if device != "cpu":
        return available_bytes
    full_house = options.max_num_seqs * geometry.sequence_blocks(max_model_len) + NULL_BLOCKS
    return min(full_house * geometry.block_bytes, int(available_bytes * CPU_POOL_SHARE), CPU_POOL_CAP_BYTES)


def _too_small(wanted: int, longest: int, pool_bytes: int, available_bytes: int, geometry: _Geometry) -> SizingError:
    """The refusal of a context longer than the pool."""
    needed = geometry.pool_bytes(wanted)
    remedies = []
    if longest > 0:
        remedies.append(f"set max_model_len to at most {longest}, the longest that fits")
    if needed <= available_bytes:
        remedies.append(f"set kv_cache_memory_bytes to at least {needed}")
    else:
        remedies.append("free memory, for instance by unloading another model")
    return SizingError(
        f"max_model_len={wanted}: one request of that length needs {format_bytes(needed)} of KV cache, the pool has "
        f"{format_bytes(pool_bytes)} of the {format_bytes(available_bytes)} left beside the weights; "
        + ", or ".join(remedies),
        needed_bytes=needed,
        available_bytes=available_bytes,
        max_model_len_that_fits=longest,
    )
