"""Quantised checkpoints for tests: any plain safetensors checkpoint rounded to codes and stored in a packed format.

Owns rounding to nearest and the configuration of each format; the packing is engine.quant's, which its own tests hold
against slow definitions. Invariant: the plain checkpoint written beside has exactly the numbers that the codes mean.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import CheckpointInfo, TensorInfo
from engine.checkpoint.info import BlockLayout, GroupScheme
from engine.quant import awq, compressed_tensors, gptq
from tests.engine.tiny_checkpoint import tiny_config, tiny_weights

Stored = dict[str, torch.Tensor]
UP = "model.layers.0.mlp.up_proj"


def dtype_of(info: CheckpointInfo, module: str = UP) -> str:
    """The storage format that a module was read as."""
    return info.tensors[f"{module}.weight"].dtype


@dataclass(frozen=True)
class Codes:
    """codes uint8 [out, in] in the activations' order, zeros uint8 [out, G], scales [out, G], g_idx int64 [in]."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    g_idx: torch.Tensor

    def numbers(self) -> torch.Tensor:
        """fp32 [out, in]: scale * (code - zero), element by element."""
        spread = self.g_idx
        return self.scales.float()[:, spread] * (self.codes.float() - self.zeros.float()[:, spread])


def random_codes(
    outputs: int,
    inputs: int,
    bits: int,
    size: int,
    *,
    symmetric: bool = False,
    act_order: bool = False,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Codes:
    """Random codes with random scales; zeros in 1 to 2^bits - 1, which every format can store."""
    generator = torch.Generator().manual_seed(seed)
    groups = inputs // size
    codes = torch.randint(0, 2**bits, (outputs, inputs), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(1, 2**bits, (outputs, groups), generator=generator, dtype=torch.uint8)
    scales = (0.01 + 0.1 * torch.rand(outputs, groups, generator=generator)).to(dtype)
    order = torch.randperm(inputs, generator=generator) if act_order else torch.arange(inputs)
    return Codes(codes, torch.full_like(zeros, 2 ** (bits - 1)) if symmetric else zeros, scales, order // size)


def rounded(weight: torch.Tensor, bits: int, size: int, *, symmetric: bool, act_order: bool = False) -> Codes:
    """The weight [out, in] to the nearest codes.

    Act order: an order that depends on the number of inputs alone, as matrices that share their inputs share it.
    """
    outputs, inputs = weight.shape
    order = torch.arange(inputs)
    if act_order:
        order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    g_idx = torch.empty(inputs, dtype=torch.int64)
    g_idx[order] = torch.arange(inputs) // size
    grouped = weight[:, order].reshape(outputs, -1, size)
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    if symmetric:
        scales = (grouped.abs().amax(dim=2) / (middle - 1)).half()
        zeros = torch.full_like(scales, middle)
    else:
        low, high = grouped.amin(dim=2).clamp(max=0), grouped.amax(dim=2).clamp(min=0)
        scales = ((high - low) / top).half()
        zeros = (-low / scales.float()).round().clamp(1, top)
    codes = (grouped / scales.float()[:, :, None] + zeros[:, :, None]).round().clamp(0, top).reshape(outputs, inputs)
    unordered = torch.empty_like(codes)
    unordered[:, order] = codes
    return Codes(unordered.to(torch.uint8), zeros.to(torch.uint8), scales, g_idx)


def info_of(dtype: str, shape: tuple[int, int], bits: int, size: int, scale_bytes: int = 2, zero_bytes: int = 1) -> Any:
    """The TensorInfo that headers would give a matrix."""
    scheme = GroupScheme(bits, size, BlockLayout(size, scale_bytes + zero_bytes))
    return TensorInfo("m.weight", dtype, shape, Path("model.safetensors"), 0, 0, (), scheme)


@dataclass(frozen=True)
class Recipe:
    """How to store one matrix, and what config.json says of all."""

    settings: dict[str, Any]
    bits: int
    size: int
    symmetric: bool
    pack: Callable[[Codes], Stored]
    act_order: bool = False


def awq_gemm(size: int = 32) -> Recipe:
    """AutoAWQ's usual checkpoint."""
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    return Recipe(settings, 4, size, False, lambda found: awq.pack_gemm(found.codes, found.zeros, found.scales))


def gptq_recipe(
    bits: int = 4, size: int = 32, *, version: int = 2, symmetric: bool = True, act_order: bool = False
) -> Recipe:
    """GPTQModel's usual checkpoint."""
    settings = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "sym": symmetric,
        "desc_act": act_order,
        "checkpoint_format": "gptq_v2" if version == 2 else "gptq",
    }

    def pack(found: Codes) -> Stored:
        return gptq.pack(found.codes, found.zeros, found.scales, bits, version=version, g_idx=found.g_idx)

    return Recipe(settings, bits, size, symmetric, pack, act_order)


def packed_recipe(
    bits: int = 4, size: int = 32, *, symmetric: bool = True, act_order: bool = False, **changes: Any
) -> Recipe:
    """llm-compressor's W4A16 and W8A16; a whole row as one group (size -1) is its strategy channel."""
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False}
    weights |= {"strategy": "channel"} if size == -1 else {"strategy": "group", "group_size": size}
    weights |= {"actorder": "group"} if act_order else {}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }

    def pack(found: Codes) -> Stored:
        zeros = None if symmetric else found.zeros
        g_idx = found.g_idx if act_order else None
        return compressed_tensors.pack(found.codes, zeros, found.scales, bits, g_idx=g_idx)

    return Recipe(settings | changes, bits, size, symmetric, pack, act_order)


