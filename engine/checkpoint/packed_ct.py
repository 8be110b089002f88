"""compressed-tensors in the headers: which group of the configuration a matrix belongs to, and how it is stored.

Owns config_groups with their targets, the ignore list, and the shapes of pack-quantized and int-quantized. Reads the
few bytes of weight_shape, no weights.
Invariant: a matrix that leaves here is stored as the group that targets it says, in integers of 4 or 8 bits.
Source: compressed-tensors 0.20.1, quantization/quant_config.py, quant_args.py, utils/match.py and compressors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.checkpoint.fields import Fields
from engine.checkpoint.info import TensorInfo, UnsupportedCheckpointError
from engine.checkpoint.packed_module import (
    INTEGER_BITS,
    SCALE_BYTES,
    WHOLE_ROW,
    StoredModule,
    first_bytes,
    group_scheme,
    matches,
    read_bits,
    read_group_size,
    read_names,
)
from engine.config import EffectiveSetting

PACKED, INT8 = "CT_PACKED", "CT_INT8"
_PACKED_FORMAT = "pack-quantized"
_INTEGER_FORMATS = ("int-quantized", "naive-quantized")
_MIXED = "mixed-precision"
_GROUP, _CHANNEL, _TENSOR = "group", "channel", "tensor"
_WORD_BITS = 32
_SCALES = tuple(SCALE_BYTES)
_INDEXES = ("I32", "I64")
_SHAPE_BYTES = {"I64": 8, "I32": 4}
_CLASSES = ("Linear", "Embedding")


@dataclass(frozen=True, slots=True)
class _Group:
    """One entry of config_groups. group_size is WHOLE_ROW for one scale a row, or one for the whole matrix."""

    name: str
    targets: tuple[str, ...]
    format: str
    bits: int
    group_size: int
    strategy: str
    symmetric: bool
    act_order: bool
    activations: str  # "" where they are left alone


class CompressedTensors:
    """See `PackedMethod`."""

    marks = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"})
    dropped = frozenset(
        {"input_scale", "input_zero_point", "output_scale", "output_zero_point", "k_scale", "v_scale", "q_scale"}
    )

    def __init__(self, settings: Fields) -> None:
        self._settings = settings
        for name in ("transform_config", "sparsity_config"):
            value = settings.get(name)
            if value and (not isinstance(value, dict) or value.get("format", "other") != "dense"):
                raise UnsupportedCheckpointError(
                    f"{settings.path}: {name} {value!r:.60} changes how the weights are used, and is not supported; "
                    "choose a version of the model without it"
                )
        self._ignored = read_names(settings, "ignore")
        entries = settings.part("config_groups")
        if entries is None or not entries.names():
            raise settings.fail("config_groups", "an object with at least one group")
        self._groups = [group for name in entries.names() if (group := self._read_group(entries, name)) is not None]

    def _read_group(self, entries: Fields, name: str) -> _Group | None:
        entry = entries.part(name)
        weights = None if entry is None else entry.part("weights")
        if entry is None or weights is None:
            return None
        layout = entry.get("format", self._settings.get("format", _PACKED_FORMAT))
        kind, bits = weights.get("type", "int"), read_bits(weights, ("num_bits",), 8)
        supported = (_PACKED_FORMAT, *_INTEGER_FORMATS)
        if layout not in supported or kind != "int":
            raise UnsupportedCheckpointError(
                f"{entry.path}: compressed-tensors' {layout!s:.40} with {bits}-bit {kind!s:.20} weights (config group "
                f"{name}) is not supported; supported are {' and '.join(supported)} with integers of 4 and 8 bits. "
                "Choose such a version of the model, or the unquantised one"
            )
        if bits not in INTEGER_BITS or (layout in _INTEGER_FORMATS and bits != 8):
            raise UnsupportedCheckpointError(
                f"{entry.path}: compressed-tensors' {layout} with {bits}-bit integers (config group {name}) is not "
                "supported; choose a W4A16 or W8A16 version of the model, or a GGUF file"
            )
        strategy, size = _strategy(weights)
        return _Group(
            name=name,
            targets=tuple(read_names(entry, "targets")),
            format=layout,
            bits=bits,
            group_size=size,
            strategy=strategy,
            symmetric=weights.flag("symmetric", True),
            act_order=weights.get("actorder") in ("group", "dynamic", True),
            activations=_activations(entry.part("input_activations")),
        )

    def matrices(self, modules: Sequence[StoredModule]) -> Iterator[TensorInfo]:
        """See `PackedMethod`."""
        for module in modules:
            group = self._group_of(module)
            read = _packed if group.format == _PACKED_FORMAT else _int8
            yield read(module, group)

    def _group_of(self, module: StoredModule) -> _Group:
        ignored = self._ignored_by(module.name)
        if ignored is not None:
            raise module.fail(
                f"{module.name} is stored in codes ({', '.join(module.parts)}), yet the configuration's ignore list "
                f"names it by {ignored!r:.80}; weights and configuration do not belong together"
            )
        found = self._targeting(module.name)
        if found is None:
            shown = "; ".join(", ".join(group.targets) for group in self._groups)
            raise module.fail(
                f"{module.name} is stored in codes ({', '.join(module.parts)}), and no config group targets it "
                f"(targets: {shown:.200}); weights and configuration do not belong together"
            )
        return found

    def _ignored_by(self, module: str) -> str | None:
        return next((entry for entry in self._ignored if matches(entry, module, self._settings)), None)

    def _targeting(self, module: str) -> _Group | None:
        """The group that names the module, else one with an expression for it, else one for its class."""
        ranks: list[list[_Group]] = [[], [], []]
        for group in self._groups:
            for target in group.targets:
                if target in _CLASSES:
                    ranks[2].append(group)
                elif matches(target, module, self._settings):
                    ranks[target.startswith("re:")].append(group)
        return next((group for rank in ranks for group in rank), None)

    def expects(self, module: str) -> bool:
        """See `PackedMethod`."""
        return self._ignored_by(module) is None and self._targeting(module) is not None

    def notes(self, _matrices: Sequence[TensorInfo], /) -> list[EffectiveSetting]:
        """See `PackedMethod`."""
        found = []
        wanted = sorted({group.activations for group in self._groups if group.activations})
        if wanted:
            reason = (
                "the weights are read as codes with scales and multiplied with unrounded activations, which is closer "
                "to the original model"
            )
            found.append(EffectiveSetting("input activations", ", ".join(wanted), "not quantised", reason))
        if self._settings.get("kv_cache_scheme") is not None:
            scheme = Fields(self._settings.path, {"scheme": self._settings.get("kv_cache_scheme")}).part("scheme")
            wanted_cache = "" if scheme is None else f"{scheme.get('num_bits', 8)}-bit {scheme.get('type', 'float')}"
            reason = (
                "the scales that the checkpoint brings for its keys and values are not used; kv_cache_dtype decides"
            )
            found.append(EffectiveSetting("KV cache of the checkpoint", wanted_cache, "kv_cache_dtype", reason))
        return found


def _strategy(weights: Fields) -> tuple[str, int]:
    """Strategy and group size."""
    size = weights.get("group_size")
    strategy = weights.get("strategy") or (_TENSOR if size is None else _CHANNEL if size == WHOLE_ROW else _GROUP)
    if strategy in (_CHANNEL, _TENSOR):
        if size not in (None, 0, WHOLE_ROW):
            raise weights.fail("group_size", f"none with the strategy {strategy}")
        return strategy, WHOLE_ROW
    if strategy != _GROUP:
        raise UnsupportedCheckpointError(
            f"{weights.path}: the strategy {strategy!r:.40} of compressed-tensors is not supported for integers; "
            f"supported are {_GROUP}, {_CHANNEL} and {_TENSOR}"
        )
    if size is None:
        raise weights.fail("group_size", "a positive whole number with the strategy group")
    return strategy, read_group_size(weights, ("group_size",))


def _activations(scheme: Fields | None) -> str:
    if scheme is None:
        return ""
    when = "by each input" if scheme.get("dynamic") else "with stored scales"
    return f"{scheme.get('num_bits', 8)}-bit {scheme.get('type', 'int')} {when}"


def _packed(module: StoredModule, group: _Group) -> TensorInfo:
    weight = module.part("weight_packed", ["I32"])
    outputs, inputs = _stored_shape(module)
    words = -(-inputs * group.bits // _WORD_BITS)
    if weight.shape != (outputs, words):
        raise module.fail(
            f"{weight.name} has the shape {weight.shape}; weight_shape ({outputs}, {inputs}) and the {group.bits} bits "
            f"of config group {group.name} make ({outputs}, {words})"
        )
    size = _check_scales(module, group, outputs, inputs)
    zero_bytes = 0
    if "weight_zero_point" in module.parts or not group.symmetric:
        zeros, groups = module.part("weight_zero_point", ["I32"]), inputs // size
        expected = (-(-outputs * group.bits // _WORD_BITS), groups)
        if group.symmetric or zeros.shape != expected:
            raise module.fail(
                f"{zeros.name} has the shape {zeros.shape}; config group {group.name} is "
                f"{'symmetric, and has none' if group.symmetric else f'asymmetric, which makes {expected}'}"
            )
        zero_bytes = 1
    if "weight_g_idx" in module.parts or group.act_order:
        index = module.part("weight_g_idx", _INDEXES, 1)
        if index.shape != (inputs,):
            raise module.fail(f"{index.name} has {index.shape[0]} entries for {inputs} inputs")
    permuted = "weight_g_idx" in module.parts and size != inputs
    scheme = group_scheme(group.bits, size, module.parts["weight_scale"], zero_bytes, permuted)
    return module.matrix(PACKED, (outputs, inputs), scheme, "weight_packed")


def _int8(module: StoredModule, group: _Group) -> TensorInfo:
    weight = module.part("weight", ["I8"])
    outputs, inputs = weight.shape
    size = _check_scales(module, group, outputs, inputs)
    zero_bytes = 0
    if "weight_zero_point" in module.parts or not group.symmetric:
        scales = module.parts["weight_scale"]
        zeros = module.part("weight_zero_point", ["I8"], len(scales.shape))
        if group.symmetric or zeros.shape != scales.shape:
            raise module.fail(
                f"{zeros.name} has the shape {zeros.shape}; config group {group.name} is "
                f"{'symmetric, and has none' if group.symmetric else f'asymmetric, which makes {scales.shape}'}"
            )
        zero_bytes = 1
    if "weight_g_idx" in module.parts:
        raise module.unsupported(f"{module.name} is stored in int8 with act order, which is not supported")
    return module.matrix(
        INT8, (outputs, inputs), group_scheme(8, size, module.parts["weight_scale"], zero_bytes), "weight"
    )


def _check_scales(module: StoredModule, group: _Group, outputs: int, inputs: int) -> int:
    """The group size in inputs; CheckpointError where the scales do not have the shape of the group's strategy."""
    found = module.parts.get("weight_scale")
    scales = module.part("weight_scale", _SCALES, 2 if found is None else len(found.shape))
    if group.strategy == _GROUP:
        if len(scales.shape) != 2 or scales.shape[0] != outputs:
            raise module.fail(f"{scales.name} has the shape {scales.shape}, expected ({outputs}, groups)")
        return module.check_groups(inputs, group.group_size, scales.shape[1], "weight_scale")
    allowed = [(outputs, 1), (outputs,)] if group.strategy == _CHANNEL else [(), (1,), (1, 1)]
    if scales.shape not in allowed:
        raise module.fail(
            f"{scales.name} has the shape {scales.shape}; the strategy {group.strategy} of config group {group.name} "
            f"makes {' or '.join(str(shape) for shape in allowed)}"
        )
    return inputs


def _stored_shape(module: StoredModule) -> tuple[int, int]:
    """(out, in), the values of weight_shape."""
    shape = module.part("weight_shape", list(_SHAPE_BYTES), 1)
    raw = first_bytes(shape, 64)
    width = _SHAPE_BYTES[shape.dtype]
    sizes = [int.from_bytes(raw[start : start + width], "little", signed=True) for start in range(0, len(raw), width)]
    if shape.shape != (2,) or len(sizes) != 2 or min(sizes) < 1:
        raise module.fail(f"{shape.name} holds {sizes}, expected the outputs and inputs of a matrix")
    return sizes[0], sizes[1]
