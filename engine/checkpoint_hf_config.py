"""Reads config.json (and the end-of-text ids of generation_config.json) of the Llama family into a `ModelConfig`.

Owns what the fields mean, in the spellings of all transformers versions. Knows no tensors.
Invariant: a field that would change the arithmetic is translated or refused, never passed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.checkpoint_folder import read_eos_token_ids
from engine.checkpoint_info import CheckpointError, UnsupportedCheckpointError
from engine.config import ModelConfig, RopeScaling

ARCHITECTURES = {"LlamaForCausalLM": "llama"}
_MAX_NUMBER = 1e30  # no field comes near it; keeps infinity, NaN and integers beyond a float's range out


class _Fields:
    """Typed access to a JSON object's fields, with errors that name file and field."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self._values = values

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def fail(self, name: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {name} is {self._values.get(name)!r}, expected {expected}")

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if type(value) is not int or value <= 0:
            raise self.fail(name, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < _MAX_NUMBER:
            raise self.fail(name, "a positive number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.get(name, False)
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def part(self, name: str) -> _Fields | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return _Fields(self.path, value)


def read_config(path: Path, values: dict[str, Any]) -> ModelConfig:
    """The architecture that `values`, the content of config.json at `path`, describes."""
    fields = _Fields(path, values)
    architecture = _architecture(fields)
    _refuse_unknown_arithmetic(fields)
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    rope_theta, rope_scaling = _rope(fields)
    bos = fields.get("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_hidden_layers=fields.count("num_hidden_layers"),
        num_attention_heads=num_heads,
        num_key_value_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=fields.count("head_dim", hidden_size // num_heads),
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=fields.count("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        bos_token_id=bos if type(bos) is int else None,
        eos_token_ids=read_eos_token_ids(path.parent, fields.get("eos_token_id")),
    )


def _architecture(fields: _Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.fail("architectures", f"a list of one name; supported: {', '.join(ARCHITECTURES)}")
    if names[0] not in ARCHITECTURES:
        raise UnsupportedCheckpointError(
            f"{fields.path}: architecture {names[0]} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[names[0]]


def _refuse_unknown_arithmetic(fields: _Fields) -> None:
    quantization = fields.part("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unknown")
        raise UnsupportedCheckpointError(
            f"{fields.path}: weights quantised with {method} are not supported yet; use the unquantised checkpoint, "
            "or a Q4_0, Q4_1 or Q8_0 GGUF file of this model"
        )
    for name, neutral in (("hidden_act", "silu"), ("partial_rotary_factor", 1.0)):
        value = fields.get(name, neutral)
        if value != neutral:
            raise UnsupportedCheckpointError(f"{fields.path}: {name} is {value!r}; only {neutral!r} is supported")


def _rope(fields: _Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    parameters = fields.part("rope_parameters")
    scaling = parameters or fields.part("rope_scaling")
    theta = fields.number("rope_theta", 10000.0)
    if parameters is not None:
        theta = parameters.number("rope_theta", theta)
    if scaling is None:
        return theta, None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", scaling.number("factor"))
    if kind == "llama3":
        return theta, _llama3_scaling(scaling)
    raise UnsupportedCheckpointError(
        f"{fields.path}: rope scaling {kind!r} is not supported; supported are default, linear and llama3"
    )


def _llama3_scaling(fields: _Fields) -> RopeScaling:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if low >= high:
        raise fields.fail("high_freq_factor", f"more than low_freq_factor, which is {low}")
    original = fields.count("original_max_position_embeddings")
    return RopeScaling("llama3", fields.number("factor"), low, high, original)
