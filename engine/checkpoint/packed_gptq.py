"""GPTQ in the headers: bits and groups of each matrix, and which version its zeros are stored in.

Owns the per-module rules of GPTQModel's `dynamic`, and the sniffing of zeros. Reads a few KiB of zeros, no weights.
Invariant: where sampled zeros are those of symmetric codes, they decide the version, whatever the configuration says,
and a note tells of a difference.
Source: GPTQModel 7.7.0, quantization/config.py and utils/model.py; vllm pull request 38966.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.checkpoint.fields import Fields
from engine.checkpoint.info import TensorInfo, UnsupportedCheckpointError
from engine.checkpoint.packed_module import (
    INTEGER_BITS,
    SCALE_BYTES,
    StoredModule,
    compiled,
    first_bytes,
    group_scheme,
    read_bits,
    read_group_size,
)
from engine.config import EffectiveSetting

V1, V1_WORDS, V2 = "GPTQ_V1", "GPTQ_V1_WORDS", "GPTQ_V2"
_DECLARED = {"gptq": V1, "gptq_v2": V2}
_WORD_BITS = 32
_SAMPLED_MODULES, _SAMPLED_BYTES = 8, 4096
_INDEXES = ("I32", "I64")
_SCALES = tuple(SCALE_BYTES)


class Gptq:
    """See `PackedMethod`."""

    marks = frozenset({"qweight", "qzeros", "scales", "g_idx"})
    dropped: frozenset[str] = frozenset()

    def __init__(self, settings: Fields) -> None:
        self._settings = settings
        self._bits = read_bits(settings, ("bits", "w_bit", "wbits"), 4)
        self._group_size = read_group_size(settings, ("group_size", "q_group_size"))
        self._act_order = settings.flag("desc_act") and not settings.flag("static_groups")
        self._head = settings.get("lm_head")
        self._dynamic = self._read_dynamic()
        self._declared = self._read_version()
        if settings.get("pack_dtype", "int32") != "int32":
            raise UnsupportedCheckpointError(
                f"{settings.path}: GPTQ packed into {settings.get('pack_dtype')!r:.40} is not supported, only into "
                "int32; choose a version of the model that is packed so"
            )
        if settings.get("adapter") is not None:
            raise UnsupportedCheckpointError(
                f"{settings.path}: GPTQ with an adapter is not supported; merge the adapter, or choose a version of "
                "the model without one"
            )

    def _read_version(self) -> str:
        settings = self._settings
        name = "checkpoint_format" if settings.get("checkpoint_format") is not None else "format"
        declared = settings.get(name, "gptq")
        if not isinstance(declared, str):
            raise settings.fail(name, f"one of {', '.join(_DECLARED)}")
        if settings.flag("is_marlin_format"):
            declared = "marlin"
        if declared.lower() not in _DECLARED:
            raise UnsupportedCheckpointError(
                f"{settings.path}: GPTQ codes in the layout {declared!r:.40} are not supported; supported are "
                f"{', '.join(_DECLARED)}. Choose a version of the model that is saved so"
            )
        version = _DECLARED[declared.lower()]
        return V1_WORDS if version == V1 and "gptqmodel" in _quantizer(settings) else version

    def _read_dynamic(self) -> dict[str, dict[str, Any]]:
        value = self._settings.get("dynamic", {})
        if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
            raise self._settings.fail("dynamic", "an object of patterns, each with an object of settings")
        return value

    def matrices(self, modules: Sequence[StoredModule]) -> Iterator[TensorInfo]:
        """See `PackedMethod`."""
        checked = [(module, self._for_module(module)) for module in modules]
        for module, (bits, size) in checked:
            _check_shapes(module, bits, size)
        middle = _sniff([(module, bits) for module, (bits, _) in checked])
        version = middle or self._declared
        for module, (bits, wanted) in checked:
            scales = module.parts["scales"]
            inputs = module.parts["qweight"].shape[0] * _WORD_BITS // bits
            size = module.check_groups(inputs, wanted, scales.shape[0], "scales")
            permuted = self._act_order and "g_idx" in module.parts and size != inputs
            scheme = group_scheme(bits, size, scales, 0 if middle else 1, permuted)
            yield module.matrix(version, (scales.shape[1], inputs), scheme, "qweight")

    def expects(self, module: str) -> bool:
        """See `PackedMethod`."""
        rule = self._rule_of(module)
        return rule is None or not rule.startswith("-:")

    def notes(self, matrices: Sequence[TensorInfo], /) -> list[EffectiveSetting]:
        """See `PackedMethod`."""
        found = {matrix.dtype for matrix in matrices if matrix.dtype in (V1, V1_WORDS, V2)}
        if not found or (V2 in found) == (self._declared == V2):
            return []
        declared, actual = (("gptq_v2", "gptq"), ("gptq", "gptq_v2"))[V2 in found]
        reason = (
            f"the stored zeros are those that symmetric codes have in {actual}; the field of the configuration lies"
        )
        return [EffectiveSetting("GPTQ version", declared, actual, reason)]

    def _for_module(self, module: StoredModule) -> tuple[int, int]:
        """Bits and group size that the configuration gives the module."""
        if module.name == "lm_head" and self._head is False:
            raise module.fail(
                f"lm_head is stored in codes ({', '.join(module.parts)}), and the configuration says lm_head false; "
                "weights and configuration do not belong together"
            )
        bits, size = self._bits, self._group_size
        rule = self._rule_of(module.name)
        if rule is not None and rule.startswith("-:"):
            raise module.fail(
                f"{module.name} is stored in codes ({', '.join(module.parts)}), yet the configuration's dynamic "
                f"leaves it out by {rule!r:.80}; weights and configuration do not belong together"
            )
        if rule is not None:
            own = Fields(self._settings.path, self._dynamic[rule])
            bits = read_bits(own, ("bits",), bits)
            size = read_group_size(own, ("group_size",)) if own.get("group_size") is not None else size
        if bits not in INTEGER_BITS:
            raise module.unsupported(
                f"{module.name} has {bits}-bit GPTQ codes; supported are 4 and 8 bits. Choose such a version of the "
                "model, or a GGUF file"
            )
        return bits, size

    def _rule_of(self, module: str) -> str | None:
        """The first key of `dynamic` that matches the beginning of the name; "-:" before it leaves the module out."""
        for rule in self._dynamic:
            expression = rule[2:] if rule.startswith(("+:", "-:")) else rule
            if expression == module or compiled(expression, self._settings).match(module):
                return rule
        return None


def _quantizer(settings: Fields) -> str:
    meta = settings.get("meta")
    return str(meta.get("quantizer", "")).lower() if isinstance(meta, dict) else ""


def _check_shapes(module: StoredModule, bits: int, group_size: int) -> None:
    weight, scales = module.part("qweight", ["I32"]), module.part("scales", _SCALES)
    zeros = module.part("qzeros", ["I32"])
    outputs, per_word = scales.shape[1], _WORD_BITS // bits
    inputs = weight.shape[0] * per_word
    if weight.shape[1] != outputs or zeros.shape[0] != scales.shape[0]:
        hint = "; they look like AWQ's" if outputs == _WORD_BITS // 4 * weight.shape[1] else ""
        raise module.fail(
            f"{module.name} does not have GPTQ's shapes: {module.shapes()}{hint}. They are (in * bits / 32, out), "
            "(groups, out * bits / 32), (groups, out); weights and configuration do not belong together"
        )
    if outputs % per_word:
        raise module.fail(f"{module.name} has {outputs} outputs; {bits}-bit zeros are packed {per_word} a word")
    if zeros.shape[1] != outputs // per_word:
        stored = _WORD_BITS * zeros.shape[1] / outputs
        raise module.fail(
            f"{module.name}.qzeros has {zeros.shape[1]} words for {outputs} outputs, that is {stored:g} bits each; the "
            f"configuration says {bits}"
        )
    if "g_idx" in module.parts:
        index = module.part("g_idx", _INDEXES, 1)
        if index.shape != (inputs,):
            raise module.fail(
                f"{module.name}.g_idx has {index.shape[0]} inputs, and qweight {weight.shape} holds {inputs} of "
                f"{bits} bits"
            )
    module.check_groups(inputs, group_size, scales.shape[0], "scales")


def _sniff(modules: Sequence[tuple[StoredModule, int]]) -> str | None:
    """The version by the zeros of some modules, spread over all; None where they are not those of symmetric codes."""
    step = max(1, len(modules) // _SAMPLED_MODULES)
    found = {_constant_zero(module.parts["qzeros"], bits) for module, bits in modules[::step][:_SAMPLED_MODULES]}
    return {1: V2, 0: V1}.get(found.pop() if len(found) == 1 else -1)


def _constant_zero(zeros: TensorInfo, bits: int) -> int:
    """1 if the sampled zeros are all 2^(bits - 1), 0 if all are one less, else -1."""
    sample = frozenset(first_bytes(zeros, _SAMPLED_BYTES))
    middle = (0x88, 0x77) if bits == 4 else (0x80, 0x7F)
    return {frozenset({middle[0]}): 1, frozenset({middle[1]}): 0}.get(sample, -1)