def int8_recipe() -> Recipe:
    """llm-compressor's W8A8 with dynamic activations."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }

    def pack(found: Codes) -> Stored:
        return {"weight": (found.codes.to(torch.int16) - 128).to(torch.int8), "weight_scale": found.scales}

    return Recipe(settings, 8, -1, True, pack)


def in_layers(name: str) -> bool:
    """Whether makers quantise the matrix `name`: those of the layers, but no router."""
    return ".layers." in name and not name.endswith(".gate.weight")


def quantise(
    plain: Path, folder: Path, recipe: Recipe, chosen: Callable[[str], bool] = in_layers, **config: Any
) -> tuple[Path, Path]:
    """`plain` with the matrices that `chosen` picks stored as `recipe` says; returns it, and the same in numbers.

    `config` is put over config.json of both.
    """
    tensors: Stored = {}
    for file in sorted(plain.glob("*.safetensors")):
        tensors |= load_file(file)
    stored, numbers = coded(tensors, recipe, chosen)
    content = json.loads((plain / "config.json").read_text()) | config
    write(folder / "codes", plain, stored, content | {"quantization_config": recipe.settings})
    write(folder / "numbers", plain, numbers, content)
    return folder / "codes", folder / "numbers"


def coded(tensors: Stored, recipe: Recipe, chosen: Callable[[str], bool] = in_layers) -> tuple[Stored, Stored]:
    """What is stored of the tensors, and the numbers that it means."""
    stored: Stored = {}
    numbers: Stored = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or not chosen(name):
            stored[name] = numbers[name] = tensor
            continue
        size = tensor.shape[1] if recipe.size == -1 else recipe.size
        codes = rounded(tensor.float(), recipe.bits, size, symmetric=recipe.symmetric, act_order=recipe.act_order)
        parts = recipe.pack(codes)
        stored |= {f"{name.removesuffix('weight')}{kind}": part for kind, part in parts.items()}
        numbers[name] = codes.numbers()
    return stored, numbers


def write(folder: Path, plain: Path, tensors: Mapping[str, torch.Tensor], config: dict[str, Any]) -> None:
    """A checkpoint of these tensors with this config.json and the other files of `plain`."""
    shutil.copytree(plain, folder, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2))


_TINY: dict[str, Stored] = {}  # what is stored, by the recipe's settings


def packed_tiny(folder: Path, recipe: Recipe, edit: Callable[[Stored], None] | None = None, **changes: Any) -> Path:
    """Headers and weights of the tiny Llama by a recipe, without a tokenizer, in `folder`; returns it.

    `edit` changes the stored tensors, `changes` go over quantization_config.
    """
    key = repr(recipe.settings)
    if key not in _TINY:
        _TINY[key] = coded(tiny_weights(tiny_config(), 0), recipe)[0]
    tensors = dict(_TINY[key])
    if edit is not None:
        edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(tiny_config()))
    configure(folder, recipe.settings | changes)
    return folder


def configure(folder: Path, settings: Any) -> None:
    """Replaces the quantization_config of config.json; None removes it."""
    content = json.loads((folder / "config.json").read_text())
    content.pop("quantization_config", None)
    if settings is not None:
        content["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(content))
