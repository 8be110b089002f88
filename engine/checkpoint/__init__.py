"""The only reader of checkpoint headers: safetensors folders and GGUF files become a `CheckpointInfo`; torch-free.

Owns the choice of reader and the check that the tensors are those the architecture needs. Reads headers, no weights.
Invariant: what `read_checkpoint` returns can be loaded: every tensor is there, inside its file, in a known format and
of the expected shape. Of a model that transformers runs only the formats are checked here; names and shapes are
transformers' to know, and engine.models.hf_loading holds the checkpoint against them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoint.folder import read_chat_template, read_json_object
from engine.checkpoint.gguf import MAGIC
from engine.checkpoint.gguf_model import read_gguf
from engine.checkpoint.gguf_parts import first_part
from engine.checkpoint.hf_config import read_config
from engine.checkpoint.hf_families import plain_name
from engine.checkpoint.info import (
    OUTPUT_HEAD,
    STORAGE_FORMATS,
    CheckpointError,
    CheckpointInfo,
    TensorInfo,
    UnsupportedCheckpointError,
    describe_foreign,
    read_head,
)
from engine.checkpoint.multi_token import multi_token_tensors
from engine.checkpoint.packed import join_parts, read_quantization
from engine.checkpoint.safetensors import (
    INDEX_FILE,
    PICKLE_REMEDY,
    PICKLES,
    SINGLE_FILE,
    foreign_weights,
    read_tensors,
)
from engine.config import ModelConfig

__all__ = [
    "OUTPUT_HEAD",
    "CheckpointError",
    "CheckpointInfo",
    "TensorInfo",
    "UnsupportedCheckpointError",
    "read_checkpoint",
]

_LAYERS = "model.layers."
_IN_LAYER = re.compile(r"\.\d+\.")  # layers are numbered whatever a family calls them
_LAYER_NORMS = {
    "pre": ("input_layernorm", "post_attention_layernorm"),
    "post": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "sandwich": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}
_DERIVED = re.compile(  # stored by old checkpoints, computed from the configuration: rotary frequencies, causal masks
    r"\.rotary_emb\.inv_freq$|(^|\.)(attn|attention)\.(bias|masked_bias)$"
)


def read_checkpoint(path: Path) -> CheckpointInfo:
    """Read and check the headers of a model folder, a .gguf file or a .safetensors file beside its config.json."""
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such file or folder")
    if path.is_file():
        info = _read_file(path)
    elif any((path / name).is_file() for name in ("config.json", SINGLE_FILE, INDEX_FILE)):
        info = _read_safetensors(path, None)
    else:
        info = _read_gguf(find_gguf(path))
    _check_config(info)
    if info.config.transformers_class:
        for tensor in info.tensors.values():
            _check_format(tensor)
    else:
        _check_tensors(info)
    return info


def find_gguf(folder: Path) -> Path:
    """The one GGUF file of `folder`, or the first part of the one that is split."""
    try:
        found = sorted(folder.glob("*.gguf"))
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read ({error.strerror or error})") from error
    if len(found) == 1:
        return found[0]
    if not found:
        foreign = foreign_weights(folder)
        also = f" (found {', '.join(foreign[:3])}). {PICKLE_REMEDY}" if foreign else ""
        raise CheckpointError(f"{folder}: no model here: neither config.json with {SINGLE_FILE} nor a .gguf file{also}")
    first = first_part(found)
    if first is not None:
        return first
    names = ", ".join(path.name for path in found)
    raise CheckpointError(f"{folder}: several GGUF files ({names}); name the one to load")


def _read_file(path: Path) -> CheckpointInfo:
    head = read_head(path)
    if head.startswith(MAGIC):
        return _read_gguf(path)
    if path.name == INDEX_FILE:
        return _read_safetensors(path.parent, None)
    if path.suffix == ".safetensors":
        return _read_safetensors(path.parent, path)
    also = f". {PICKLE_REMEDY}" if path.suffix in PICKLES else ""
    raise CheckpointError(
        f"{path}: neither a GGUF nor a safetensors file; it looks like {describe_foreign(head)}{also}"
    )


def _read_gguf(path: Path) -> CheckpointInfo:
    config, tensors, chat_template, metadata = read_gguf(path)
    return _describe(path, "gguf", config, tensors, chat_template, metadata)


def _read_safetensors(folder: Path, weights: Path | None) -> CheckpointInfo:
    config_path = folder / "config.json"
    metadata = read_json_object(config_path)
    config = read_config(config_path, metadata)
    quantization = read_quantization(config_path, metadata, config)
    found = read_tensors(folder, weights)
    left_out = multi_token_tensors(found, config.num_hidden_layers, metadata)
    stored = {name: tensor for name, tensor in found.items() if name not in left_out and not _DERIVED.search(name)}
    tensors = {}
    for name, tensor in join_parts(quantization, stored, config, folder).items():
        renamed = plain_name(name) if config.num_experts else name
        tensors[renamed] = replace(tensor, name=renamed)
    info = _describe(weights or folder, "safetensors", config, tensors, read_chat_template(folder), metadata)
    return replace(info, left_out=tuple(sorted(left_out)))


def _describe(
    path: Path,
    format_name: str,
    config: ModelConfig,
    tensors: dict[str, TensorInfo],
    chat_template: str | None,
    metadata: dict[str, Any],
) -> CheckpointInfo:
    counted = [tensor for name, tensor in tensors.items() if not (config.tie_word_embeddings and name == OUTPUT_HEAD)]
    return CheckpointInfo(
        path=path,
        format=format_name,
        config=config,
        tensors=tensors,
        quantization=_dominant_format(counted),
        chat_template=chat_template,
        weights_bytes_on_disk=sum(tensor.nbytes for tensor in tensors.values()),
        num_parameters=sum(tensor.num_elements for tensor in counted),
        metadata=metadata,
    )


def _dominant_format(tensors: list[TensorInfo]) -> str:
    """The storage format of most elements of the layers' matrices."""
    elements: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) >= 2 and _IN_LAYER.search(tensor.name):
            elements[tensor.dtype] += tensor.num_elements
    return elements.most_common(1)[0][0] if elements else "none"


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that a model of this configuration needs."""
    hidden = config.hidden_size
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        prefix = f"{_LAYERS}{layer}."
        for name in _LAYER_NORMS[config.norm_placement]:
            yield f"{prefix}{name}.weight", (hidden,)
        for name, size in _head_norms(config):
            yield f"{prefix}self_attn.{name}.weight", (size,)
        for name, out_features, in_features, has_bias in _linears(config):
            yield f"{prefix}{name}.weight", (out_features, in_features)
            if has_bias:
                yield f"{prefix}{name}.bias", (out_features,)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield OUTPUT_HEAD, (config.vocab_size, hidden)


def _head_norms(config: ModelConfig) -> tuple[tuple[str, int], ...]:
    if config.qk_norm == "none":
        return ()
    whole = config.qk_norm == "projection"
    queries, keys = config.num_attention_heads if whole else 1, config.num_key_value_heads if whole else 1
    return ("q_norm", queries * config.head_dim), ("k_norm", keys * config.head_dim)


_Linear = tuple[str, int, int, bool]  # name, outputs, inputs, whether it has a bias


def _linears(config: ModelConfig) -> tuple[_Linear, ...]:
    """A layer's matrices as the checkpoint stores them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    qkv_bias = config.attention_bias or config.qkv_bias
    output = ("self_attn.o_proj", hidden, queries, config.attention_bias)
    if config.fused_projections:
        fused = ("self_attn.qkv_proj", queries + 2 * keys, hidden, qkv_bias)
        gate_up = ("mlp.gate_up_proj", 2 * inner, hidden, config.mlp_bias)
        return fused, output, gate_up, ("mlp.down_proj", hidden, inner, config.mlp_bias)
    attention = (
        ("self_attn.q_proj", queries, hidden, qkv_bias),
        ("self_attn.k_proj", keys, hidden, qkv_bias),
        ("self_attn.v_proj", keys, hidden, qkv_bias),
        output,
    )
    if config.num_experts:
        router = ("mlp.gate", config.num_experts, hidden, False)
        experts = [_gated(f"mlp.experts.{index}", config) for index in range(config.num_experts)]
        return (*attention, router, *(linear for expert in experts for linear in expert))
    return attention + _gated("mlp", config)


