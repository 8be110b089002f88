"""What a load will do, decided from headers and free memory before any weight is read.

Owns the order of the decisions: device, dtype, memory, context. Knows nothing of how weights are read.
Invariant: what a plan promises fits the memory that was free when it was made, and every difference from what was asked
for is in its settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.checkpoint import CheckpointInfo
from engine.config import EffectiveSetting, LoadOptions
from engine.core.sizing import KVPlan, SizingError, plan_kv, weights_bytes, workspace_bytes
from engine.runner.device import DeviceInfo, pick_device, pick_dtype


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a load will do, decided before any weight is read."""

    device: DeviceInfo
    dtype: torch.dtype
    kv: KVPlan
    weights_bytes: int
    settings: list[EffectiveSetting]


def plan_load(info: CheckpointInfo, options: LoadOptions) -> LoadPlan:
    """Device, dtype and memory of a load. Raises SizingError with the numbers when it does not fit."""
    device, dtype = pick_device(options), pick_dtype(options)
    weights = weights_bytes(info.num_parameters, dtype.itemsize)
    workspace = workspace_bytes(info.config, options.max_num_batched_tokens, options.max_num_seqs, dtype.itemsize)
    budget = device.available_bytes
    if device.device.type == "cuda":
        taken = device.total_bytes - device.available_bytes
        budget = int(device.total_bytes * options.gpu_memory_utilization) - taken
    left = budget - weights - workspace
    if left <= 0:
        raise SizingError(
            f"the weights need {weights} bytes and the workspace {workspace}, {budget} are available on {device.name}; "
            "unload another model or pick a smaller one",
            needed_bytes=weights + workspace,
            available_bytes=budget,
            max_model_len_that_fits=0,
        )
    kv = plan_kv(info.config, options, left, dtype.itemsize, device.device.type)
    return LoadPlan(device, dtype, kv, weights, effective_settings(info, options, kv))


def effective_settings(info: CheckpointInfo, options: LoadOptions, kv: KVPlan) -> list[EffectiveSetting]:
    """Where the load differs from what was asked for, or from what the checkpoint says."""
    settings = []
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
    return settings
