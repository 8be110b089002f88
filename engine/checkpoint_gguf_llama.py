"""Reads a GGUF file of the Llama family as if it were a Hugging Face checkpoint: names, configuration, template.

Owns what the keys `llama.*` and the tensors' names mean. Knows nothing of the byte format (checkpoint_gguf.py).
Invariant: a key or tensor that would change the arithmetic is translated or refused, never passed over.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from engine.checkpoint_gguf import GgufHeader, read_gguf_header
from engine.checkpoint_info import CheckpointError, TensorInfo, UnsupportedCheckpointError
from engine.config import ModelConfig, RopeScaling

ARCHITECTURES = ("llama",)

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FREQS = "rope_freqs.weight"
# Keys whose presence, with another value than the one given, means arithmetic that this family does not have here.
_NEUTRAL = {"expert_count": 0, "attention.sliding_window": 0, "attention.scale": 0.0, "attention.causal": True}
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


class _Keys:
    """Typed access to the key-values, with errors that name file and key."""

    def __init__(self, path: Path, metadata: dict[str, Any], architecture: str) -> None:
        self._path = path
        self._metadata = metadata
        self._prefix = f"{architecture}."

    def get(self, name: str) -> Any:
        return self._metadata.get(self._prefix + name)

    def fail(self, name: str, expected: str) -> CheckpointError:
        found = self.get(name)
        shown = "missing" if found is None else f"{str(found)[:60]!s}"
        return CheckpointError(
            f"{self._path}: key {self._prefix}{name} is {shown}, expected {expected}; get another file of this model"
        )

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # written per layer, but all layers agree
        if value is None and default is not None:
            return default
        if type(value) is not int or value <= 0:
            raise self.fail(name, "one positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
            raise self.fail(name, "a positive number")
        return float(value)

    def refuse_unknown_arithmetic(self) -> None:
        for name, neutral in _NEUTRAL.items():
            value = self.get(name)
            if value is not None and value != neutral:
                raise UnsupportedCheckpointError(
                    f"{self._path}: key {self._prefix}{name} is {value}: only dense models with full attention and the "
                    "usual scale run today; choose another model"
                )


def read_gguf(path: Path) -> tuple[ModelConfig, dict[str, TensorInfo], str | None, dict[str, Any]]:
    """Configuration, tensors under Hugging Face names, chat template and key-values of the GGUF file `path`."""
    header = read_gguf_header(path)
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedCheckpointError(
            f"{path}: architecture {architecture!r} is not supported; supported in GGUF: {', '.join(ARCHITECTURES)}"
        )
    tensors = _hugging_face_names(header)
    template = header.metadata.get("tokenizer.chat_template")
    return _read_config(header, tensors), tensors, template if isinstance(template, str) else None, header.metadata


def _hugging_face_names(header: GgufHeader) -> dict[str, TensorInfo]:
    tensors = {}
    for name, tensor in header.tensors.items():
        if name == _ROPE_FREQS:
            continue  # read by _rope_scaling
        renamed = _hugging_face_name(name)
        if renamed is None:
            raise UnsupportedCheckpointError(
                f"{header.path}: tensor {name} is not one of a llama's; this variant is not supported"
            )
        tensors[renamed] = TensorInfo(renamed, tensor.dtype, tensor.shape, tensor.file, tensor.offset, tensor.nbytes)
    return tensors


def _hugging_face_name(name: str) -> str | None:
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        return None
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{suffix}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isascii() and parts[1].isdigit() and parts[2] in _IN_LAYER:
        return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.{suffix}"
    return None


def _read_config(header: GgufHeader, tensors: dict[str, TensorInfo]) -> ModelConfig:
    keys = _Keys(header.path, header.metadata, header.metadata["general.architecture"])
    keys.refuse_unknown_arithmetic()
    hidden_size = keys.count("embedding_length")
    num_heads = keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", hidden_size // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.count(name, head_dim) != head_dim:
            raise keys.fail(name, f"{head_dim}, the length of a head")
    rope_theta = keys.number("rope.freq_base", 10000.0)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return ModelConfig(
        architecture="llama",
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length"),
        num_hidden_layers=keys.count("block_count"),
        num_attention_heads=num_heads,
        num_key_value_heads=keys.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=keys.count("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        max_position_embeddings=keys.count("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=rope_theta,
        rope_scaling=_rope_scaling(header, keys, rope_theta, head_dim),
        tie_word_embeddings="lm_head.weight" not in tensors,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in tensors,
        bos_token_id=_token_id(header, "tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(token for key in _EOS_KEYS if (token := _token_id(header, key)) is not None)),
    )


def _token_id(header: GgufHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    return value if type(value) is int else None


def _rope_scaling(header: GgufHeader, keys: _Keys, rope_theta: float, head_dim: int) -> RopeScaling | None:
    if _ROPE_FREQS in header.tensors:
        return _llama3_scaling(header, keys, rope_theta, head_dim)
    kind = keys.get("rope.scaling.type")
    if kind is None and keys.get("rope.scale_linear") is not None:  # the older spelling
        factor = keys.number("rope.scale_linear")
    elif kind in (None, "none"):
        return None
    elif kind == "linear":
        factor = keys.number("rope.scaling.factor")
    else:
        raise UnsupportedCheckpointError(
            f"{header.path}: rope scaling {kind!r} is not supported; supported are none, linear and llama3"
        )
    return None if factor == 1.0 else RopeScaling("linear", factor)


def _llama3_scaling(header: GgufHeader, keys: _Keys, rope_theta: float, head_dim: int) -> RopeScaling:
    """The llama3 scaling that `rope_freqs` (one divisor per rotary pair) was made from; refused where none fits."""
    tensor = header.tensors[_ROPE_FREQS]
    if tensor.dtype != "F32" or tensor.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{header.path}: tensor {_ROPE_FREQS} is {tensor.dtype} {tensor.shape}, expected F32 ({head_dim // 2},)"
        )
    with header.path.open("rb") as stream:
        stream.seek(tensor.offset)
        divisors = struct.unpack(f"<{head_dim // 2}f", stream.read(tensor.nbytes))
    if not all(0.0 < divisor < math.inf for divisor in divisors):
        raise CheckpointError(f"{header.path}: tensor {_ROPE_FREQS} holds numbers that cannot divide a frequency")
    scaling = RopeScaling(
        "llama3",
        factor=max(divisors),
        original_max_position_embeddings=keys.count("rope.scaling.original_context_length", 8192),
    )
    expected = [_llama3_divisor(scaling, rope_theta ** (-2 * pair / head_dim)) for pair in range(head_dim // 2)]
    if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(divisors, expected, strict=True)):
        raise UnsupportedCheckpointError(
            f"{header.path}: the rotary factors in {_ROPE_FREQS} are not those of Llama 3.1's scaling (low 1, high 4, "
            f"original context {scaling.original_max_position_embeddings}); use the safetensors checkpoint"
        )
    return scaling


def _llama3_divisor(scaling: RopeScaling, frequency: float) -> float:
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)  # within the original context
    if turns > scaling.high_freq_factor:
        return 1.0
    if turns < scaling.low_freq_factor:
        return scaling.factor
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)
