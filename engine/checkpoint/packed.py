"""Turns the stored tensors of a quantised safetensors checkpoint into the matrices that they are; torch-free.

Owns where a checkpoint says how it is quantised, the table of methods, and the grouping of stored tensors by module.
Knows no method's layout: those are the packed_*.py beside it.
Invariant: a module is a matrix in codes exactly where its stored tensors are such; where the configuration denies that,
the checkpoint is refused, and where it asks for what is not done, a note tells so.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.fields import Fields
from engine.checkpoint.folder import read_optional_object
from engine.checkpoint.info import (
    OUTPUT_HEAD,
    STORAGE_FORMATS,
    CheckpointError,
    CheckpointInfo,
    TensorInfo,
    UnsupportedCheckpointError,
)
from engine.checkpoint.packed_module import PackedMethod, StoredModule, first_bytes
from engine.config import EffectiveSetting, ModelConfig

PACKED_METHODS: dict[str, str] = {
    "awq": "engine.checkpoint.packed_awq:Awq",
    "gptq": "engine.checkpoint.packed_gptq:Gptq",
    "compressed-tensors": "engine.checkpoint.packed_ct:CompressedTensors",
}
_BESIDE = {"quant_config.json": "awq", "quantize_config.json": "gptq"}  # whose they are where they do not say
_KNOWN_BY_FIELD = {"load_in_4bit": "bitsandbytes", "load_in_8bit": "bitsandbytes"}
_KINDS = {  # what is known of methods that are not read
    "bitsandbytes": "4-bit floats, or 8-bit integers with outliers kept apart",
    "fp8": "8-bit floats",
    "fbgemm_fp8": "8-bit floats",
    "mxfp4": "4-bit floats",
    "mxfp8": "8-bit floats",
    "nvfp4": "4-bit floats",
    "modelopt": "8- and 4-bit floats",
    "hqq": "its own packing",
    "exl2": "ExLlamaV2's own packing",
    "exl3": "trellis codes",
    "quanto": "its own packing",
    "torchao": "its own packing",
    "aqlm": "codebooks",
    "vptq": "codebooks",
    "spqr": "codes with sparse outliers",
    "bitnet": "ternary weights",
    "auto-round": "its own packing; the same models are often exported as auto_gptq or auto_awq too",
    "marlin": "a layout for one GPU kernel",
    "bitblas": "a layout for one GPU kernel",
}
_LONGEST_BIAS = 1 << 20  # bytes
_UP_OF_GATE = {"gate_proj": "up_proj", "w1": "w3"}
_TELLTALE = frozenset({"qweight", "qzeros", "weight_packed", "scaled_zeros"})


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint says that it is quantised. `settings.path` is the file that says so."""

    method: str  # a key of PACKED_METHODS
    settings: Fields
    reader: PackedMethod


def read_quantization(config_path: Path, values: Mapping[str, Any], config: ModelConfig) -> Quantization | None:
    """What `values`, the content of config.json, or a file beside it says; None where nothing does.

    UnsupportedCheckpointError for a method or layout that is not read, and for a model without a decoder of ours.
    """
    found = _find(config_path, values)
    if found is None:
        return None
    method, settings = found
    if method not in PACKED_METHODS:
        kind = f" ({_KINDS[method]})" if method in _KINDS else ""
        raise UnsupportedCheckpointError(
            f"{settings.path}: weights quantised with {method}{kind} are not supported; supported are "
            f"{', '.join(PACKED_METHODS)} with integers of 4 and 8 bits, and GGUF files. Choose such a version of the "
            "model, or the unquantised checkpoint"
        )
    if config.transformers_class:
        raise UnsupportedCheckpointError(
            f"{settings.path}: {config.transformers_class} runs through transformers here "
            f"({config.transformers_reason}), and weights quantised with {method} run only in Pizarra's own decoders; "
            "use the unquantised checkpoint of the model"
        )
    return Quantization(method, settings, _resolve(method, settings))


