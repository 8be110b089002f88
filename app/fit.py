"""Whether a model fits: the estimate shown, and enforced, before anything is loaded.

Owns the verdict and its wording. The arithmetic is engine.core.sizing's, which the engine itself uses when it loads.
Invariant: `total_bytes` is the sum of the four parts, and an estimate that does not fit says what to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.checkpoint import CheckpointInfo
from engine.config import LoadOptions
from engine.core.sizing import (
    DTYPE_BYTES,
    NULL_BLOCKS,
    RUNTIME_BYTES,
    SizingError,
    format_bytes,
    kv_bytes_per_token,
    plan_kv,
    weights_bytes,
    workspace_bytes,
)


@dataclass(frozen=True, slots=True)
class FitEstimate:
    """What one load would take. `short_by_bytes` is 0 where memory is enough, even if an option refuses the load."""

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int
    runtime_bytes: int
    total_bytes: int
    available_bytes: int
    fits: bool
    short_by_bytes: int
    kv_bytes_per_token: int
    max_model_len: int
    max_model_len_that_fits: int
    message: str


def estimate(
    info: CheckpointInfo, options: LoadOptions, available_bytes: int, total_bytes: int, device: str
) -> FitEstimate:
    """Estimate a load on `device` with `available_bytes` free of `total_bytes`."""
    dtype_bytes = DTYPE_BYTES[options.dtype]
    config = info.config
    if device != "cpu":
        available_bytes = _gpu_budget(options, available_bytes, total_bytes)
    weights = weights_bytes(info.num_parameters, dtype_bytes)
    workspace = workspace_bytes(config, options.max_num_batched_tokens, options.max_num_seqs, dtype_bytes)
    fixed = weights + workspace + RUNTIME_BYTES
    fits = True
    try:
        plan = plan_kv(config, options, available_bytes - fixed, dtype_bytes, device)
        kv, length = plan.kv_bytes, plan.max_model_len
        longest = min(config.max_position_embeddings, (plan.num_blocks - NULL_BLOCKS) * options.block_size)
        message = _fits_message(fixed + kv, available_bytes, plan.reason)
    except SizingError as error:
        fits = False
        kv, longest = error.needed_bytes, error.max_model_len_that_fits
        length = options.max_model_len or config.max_position_embeddings
        message = _short_message(fixed, weights, available_bytes) if fixed > available_bytes else str(error)
    return FitEstimate(
        weights_bytes=weights,
        kv_bytes=kv,
        workspace_bytes=workspace,
        runtime_bytes=RUNTIME_BYTES,
        total_bytes=fixed + kv,
        available_bytes=available_bytes,
        fits=fits,
        short_by_bytes=max(0, fixed + kv - available_bytes),
        kv_bytes_per_token=kv_bytes_per_token(config, dtype_bytes),
        max_model_len=length,
        max_model_len_that_fits=longest,
        message=message,
    )


def _gpu_budget(options: LoadOptions, available_bytes: int, total_bytes: int) -> int:
    """What the engine may take of a GPU: its share of the whole, less what others hold already."""
    share = int(total_bytes * options.gpu_memory_utilization)
    return max(0, min(available_bytes, share - (total_bytes - available_bytes)))


def _fits_message(total: int, available: int, reason: str) -> str:
    message = f"needs {format_bytes(total)} of {format_bytes(available)} available"
    return f"{message}; {reason}" if reason else message


def _short_message(fixed: int, weights: int, available: int) -> str:
    return (
        f"needs {format_bytes(fixed)} before any KV cache ({format_bytes(weights)} of it weights), "
        f"{format_bytes(available)} are available: short by {format_bytes(fixed - available)}. "
        "Unload another model, choose a smaller one, or free memory"
    )