def _gated(prefix: str, config: ModelConfig) -> tuple[_Linear, ...]:
    hidden, inner = config.hidden_size, config.intermediate_size
    return (
        (f"{prefix}.gate_proj", inner, hidden, config.mlp_bias),
        (f"{prefix}.up_proj", inner, hidden, config.mlp_bias),
        (f"{prefix}.down_proj", hidden, inner, config.mlp_bias),
    )


def _check_config(info: CheckpointInfo) -> None:
    config = info.config
    if config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(
            f"{info.path}: {config.num_attention_heads} attention heads cannot share {config.num_key_value_heads} "
            "key-value heads evenly; the configuration is damaged"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{info.path}: head_dim is {config.head_dim}; rotary positions need an even number")
    for token_id in (*config.eos_token_ids, *(() if config.bos_token_id is None else (config.bos_token_id,))):
        if not 0 <= token_id < config.vocab_size:
            raise CheckpointError(
                f"{info.path}: the special token id {token_id} lies outside the vocabulary of {config.vocab_size}"
            )


def _check_tensors(info: CheckpointInfo) -> None:
    """Every needed tensor is there with its shape, in a format that can be read, and no other tensor is."""
    needed: set[str] = set()
    for name, shape in expected_tensors(info.config):
        tensor = info.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{info.path}: tensor {name} {shape} is missing; the checkpoint is incomplete")
        _check_tensor(info, tensor, shape)
        needed.add(name)
    for name, tensor in info.tensors.items():
        if name == OUTPUT_HEAD and info.config.tie_word_embeddings:
            _check_tensor(info, tensor, (info.config.vocab_size, info.config.hidden_size))
        elif name not in needed:
            raise UnsupportedCheckpointError(
                f"{info.path}: tensor {name} is not part of a {info.config.architecture} of this configuration; "
                "this variant is not supported"
            )


def _check_tensor(info: CheckpointInfo, tensor: TensorInfo, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} has the shape {tensor.shape}, expected {shape} from the "
            f"configuration of {info.path}; weights and configuration do not belong together"
        )
    _check_format(tensor)


def _check_format(tensor: TensorInfo) -> None:
    if tensor.dtype not in STORAGE_FORMATS and tensor.scheme is None:
        raise UnsupportedCheckpointError(
            f"{tensor.file}: tensor {tensor.name} is stored as {tensor.dtype}, which is not supported yet (supported: "
            f"{', '.join(STORAGE_FORMATS)}); choose a Q4_K_M, Q8_0 or F16 GGUF file, or safetensors in F16 or BF16"
        )
