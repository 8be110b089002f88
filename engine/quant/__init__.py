"""How stored tensors become weights: the registry of storage formats.

Owns the table from a format's name to the function that reads it. Imports nothing of what it lists until that is asked
for.
Invariant: a function takes a `TensorInfo` and its stored tensors by the last part of their names (a tensor that is
stored as one is uint8 [nbytes] under the name ""), and returns numbers in fp32 (fp64 for F64) in the tensor's shape, or
a `GroupQuant` in layout "rows" whose rows are those of the tensor taken as a matrix. Nothing is rounded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from engine.checkpoint import TensorInfo
    from kernels.group_quant import GroupQuant

    ReadFormat: TypeAlias = Callable[[TensorInfo, Mapping[str, Tensor]], Tensor | GroupQuant]

QUANT_FORMATS: dict[str, str] = {
    "F64": "engine.quant.plain:read_f64",
    "F32": "engine.quant.plain:read_f32",
    "F16": "engine.quant.plain:read_f16",
    "BF16": "engine.quant.plain:read_bf16",
    "Q8_0": "engine.quant.gguf_blocks:read_q8_0",
    "Q4_0": "engine.quant.gguf_blocks:read_q4_0",
    "Q4_1": "engine.quant.gguf_blocks:read_q4_1",
    "Q5_0": "engine.quant.gguf_blocks:read_q5_0",
    "Q5_1": "engine.quant.gguf_blocks:read_q5_1",
    "Q4_K": "engine.quant.gguf_k_blocks:read_q4_k",
    "Q5_K": "engine.quant.gguf_k_blocks:read_q5_k",
    "Q6_K": "engine.quant.gguf_k_blocks:read_q6_k",
    "AWQ_GEMM": "engine.quant.awq:read_gemm",
    "AWQ_GEMV": "engine.quant.awq:read_gemv",
    "AWQ_GEMV_FAST": "engine.quant.awq:read_gemv_fast",
    "GPTQ_V1": "engine.quant.gptq:read_v1",
    "GPTQ_V1_WORDS": "engine.quant.gptq:read_v1_words",
    "GPTQ_V2": "engine.quant.gptq:read_v2",
    "CT_PACKED": "engine.quant.compressed_tensors:read_packed",
    "CT_INT8": "engine.quant.compressed_tensors:read_int8",
}


def resolve_format(name: str) -> ReadFormat:
    """The function that reads the format `name`."""
    if name not in QUANT_FORMATS:
        raise ValueError(f"unknown storage format {name!r}; known are {', '.join(QUANT_FORMATS)}")
    module, _, attribute = QUANT_FORMATS[name].partition(":")
    function: ReadFormat = getattr(importlib.import_module(module), attribute)
    return function
