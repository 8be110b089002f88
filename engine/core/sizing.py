"""How much memory a load needs and how large the KV pool becomes: integers in, integers out.

Owns the byte counts of weights, workspace and KV blocks, and the choice of pool size and context length. Does not
know devices, files or tensors: the caller measures memory and says how much of it is free.
Invariant: a `KVPlan` holds at least one sequence of its `max_model_len` beside the null block, inside the memory it
was given; whatever cannot be so is a `SizingError` with the numbers, never a smaller pool than the one asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import GIB, MIB, LoadOptions, ModelConfig

CPU_POOL_SHARE = 0.25  # a laptop has other work: the default pool leaves three quarters of what is free
CPU_POOL_CAP_BYTES = 2 * GIB
RUNTIME_BYTES = 450 * MIB  # an engine process before its first weight: interpreter, torch, kernels, buffers of malloc
NULL_BLOCKS = 1  # block 0 is never handed out
FP32_BYTES = 4

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
    """The pool: `num_blocks` counts the null block. `reason` says why the context was shortened, else is empty."""

    num_blocks: int
    kv_bytes: int
    max_model_len: int
    reason: str


def format_bytes(count: int) -> str:
    """`count` for a message: GiB from one on, MiB below."""
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def kv_bytes_per_token(config: ModelConfig, dtype_bytes: int) -> int:
    """Keys and values of one token in all layers."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype_bytes


def kv_bytes_per_block(config: ModelConfig, block_size: int, dtype_bytes: int) -> int:
    """Keys and values of one block in all layers."""
    return block_size * kv_bytes_per_token(config, dtype_bytes)


def weights_bytes(num_parameters: int, dtype_bytes: int) -> int:
    """The weights once cast to the compute dtype; `num_parameters` counts a tied output head once."""
    return num_parameters * dtype_bytes


def workspace_bytes(config: ModelConfig, max_num_batched_tokens: int, max_num_seqs: int, dtype_bytes: int) -> int:
    """The activations of one step: what a layer holds at its widest, and the logits of the sampled rows."""
    query = config.num_attention_heads * config.head_dim
    key_value = 2 * config.num_key_value_heads * config.head_dim
    residual_and_norm = 2 * config.hidden_size
    attention = 2 * query + key_value
    mlp = 3 * config.intermediate_size
    logits_and_noise = 2 * max_num_seqs * config.vocab_size * FP32_BYTES
    return max_num_batched_tokens * (residual_and_norm + attention + mlp) * dtype_bytes + logits_and_noise


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` of one sequence."""
    return -(-num_tokens // block_size)


def plan_kv(
    config: ModelConfig, options: LoadOptions, available_bytes: int, dtype_bytes: int, device: str = "cpu"
) -> KVPlan:
    """Size the pool from `available_bytes`, the memory that is left once weights, workspace and runtime have theirs.

    On a GPU that figure already honours `gpu_memory_utilization`, and the pool takes all of it.
    """
    available_bytes = max(0, available_bytes)
    own_context = config.max_position_embeddings
    wanted = options.max_model_len or own_context
    if wanted > own_context:
        raise SizingError(
            f"max_model_len={wanted}: the model's own context is {own_context} tokens; ask for at most that",
            needed_bytes=0,
            available_bytes=available_bytes,
            max_model_len_that_fits=own_context,
        )
    block_bytes = kv_bytes_per_block(config, options.block_size, dtype_bytes)
    num_blocks = _pool_bytes(options, available_bytes, wanted, block_bytes, device) // block_bytes
    longest = min(own_context, max(0, num_blocks - NULL_BLOCKS) * options.block_size)
    if longest >= wanted:
        return KVPlan(num_blocks, num_blocks * block_bytes, wanted, "")
    if options.max_model_len is not None or longest == 0:
        raise _too_small(options, wanted, longest, num_blocks * block_bytes, available_bytes, block_bytes)
    reason = (
        f"the model's own context of {own_context} tokens needs "
        f"{format_bytes(_sequence_bytes(own_context, options.block_size, block_bytes))} of KV cache for one request, "
        f"the pool has {format_bytes(num_blocks * block_bytes)}; a larger kv_cache_memory_bytes lengthens it"
    )
    return KVPlan(num_blocks, num_blocks * block_bytes, longest, reason)


def _pool_bytes(options: LoadOptions, available_bytes: int, max_model_len: int, block_bytes: int, device: str) -> int:
    """The pool's size before rounding down to whole blocks."""
    exact = options.kv_cache_memory_bytes
    if exact is not None:
        if exact > available_bytes:
            raise SizingError(
                f"kv_cache_memory_bytes={exact} ({format_bytes(exact)}): only {format_bytes(available_bytes)} "
                f"({available_bytes} bytes) are left beside the weights; ask for less, or unload another model",
                needed_bytes=exact,
                available_bytes=available_bytes,
                max_model_len_that_fits=max(0, available_bytes // block_bytes - NULL_BLOCKS) * options.block_size,
            )
        return exact
    if device != "cpu":
        return available_bytes
    full_house = options.max_num_seqs * blocks_for(max_model_len, options.block_size) + NULL_BLOCKS
    return min(full_house * block_bytes, int(available_bytes * CPU_POOL_SHARE), CPU_POOL_CAP_BYTES)


def _sequence_bytes(num_tokens: int, block_size: int, block_bytes: int) -> int:
    """The smallest pool that serves one sequence of `num_tokens`."""
    return (blocks_for(num_tokens, block_size) + NULL_BLOCKS) * block_bytes


def _too_small(
    options: LoadOptions, wanted: int, longest: int, pool_bytes: int, available_bytes: int, block_bytes: int
) -> SizingError:
    """The refusal of a context longer than the pool."""
    needed = _sequence_bytes(wanted, options.block_size, block_bytes)
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
