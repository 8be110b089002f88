"""Whether a model fits: the estimate shown, and enforced, before anything is loaded.

Owns the verdict and its wording. The arithmetic is engine.core's, which the engine itself uses when it loads.
Invariant: `total_bytes` is the sum of the five parts, `workspace_bytes` that of `workspace_parts`, and an estimate that
does not fit says what to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.memory_holders import MemoryHolder, in_words
from engine.checkpoint import CheckpointInfo
from engine.checkpoint.drafting import decide, plan_with_drafter
from engine.config import LoadOptions
from engine.core.memory_plan import MemoryPlan, largest_reading
from engine.core.sizing import DTYPE_BYTES, RUNTIME_BYTES, format_bytes, kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class FitEstimate:
    """What one load would take. `short_by_bytes` is 0 where memory is enough, even if an option refuses the load.

    workspace_parts: see `engine.core.memory_plan.WorkspaceBytes`. reading_bytes: what the largest tensor takes while it
    is read, before KV cache and workspace are there; no part of the total. free_bytes: what nobody has of the device's
    memory_total_bytes; held: who has the rest; available_bytes: what the load may take of it. drafter_bytes: a
    drafter's weights, buffers and what it keeps in the KV blocks. speculation: what the load will speculate with,
    drafter_note: why that is not what was asked for.
    """

    device: str
    weights_bytes: int
    drafter_bytes: int
    kv_bytes: int
    workspace_bytes: int
    workspace_parts: dict[str, int]
    runtime_bytes: int
    reading_bytes: int
    total_bytes: int
    available_bytes: int
    free_bytes: int
    memory_total_bytes: int
    held: list[MemoryHolder]
    fits: bool
    short_by_bytes: int
    kv_bytes_per_token: int
    max_model_len: int
    max_model_len_that_fits: int
    message: str
    speculation: str
    drafter_note: str


def estimate(
    info: CheckpointInfo,
    options: LoadOptions,
    available_bytes: int,
    total_bytes: int,
    device: str,
    held: Sequence[MemoryHolder] = (),
) -> FitEstimate:
    """Estimate a load on `device` with `available_bytes` free of `total_bytes`.

    Raises CheckpointError or ConfigError for a drafter that cannot serve the model.
    """
    dtype_bytes = DTYPE_BYTES[options.dtype]
    config = info.config
    free_bytes = available_bytes
    if device != "cpu":
        available_bytes = _gpu_budget(options, available_bytes, total_bytes)
    if options.memory_limit_bytes is not None:
        available_bytes = min(available_bytes, options.memory_limit_bytes)
    reading = largest_reading(info.tensors.values(), dtype_bytes) if device == "cpu" else 0
    plan, drafting = plan_with_drafter(
        info, options, decide(info, options), available_bytes, dtype_bytes, device, RUNTIME_BYTES, reading
    )
    drafter = plan.drafter_bytes + (plan.kv.drafter_bytes if plan.kv is not None else 0)
    if plan.kv is not None:
        kv, length, longest = plan.kv.kv_bytes, plan.kv.max_model_len, plan.kv.max_model_len_that_fits
    else:
        assert plan.refusal is not None
        kv, longest = plan.refusal.needed_bytes, plan.refusal.max_model_len_that_fits
        length = options.max_model_len or config.max_position_embeddings
    total = plan.fixed_bytes - plan.drafter_bytes + drafter + kv
    peak = max(total, plan.peak_while_reading)
    return FitEstimate(
        device=device,
        weights_bytes=plan.weights_bytes,
        drafter_bytes=drafter,
        kv_bytes=kv,
        workspace_bytes=plan.workspace.total,
        workspace_parts=plan.workspace.parts(),
        runtime_bytes=plan.runtime_bytes,
        reading_bytes=plan.reading_bytes,
        total_bytes=total,
        available_bytes=available_bytes,
        free_bytes=free_bytes,
        memory_total_bytes=total_bytes,
        held=list(held),
        fits=plan.kv is not None,
        short_by_bytes=max(0, peak - available_bytes),
        kv_bytes_per_token=kv_bytes_per_token(config, dtype_bytes, length, options.kv_cache_dtype),
        max_model_len=length,
        max_model_len_that_fits=longest,
        message=plan.refusal_message(in_words(held)) if plan.kv is None else _fits_message(plan, total),
        speculation=drafting.speculation,
        drafter_note="; ".join(f"{each.name}: {each.effective}: {each.reason}" for each in drafting.settings),
    )


def _gpu_budget(options: LoadOptions, available_bytes: int, total_bytes: int) -> int:
    """What the engine may take of a GPU: its share of the whole, less what others hold already."""
    share = int(total_bytes * options.gpu_memory_utilization)
    return max(0, min(available_bytes, share - (total_bytes - available_bytes)))


def _fits_message(plan: MemoryPlan, total: int) -> str:
    message = f"needs {format_bytes(total)} of {format_bytes(plan.available_bytes)} available ({plan.items()})"
    return f"{message}; {plan.kv.reason}" if plan.kv is not None and plan.kv.reason else message
