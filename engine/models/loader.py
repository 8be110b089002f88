"""Turns a checked checkpoint into named tensors, one at a time, and those into a model.

Owns the choice of the class, the reading of weights and the undoing of what GGUF changes: the row order of q and k, an
offset in norms. Knows no devices.
Invariant: names and layout that leave here are Hugging Face's; no tensor that `iter_weights` yields shares memory with
a file.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import torch

from engine.checkpoint import OUTPUT_HEAD, CheckpointError, CheckpointInfo, TensorInfo
from engine.checkpoint.gguf_families import INTERLEAVED_ROWS
from engine.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import FALLBACK, Model, model_class
from engine.quant import resolve_format
from kernels.ops import Ops

_EMBEDDING = "model.embed_tokens.weight"


Progress = Callable[[int, int], None]  # bytes read so far and in all


def load_model(
    info: CheckpointInfo,
    ops: Ops,
    max_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> Model:
    """The model of a checkpoint with its weights: a decoder of ours, or transformers' class on our cache."""
    if info.config.transformers_class:
        fallback: Model = model_class(FALLBACK)(ops, info, max_positions, dtype, device, progress)
        return fallback
    decoder: Decoder = model_class(info.config.architecture)(ops, info.config, max_positions, dtype, device)
    for name, tensor in iter_weights(info, dtype, progress):
        decoder.load(name, tensor)
    return decoder


def iter_weights(info: CheckpointInfo, dtype: torch.dtype, progress: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the model as a CPU tensor of `dtype`; `progress` gets the bytes read so far and in all.

    A tied output head that is stored all the same is compared with the embedding and not yielded.
    """
    done, total = 0, info.weights_bytes_on_disk
    progress(done, total)
    for name, tensor in info.tensors.items():
        if name == OUTPUT_HEAD and info.config.tie_word_embeddings:
            _check_tied(tensor, info.tensors[_EMBEDDING])
        else:
            yield name, _read(info, tensor).to(dtype)
        done += tensor.nbytes
        progress(done, total)


_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def mapped_tensors(info: CheckpointInfo) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors checkpoint in its stored dtype, mapped from its file and not read."""
    found = {}
    for name, tensor in info.tensors.items():
        raw, dtype = _map_bytes(tensor), _PLAIN[tensor.dtype]
        if raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()
        found[name] = raw.view(dtype).view(tensor.shape)
    return found


def _read(info: CheckpointInfo, tensor: TensorInfo) -> torch.Tensor:
    """The tensor in fp32, in memory of its own."""
    raw = _map_bytes(tensor)
    weights: torch.Tensor = resolve_format(tensor.dtype)(raw, tensor.shape)
    if info.format == "gguf":
        heads = _rotary_heads(tensor.name, info.config)
        if heads is not None:
            weights = _undo_interleaving(weights, heads)
        if info.config.norm_offset and tensor.name.endswith("norm.weight"):
            weights = weights.sub(info.config.norm_offset)
    return weights.clone() if weights.data_ptr() == raw.data_ptr() else weights


def _map_bytes(tensor: TensorInfo) -> torch.Tensor:
    """The tensor's bytes, mapped and not read; uint8 [nbytes]. The mapping lives as long as the result."""
    start = tensor.offset - tensor.offset % mmap.ALLOCATIONGRANULARITY
    try:
        with tensor.file.open("rb") as stream:
            # Copy-on-write, only because torch wants writable memory; nothing is written.
            mapped = mmap.mmap(
                stream.fileno(), tensor.offset + tensor.nbytes - start, access=mmap.ACCESS_COPY, offset=start
            )
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} cannot be read ({error}); has the file changed since it was checked?"
        ) from error
    return torch.frombuffer(mapped, dtype=torch.uint8, count=tensor.nbytes, offset=tensor.offset - start)


def _rotary_heads(name: str, config: ModelConfig) -> int | None:
    if config.architecture not in INTERLEAVED_ROWS:
        return None
    if ".self_attn.q_proj." in name:
        return config.num_attention_heads
    if ".self_attn.k_proj." in name:
        return config.num_key_value_heads
    return None


def _undo_interleaving(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF stores a head's rows as (pair, half); Hugging Face as (half, pair). Weights [out, in] and biases [out]."""
    tail = weights.shape[1:]
    return weights.reshape(heads, -1, 2, *tail).transpose(1, 2).reshape(weights.shape)


def _check_tied(head: TensorInfo, embedding: TensorInfo) -> None:
    if head.dtype == embedding.dtype and torch.equal(_map_bytes(head), _map_bytes(embedding)):
        return
    raise CheckpointError(
        f"{head.file}: config.json ties the output head to the embedding, yet {head.name} is stored and differs from "
        f"{embedding.name}; set tie_word_embeddings to false if the stored head is meant"
    )
