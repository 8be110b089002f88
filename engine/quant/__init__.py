"""How stored blocks become numbers: the registry of storage formats.

Owns the table from a format's on-disk name to the function that expands it. Imports nothing of what it lists until
that is asked for.
Invariant: every function takes the tensor's bytes (uint8, one dimension) and its shape, and returns fp32 in that shape.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

QUANT_FORMATS: dict[str, str] = {
    "F64": "engine.quant.gguf_blocks:expand_f64",
    "F32": "engine.quant.gguf_blocks:expand_f32",
    "F16": "engine.quant.gguf_blocks:expand_f16",
    "BF16": "engine.quant.gguf_blocks:expand_bf16",
    "Q8_0": "engine.quant.gguf_blocks:expand_q8_0",
    "Q4_0": "engine.quant.gguf_blocks:expand_q4_0",
    "Q4_1": "engine.quant.gguf_blocks:expand_q4_1",
    "Q5_0": "engine.quant.gguf_blocks:expand_q5_0",
    "Q5_1": "engine.quant.gguf_blocks:expand_q5_1",
    "Q4_K": "engine.quant.gguf_k_blocks:expand_q4_k",
    "Q5_K": "engine.quant.gguf_k_blocks:expand_q5_k",
    "Q6_K": "engine.quant.gguf_k_blocks:expand_q6_k",
}


def resolve_format(name: str) -> Callable[[Any, tuple[int, ...]], Any]:
    """The function that expands the format `name`: (uint8 tensor [bytes], shape) -> fp32 tensor [shape]."""
    if name not in QUANT_FORMATS:
        raise ValueError(f"unknown storage format {name!r}; known are {', '.join(QUANT_FORMATS)}")
    module, _, attribute = QUANT_FORMATS[name].partition(":")
    function: Callable[[Any, tuple[int, ...]], Any] = getattr(importlib.import_module(module), attribute)
    return function