def join_parts(
    found: Quantization | None, stored: Mapping[str, TensorInfo], config: ModelConfig, folder: Path
) -> dict[str, TensorInfo]:
    """The tensors of the model: those stored in parts as one each, under "<module>.weight", the others as they are."""
    if found is None:
        _refuse_unexplained(stored)
        return dict(stored)
    reader = found.reader
    modules: dict[str, dict[str, TensorInfo]] = {}
    for name, tensor in stored.items():
        module, _, kind = name.rpartition(".")
        if kind in reader.marks or (kind == "weight" and tensor.dtype not in STORAGE_FORMATS):
            modules.setdefault(module, {})[kind] = tensor
    if not modules:
        raise CheckpointError(
            f"{folder}: {found.settings.path.name} says that the weights are quantised with {found.method}, and none "
            f"is stored so (no tensor's name ends in {', '.join(sorted(reader.marks))}); take the weights that belong "
            "to it, or remove what it says if they are meant to be unquantised"
        )
    for module, parts in modules.items():
        whole = stored.get(f"{module}.weight")
        if whole is not None:
            parts["weight"] = whole
    _refuse_doubles(modules)
    matrices = reader.matrices([StoredModule(module, parts) for module, parts in modules.items()])
    joined = {matrix.name: matrix for matrix in matrices}
    tensors: dict[str, TensorInfo] = {}
    for name, tensor in stored.items():
        module, _, kind = name.rpartition(".")
        if module in modules and (kind in reader.marks or kind == "weight"):
            tensors[f"{module}.weight"] = joined[f"{module}.weight"]
        elif kind not in reader.dropped and not (module in modules and _is_needless_bias(tensor, config)):
            tensors[name] = tensor
    _refuse_tied_codes(tensors, config)
    _refuse_mixed_experts(tensors)
    _refuse_router_codes(tensors)
    return tensors


def quantization_notes(info: CheckpointInfo) -> list[EffectiveSetting]:
    """Where a quantised checkpoint is run differently from what its configuration says."""
    if info.format != "safetensors":
        return []
    folder = info.path if info.path.is_dir() else info.path.parent
    found = read_quantization(folder / "config.json", info.metadata, info.config)
    if found is None:
        return []
    matrices = [tensor for tensor in info.tensors.values() if tensor.scheme is not None]
    return found.reader.notes(matrices) + _mixed(found, info)


def _find(config_path: Path, values: Mapping[str, Any]) -> tuple[str, Fields] | None:
    """The method's name and its settings."""
    fields = Fields(config_path, dict(values))
    text = values.get("text_config")
    nested = Fields(config_path, text) if isinstance(text, dict) else None
    for owner, name in (
        (fields, "quantization_config"),
        (fields, "compression_config"),
        (nested, "quantization_config"),
    ):
        settings = None if owner is None else owner.part(name)
        if settings is not None:
            default = "compressed-tensors" if name == "compression_config" else None
            return _method(settings, default), settings
    for file, maker in _BESIDE.items():
        content = read_optional_object(config_path.parent / file)
        if content:
            settings = Fields(config_path.parent / file, content)
            return _method(settings, maker), settings
    return None


def _method(settings: Fields, default: str | None) -> str:
    by_field = next((method for name, method in _KNOWN_BY_FIELD.items() if settings.get(name)), None)
    method = settings.get("quant_method", by_field or default)
    if not isinstance(method, str) or not method:
        raise settings.fail("quant_method", f"one of {', '.join(PACKED_METHODS)}")
    return method.lower().replace("compressed_tensors", "compressed-tensors")[:60]


def _resolve(method: str, settings: Fields) -> PackedMethod:
    module, _, attribute = PACKED_METHODS[method].partition(":")
    reader: PackedMethod = getattr(importlib.import_module(module), attribute)(settings)
    return reader


