"""Checkpoints of random weights in any storage format and size, made on the fly: what loading is measured with.

Owns the shapes of a Llama of about the wished size and the bytes of each format. Knows nothing of what is measured.
Invariant: a matrix that a format cannot hold is never written otherwise; what is not a linear layer stays in bf16
outside GGUF.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.checkpoint import expected_tensors
from engine.checkpoint.gguf import GGML_TYPES
from engine.checkpoint.info import STORAGE_FORMATS
from engine.config import ModelConfig
from engine.quant import awq, compressed_tensors, gptq
from tests.engine.gguf_writer import StoredTensor, write_gguf
from tests.engine.tiny_checkpoint import gguf_metadata, gguf_name, tiny_config

GROUP = 128
SHAPES: dict[str, dict[str, int]] = {  # parameters: shape; inputs divide by 256, as GGUF's K formats want
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 320},
    "0.5B": {"hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 20,
             "num_key_value_heads": 5, "head_dim": 64, "vocab_size": 32000},
    "1B": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 20, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 65536},
    "1B of 49152 tokens": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 20,
                           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
                           "vocab_size": 49152},  # for the default model's tokenizer
}  # fmt: skip
GGUF_FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
PACKED_FORMATS = ("AWQ", "GPTQ", "GPTQ 8 bit", "GPTQ act order", "compressed-tensors W4A16")
FORMATS = ("BF16", *GGUF_FORMATS, *PACKED_FORMATS)


def write_random(folder: Path, form: str, size: str, seed: int = 0, group_size: int = GROUP) -> Path:
    """Writes a checkpoint of `form` (one of FORMATS) and `size` (one of SHAPES); returns what to load.

    group_size: of the formats that have one of their own to choose.
    """
    folder.mkdir(parents=True)
    settings = tiny_config(**SHAPES[size], torch_dtype="bfloat16", max_position_embeddings=4096)
    generator = torch.Generator().manual_seed(seed)
    if form in GGUF_FORMATS:
        return _write_gguf(folder / "random.gguf", settings, form, generator)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in _tensors(settings):
        linear = ".layers." in name and len(shape) == 2
        packed = _packed(name.removesuffix(".weight"), shape, form, group_size, generator) if linear else {}
        tensors |= packed or {name: (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(torch.bfloat16)}
    save_file(tensors, str(folder / "model.safetensors"))
    quantization = {"quantization_config": _quantization(form, group_size)} if form in PACKED_FORMATS else {}
    (folder / "config.json").write_text(json.dumps(settings | quantization), encoding="utf-8")
    return folder


def _tensors(settings: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    names = ModelConfig.__dataclass_fields__
    known = {key: value for key, value in settings.items() if key in names}
    return expected_tensors(ModelConfig(architecture="llama", **known))


def _quantization(form: str, group_size: int) -> dict[str, Any]:
    """quantization_config of config.json."""
    if form == "AWQ":
        return {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    if form.startswith("GPTQ"):
        told = {"quant_method": "gptq", "bits": _bits(form), "group_size": group_size, "sym": False}
        return told | {"checkpoint_format": "gptq_v2", "desc_act": "act order" in form}
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group_size}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    told = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    return told | {"config_groups": groups}


def _bits(form: str) -> int:
    return 8 if "8 bit" in form else 4


def _packed(
    module: str, shape: tuple[int, ...], form: str, group_size: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The stored tensors of a linear layer; empty where the format stores it as numbers."""
    if form not in PACKED_FORMATS:
        return {}
    bits, (outputs, inputs) = _bits(form), shape
    codes = torch.randint(1 << bits, (outputs, inputs), dtype=torch.uint8, generator=generator)
    zeros = torch.randint(1, 1 << bits, (outputs, inputs // group_size), dtype=torch.uint8, generator=generator)
    scales = torch.full(zeros.shape, 4 / (1 << bits) / inputs**0.5, dtype=torch.float16)
    if form == "AWQ":
        stored = awq.pack_gemm(codes, zeros, scales)
    elif form.startswith("GPTQ"):
        order = torch.randperm(inputs, generator=generator) // group_size if "act order" in form else None
        stored = gptq.pack(codes, zeros, scales, bits, g_idx=order)
    else:
        stored = compressed_tensors.pack(codes, None, scales, bits)
    return {f"{module}.{name}": tensor.contiguous() for name, tensor in stored.items()}


def _write_gguf(path: Path, settings: dict[str, Any], form: str, generator: torch.Generator) -> Path:
    type_ids = {name: number for number, (name, _) in GGML_TYPES.items()}
    stored = {}
    for name, shape in _tensors(settings):
        if len(shape) == 1:
            data, type_id = bytes(torch.ones(shape).view(torch.uint8).numpy()), type_ids["F32"]
        else:
            data, type_id = bytes(random_blocks(shape, form, generator).numpy()), type_ids[form]
        stored[gguf_name(name)] = StoredTensor(shape, type_id, data)
    return write_gguf(path, gguf_metadata(settings), stored)


# Where a block has its fp16 scale, and minimum if it has one, and what these are for weights around 0 within 2.
_SCALES: dict[str, tuple[int, tuple[float, ...]]] = {
    "Q4_0": (0, (2 / 8,)),
    "Q4_1": (0, (2 / 7.5, -2.0)),
    "Q5_0": (0, (2 / 16,)),
    "Q5_1": (0, (2 / 15.5, -2.0)),
    "Q8_0": (0, (2 / 128,)),
    "Q4_K": (0, (2 / 7.5 / 32, 2 / 32)),
    "Q5_K": (0, (2 / 15.5 / 32, 2 / 32)),
    "Q6_K": (208, (2 / 32 / 64,)),
}


def random_blocks(shape: tuple[int, ...], form: str, generator: torch.Generator) -> torch.Tensor:
    """Blocks of a GGUF format with random codes and sane scales, uint8 [blocks, bytes of one]."""
    layout, (start, scales) = STORAGE_FORMATS[form], _SCALES[form]
    count = shape[0] * shape[1] // layout.elements
    blocks = torch.randint(256, (count, layout.nbytes), dtype=torch.uint8, generator=generator)
    halves = torch.tensor([scales], dtype=torch.float64).div_(shape[1] ** 0.5).to(torch.float16)
    blocks[:, start : start + 2 * len(scales)] = halves.view(torch.uint8)
    return blocks
