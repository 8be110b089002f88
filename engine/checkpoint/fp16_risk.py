"""What fp16 may have cost a checkpoint, as far as its headers tell.

Owns the families that are known to leave fp16's range, and the wording. Reads no weights. Invariant: no risk is denied
that headers cannot exclude: a stored infinity is only seen in the weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine.checkpoint.info import CheckpointInfo, TensorInfo

# Trained in bf16, with activations beyond 65504, fp16's largest number: computed in fp16 they answer with "!!!!".
BF16_FAMILIES = ("gemma", "qwen2", "qwen3")
_RUNS_IN_BF16 = "Pizarra runs it in bf16, so that no activation can overflow"


@dataclass(frozen=True, slots=True)
class Fp16Risk:
    """level: "none" (nothing is stored in fp16), "low" or "possible"."""

    level: str
    reason: str


def fp16_risk(info: CheckpointInfo) -> Fp16Risk:
    """Judge by what is stored in fp16, by the family, and by the dtype that the configuration names."""
    halves = [tensor for tensor in info.tensors.values() if tensor.dtype == "F16"]
    scales = any(_has_half_scales(tensor) for tensor in info.tensors.values())
    if not halves and not scales:
        return Fp16Risk("none", "nothing is stored in fp16")
    if not halves:
        return Fp16Risk("low", f"only scales are stored in fp16, and they are used exactly as stored; {_RUNS_IN_BF16}")
    what = f"{len(halves)} of {len(info.tensors)} tensors are stored in fp16"
    trained = _trained_in_bf16(info)
    if trained:
        return Fp16Risk(
            "possible",
            f"{what}, though {trained}: weights beyond 65504 would have become infinite when they were converted, and "
            f"those below 6e-8 zero. {_RUNS_IN_BF16}; what was lost in the conversion stays lost",
        )
    return Fp16Risk("low", f"{what}, as the model was trained as far as its files say. {_RUNS_IN_BF16}")


def _trained_in_bf16(info: CheckpointInfo) -> str:
    """Why the model counts as trained in bf16; empty where nothing says so."""
    family = info.config.architecture
    if family.startswith(BF16_FAMILIES):
        return f"{family} was trained in bf16 and leaves fp16's range"
    named = _named_dtype(info.metadata)
    return f"config.json names {named}" if named == "bfloat16" else ""


def _named_dtype(metadata: dict[str, Any]) -> str:
    inner = metadata.get("text_config")
    for values in (metadata, inner if isinstance(inner, dict) else {}):
        for key in ("torch_dtype", "dtype"):
            if isinstance(values.get(key), str):
                return str(values[key])
    return ""


def _has_half_scales(tensor: TensorInfo) -> bool:
    parts: Iterable[TensorInfo] = tensor.parts
    return any(part.dtype == "F16" for part in parts) or (not tensor.parts and tensor.dtype.startswith("Q"))
