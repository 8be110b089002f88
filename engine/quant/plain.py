"""Reads tensors that are stored as floats.

Invariant: exact; F16 and BF16 fit fp32 without rounding, and F64 stays fp64.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.checkpoint import TensorInfo


def read_f64(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> Tensor:
    """The tensor as it lies."""
    return parts[""].view(torch.float64).view(tensor.shape)


def read_f32(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> Tensor:
    """The tensor as it lies."""
    return parts[""].view(torch.float32).view(tensor.shape)


def read_f16(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> Tensor:
    """The tensor in fp32."""
    return parts[""].view(torch.float16).to(torch.float32).view(tensor.shape)


def read_bf16(tensor: TensorInfo, parts: Mapping[str, Tensor]) -> Tensor:
    """The tensor in fp32."""
    return parts[""].view(torch.bfloat16).to(torch.float32).view(tensor.shape)
