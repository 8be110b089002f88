"""What a load will do, decided from headers and free memory before any weight is read.

Owns the order of the decisions: device, dtype, memory, context. Knows nothing of how weights are read.
Invariant: what a plan promises fits the memory that was free when it was made, and every difference from what was asked
for is in its settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.checkpoint import CheckpointInfo
from engine.checkpoint.drafting import PLAIN, Drafting, plan_with_drafter
from engine.checkpoint.packed import quantization_notes
from engine.config import EffectiveSetting, LoadOptions, check_kernel_backend, check_kv_cache_dtype
from engine.core.memory_plan import largest_reading
from engine.core.sizing import RUNTIME_BYTES, KVPlan, format_bytes
from engine.runner.device import DeviceInfo, compute_capability, pick_device, pick_dtype

CODE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a load will do, decided before any weight is read. kv_dtype: of the cache, or of its codes. drafting: its
    proposer, and the drafter if one is loaded too."""

    device: DeviceInfo
    dtype: torch.dtype
    kv_dtype: torch.dtype
    kv: KVPlan
    weights_bytes: int
    settings: list[EffectiveSetting]
    drafting: Drafting


def plan_load(info: CheckpointInfo, options: LoadOptions, drafting: Drafting | None = None) -> LoadPlan:
    """Device, dtype and memory of a load. Raises SizingError with the numbers when it does not fit.

    drafting: what `engine.checkpoint.drafting.decide` chose; None: no drafter. A drafter that does not fit beside the
    model is left out.
    """
    drafting = drafting or Drafting("off" if options.speculation == "off" else PLAIN)
    device, dtype = pick_device(options), pick_dtype(options)
    check_kv_cache_dtype(options, device.device.type, compute_capability(device.device))
    check_kernel_backend(options, device.device.type)
    kv_dtype = CODE_DTYPES.get(options.kv_cache_dtype, dtype)
    taken = device.total_bytes - device.available_bytes
    budget = device.available_bytes
    if device.device.type == "cuda":
        budget = max(0, int(device.total_bytes * options.gpu_memory_utilization) - taken)
    if options.memory_limit_bytes is not None:  # the limit is for all of the process: its runtime is spent already
        budget = min(budget, max(0, options.memory_limit_bytes - RUNTIME_BYTES))
    kind, size = device.device.type, dtype.itemsize
    # this process is there already: nothing more is claimed for its runtime
    reading = largest_reading(info.tensors.values(), size) if kind == "cpu" else 0
    plan, drafting = plan_with_drafter(info, options, drafting, budget, size, kind, 0, reading)
    whole = "the host's memory" if kind == "cpu" else device.name
    held = f"{format_bytes(taken)} of the {format_bytes(device.total_bytes)} of {whole} are in use already"
    kv = plan.required_kv(held)
    settings = [*effective_settings(info, options, kv), *drafting.settings]
    return LoadPlan(device, dtype, kv_dtype, kv, plan.weights_bytes, settings, drafting)


def effective_settings(info: CheckpointInfo, options: LoadOptions, kv: KVPlan) -> list[EffectiveSetting]:
    """Where the load differs from what was asked for, or from what the checkpoint says."""
    settings = []
    if info.config.transformers_class:
        reason = (
            f"{info.config.transformers_reason}, so transformers computes its layers, on this engine's KV cache and "
            "matrix products. A step takes longer, and layers with a window keep all keys"
        )
        settings.append(EffectiveSetting("model", info.config.architecture, "transformers", reason))
    settings.extend(quantization_notes(info))
    if info.left_out:
        reason = (
            f"{len(info.left_out)} tensors (such as {info.left_out[0]}) predict tokens beyond the next one; they are "
            "not run here, and the model does not need them: drafts come from what `speculation` says"
        )
        settings.append(EffectiveSetting("multi-token prediction", "in the checkpoint", "not loaded", reason))
    if kv.reason:
        wanted = options.max_model_len or info.config.max_position_embeddings
        settings.append(EffectiveSetting("max_model_len", str(wanted), str(kv.max_model_len), kv.reason))
    if options.dtype == "auto" and info.quantization == "F16":
        reason = "fp16 checkpoints run in bfloat16, which cannot overflow"
        settings.append(EffectiveSetting("dtype", "float16 (the file's)", "bfloat16", reason))
    scaling = info.config.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        long = kv.max_model_len > scaling.original_max_position_embeddings
        reason = (
            "one set of rotary factors serves all positions of an engine, so that cached keys stay valid; "
            f"load with max_model_len up to {scaling.original_max_position_embeddings} for the short ones"
        )
        settings.append(EffectiveSetting("longrope", "by the length of each text", "long" if long else "short", reason))
    if (
        scaling is not None
        and scaling.kind == "dynamic"
        and kv.max_model_len > scaling.original_max_position_embeddings
    ):
        reason = (
            f"the rotary base is stretched once, for {kv.max_model_len} tokens, so that cached keys stay valid; load "
            f"with max_model_len up to {scaling.original_max_position_embeddings} for the base of the training"
        )
        settings.append(EffectiveSetting("rope scaling", "by the length of each text", "for max_model_len", reason))
    return settings
