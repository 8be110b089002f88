"""A quantised layer as the tensors of its format, and what config.json says of them.

Owns `quantization_config` of the three formats; the layouts themselves are engine.quant's. Knows no files. Invariant:
what is packed reads back as the same codes, zeros and scales.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.quant import awq, compressed_tensors, gptq
from engine.train.gptq import DAMP
from engine.train.grid import QuantisedMatrix
from engine.train.layer import QuantisedLayer
from engine.train.request import Request

KEPT_MODULE = "lm_head"  # the one linear module outside the layers; it keeps its numbers


def pack_layer(request: Request, layer: QuantisedLayer, prefix: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor to be stored, by its full name; norms and biases in `dtype`."""
    stored = {f"{prefix}{name}": tensor.to(dtype) for name, tensor in layer.others.items()}
    for name, matrix in layer.matrices.items():
        for part, tensor in _pack(request, matrix).items():
            stored[f"{prefix}{name}.{part}"] = tensor
    return stored


def _pack(request: Request, matrix: QuantisedMatrix) -> dict[str, Tensor]:
    if request.format == "awq":
        return awq.pack_gemm(matrix.codes, matrix.zero, matrix.scale)
    if request.format == "gptq":
        return gptq.pack(matrix.codes, matrix.zero, matrix.scale, matrix.bits, version=2, g_idx=matrix.group_of)
    zero = None if request.symmetric else matrix.zero
    return compressed_tensors.pack(matrix.codes, zero, matrix.scale, matrix.bits, g_idx=matrix.group_of)


def quantization_config(request: Request, version: str) -> dict[str, Any]:
    """The section of config.json."""
    if request.format == "awq":
        return {
            "quant_method": "awq",
            "bits": request.bits,
            "group_size": request.group_size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": [KEPT_MODULE],
        }
    if request.format == "gptq":
        return {
            "quant_method": "gptq",
            "checkpoint_format": "gptq_v2",
            "bits": request.bits,
            "group_size": request.group_size,
            "desc_act": request.desc_act,
            "sym": request.symmetric,
            "lm_head": False,
            "damp_percent": DAMP,
            "true_sequential": True,
            "pack_dtype": "int32",
            "meta": {"quantizer": [f"pizarra:{version}"]},
        }
    weights = {
        "num_bits": request.bits,
        "type": "int",
        "symmetric": request.symmetric,
        "strategy": "group",
        "group_size": request.group_size,
        "actorder": "group" if request.desc_act else None,
        "block_structure": None,
        "dynamic": False,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [KEPT_MODULE],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