def _refuse_unexplained(stored: Mapping[str, TensorInfo]) -> None:
    for name, tensor in stored.items():
        if name.rpartition(".")[2] in _TELLTALE:
            raise CheckpointError(
                f"{tensor.file}: tensor {name} is part of a matrix in codes, and neither config.json nor "
                f"{' nor '.join(_BESIDE)} says how it is quantised; download the configuration that belongs to it"
            )


def _refuse_doubles(modules: Mapping[str, Mapping[str, TensorInfo]]) -> None:
    for module, parts in modules.items():
        if "weight" in parts and not _TELLTALE.isdisjoint(parts):
            raise CheckpointError(
                f"{parts['weight'].file}: {module} is stored twice, as weight and in codes ({', '.join(parts)}); the "
                "checkpoint is damaged"
            )


def _is_needless_bias(tensor: TensorInfo, config: ModelConfig) -> bool:
    """Whether it is a bias of zeros that the architecture does not have: older makers give one to every module."""
    *_, module, kind = ("", *tensor.name.split("."))
    attention, mlp = config.attention_bias, config.mlp_bias
    has = {"o_proj": attention, "gate_proj": mlp, "up_proj": mlp, "gate_up_proj": mlp, "down_proj": mlp}
    has |= dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), attention or config.qkv_bias)
    if kind != "bias" or has.get(module, False) or tensor.nbytes > _LONGEST_BIAS:
        return False
    return not any(first_bytes(tensor, _LONGEST_BIAS))


def _refuse_router_codes(tensors: Mapping[str, TensorInfo]) -> None:
    for name, tensor in tensors.items():
        if name.endswith(".gate.weight") and tensor.scheme is not None:
            raise UnsupportedCheckpointError(
                f"{tensor.file}: the router {name} is stored in codes ({tensor.dtype}), and is multiplied in numbers "
                "only; choose a version of the model that leaves its routers unquantised"
            )


def _refuse_tied_codes(tensors: Mapping[str, TensorInfo], config: ModelConfig) -> None:
    head = tensors.get(OUTPUT_HEAD)
    if config.tie_word_embeddings and head is not None and head.scheme is not None:
        raise CheckpointError(
            f"{head.file}: config.json ties the output head to the embedding, yet lm_head is stored in codes "
            f"({head.dtype}); set tie_word_embeddings to false if the stored head is meant"
        )


def _refuse_mixed_experts(tensors: Mapping[str, TensorInfo]) -> None:
    """An expert's gate and up are multiplied as one matrix."""
    for name, gate in tensors.items():
        stem, _, last = name.removesuffix(".weight").rpartition(".")
        up = tensors.get(f"{stem}.{_UP_OF_GATE.get(last)}.weight") if ".experts." in name else None
        if up is not None and (gate.dtype, gate.scheme) != (up.dtype, up.scheme):
            raise UnsupportedCheckpointError(
                f"{gate.file}: {name} is stored as {_shown(gate)}, and {up.name} as {_shown(up)}; an expert's two must "
                "be alike. Choose a version of the model with the same bits and groups for both"
            )


def _shown(tensor: TensorInfo) -> str:
    scheme = tensor.scheme
    return tensor.dtype if scheme is None else f"{tensor.dtype} of {scheme.bits} bits in groups of {scheme.group_size}"


def _mixed(found: Quantization, info: CheckpointInfo) -> list[EffectiveSetting]:
    """A note on matrices of the layers that are unquantised, though the configuration does not leave them out."""
    names = [
        name.removesuffix(".weight")
        for name, tensor in info.tensors.items()
        if len(tensor.shape) == 2 and tensor.scheme is None and ".layers." in name
    ]
    plain = Counter(name.rpartition(".")[2] for name in names if found.reader.expects(name))
    del plain["gate"]  # a router is left as it is by every maker
    if not plain:
        return []
    shown = ", ".join(f"{name} in {count}" for name, count in plain.most_common(4))
    reason = f"these matrices are stored unquantised, and run so: {shown} of {info.config.num_hidden_layers} layers"
    return [EffectiveSetting("quantization", f"{found.method} everywhere", "mixed", reason)]
