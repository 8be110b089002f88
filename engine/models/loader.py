"""Turns a checked checkpoint into named tensors, one at a time, and those into a model.

Owns the choice of the class, the reading of weights and the undoing of what GGUF changes: the row order of q and k, an
offset in norms. Knows no devices.
Invariant: names and layout that leave here are Hugging Face's; no tensor that `iter_weights` yields shares memory with
a file.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator

import torch

from engine.checkpoint import OUTPUT_HEAD, CheckpointError, CheckpointInfo, TensorInfo
from engine.checkpoint.gguf_families import INTERLEAVED_ROWS
from engine.config import ModelConfig
from engine.layers.linear import Weight
from engine.models.decoder import Decoder
from engine.models.registry import FALLBACK, Model, model_class
from engine.quant import resolve_format
from kernels.group_quant import GroupQuant
from kernels.ops import Ops, accumulation_dtype

_EMBEDDING = "model.embed_tokens.weight"


Progress = Callable[[int, int], None]  # bytes read so far and in all


def load_model(
    info: CheckpointInfo,
    ops: Ops,
    max_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    weights: Iterable[tuple[str, Weight]] | None = None,
) -> Model:
    """The model of a checkpoint with its weights: a decoder of ours, or transformers' class on our cache.

    weights: of a decoder of ours, by Hugging Face names and on any device, in place of the checkpoint's own.
    """
    if info.config.transformers_class:
        fallback: Model = model_class(FALLBACK)(ops, info, max_positions, dtype, device, progress)
        return fallback
    decoder: Decoder = model_class(info.config.architecture)(ops, info.config, max_positions, dtype, device)
    for name, weight in iter_weights(info, dtype, progress) if weights is None else weights:
        decoder.load(name, weight)
    return decoder


def iter_weights(info: CheckpointInfo, dtype: torch.dtype, progress: Progress) -> Iterator[tuple[str, Weight]]:
    """Every tensor of the model on the CPU; `progress` gets the bytes read so far and in all.

    Matrices that are stored in codes stay so (`GroupQuant` in layout "rows"); all else becomes numbers of `dtype`. A
    tied output head that is stored all the same is compared with the embedding and not yielded.
    """
    done, total = 0, info.weights_bytes_on_disk
    progress(done, total)
    for name, tensor in info.tensors.items():
        if name == OUTPUT_HEAD and info.config.tie_word_embeddings:
            _check_tied(tensor, info.tensors[_EMBEDDING])
        else:
            weight = _read(info, tensor)
            yield name, weight if isinstance(weight, GroupQuant) else weight.to(dtype)
        done += tensor.nbytes
        progress(done, total)


def iter_numbers(info: CheckpointInfo, dtype: torch.dtype, progress: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    """As `iter_weights`, with codes dequantised: every tensor as numbers of `dtype`."""
    for name, weight in iter_weights(info, dtype, progress):
        yield name, _numbers(weight, dtype) if isinstance(weight, GroupQuant) else weight


def _numbers(weight: GroupQuant, dtype: torch.dtype) -> torch.Tensor:
    return weight.dequantised(accumulation_dtype(dtype)).to(dtype)


_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip


def mapped_tensors(info: CheckpointInfo) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors checkpoint in its stored dtype, mapped from its file and not read."""
    return {name: _mapped(tensor) for name, tensor in info.tensors.items()}


def _mapped(tensor: TensorInfo) -> torch.Tensor:
    raw, dtype = _map_bytes(tensor), _DTYPES[tensor.dtype]
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(tensor.shape)


def _read(info: CheckpointInfo, tensor: TensorInfo) -> Weight:
    """The tensor in codes, or in fp32; in memory of its own."""
    stored = {part.name.rpartition(".")[2]: _mapped(part) for part in tensor.parts} or {"": _map_bytes(tensor)}
    weight = resolve_format(tensor.dtype)(tensor, stored)
    if isinstance(weight, GroupQuant) and tensor.scheme is None:
        weight = weight.dequantised().view(tensor.shape)
    if info.format == "gguf":
        weight = _as_hugging_face_has_it(weight, tensor.name, info.config)
    return _owned(weight, {part.untyped_storage().data_ptr() for part in stored.values()})


def _as_hugging_face_has_it(weight: Weight, name: str, config: ModelConfig) -> Weight:
    """Undoes what conversion to GGUF changes in the tensor `name`."""
    heads = _rotary_heads(name, config)
    if heads is not None:  # GGUF stores a head's rows as (pair, half); Hugging Face as (half, pair)
        rows = torch.arange(weight.shape[0]).view(heads, -1, 2).transpose(1, 2).flatten()
        weight = weight.rows(rows) if isinstance(weight, GroupQuant) else weight[rows]
    if config.norm_offset and name.endswith("norm.weight"):
        assert isinstance(weight, torch.Tensor)
        weight = weight.sub(config.norm_offset)
    return weight


def _owned(weight: Weight, mapped: set[int]) -> Weight:
    """The same, no longer in the memory of a mapped file."""
    if isinstance(weight, torch.Tensor):
        return weight.clone() if weight.untyped_storage().data_ptr() in mapped else weight
    copies = {
        name: tensor.clone()
        for name, tensor in weight.tensors().items()
        if tensor.untyped_storage().data_ptr() in mapped
    }
    return weight.with_tensors(copies)


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


def _check_tied(head: TensorInfo, embedding: TensorInfo) -> None:
    pairs = zip(head.parts or (head,), embedding.parts or (embedding,), strict=False)
    if head.dtype == embedding.dtype and all(torch.equal(_map_bytes(one), _map_bytes(other)) for one, other in pairs):
        return
    raise CheckpointError(
        f"{head.file}: config.json ties the output head to the embedding, yet {head.name} is stored and differs from "
        f"{embedding.name}; set tie_word_embeddings to false if the stored head is meant"
    )
