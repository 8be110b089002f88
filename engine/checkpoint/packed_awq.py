"""AWQ in the headers: which of its layouts a matrix is stored in, and whether that is what the configuration says.

Owns the shapes of gemm, gemv, gemv_fast and llm-awq, which share tensor names. Reads no weights.
Invariant: a layout is named only where configuration and shapes agree; without a version the shapes decide.
Source: AutoAWQ 0.2.9, awq/modules/linear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.checkpoint.fields import Fields
from engine.checkpoint.info import TensorInfo, UnsupportedCheckpointError
from engine.checkpoint.packed_module import (
    SCALE_BYTES,
    StoredModule,
    group_scheme,
    is_part_of,
    read_bits,
    read_group_size,
    read_names,
)
from engine.config import EffectiveSetting

_BITS = 4
_WORD = 8  # codes in 32 bits
_GEMM, _GEMV, _GEMV_FAST, _LLM_AWQ = "gemm", "gemv", "gemv_fast", "llm-awq"
_FORMATS = {_GEMM: "AWQ_GEMM", _GEMV: "AWQ_GEMV", _GEMV_FAST: "AWQ_GEMV_FAST", _LLM_AWQ: "AWQ_GEMV_FAST"}
_INTERLEAVED_ROWS, _BLOCK_INPUTS = 4, 64  # of gemv_fast
_SCALES = tuple(SCALE_BYTES)


class Awq:
    """See `PackedMethod`."""

    marks = frozenset({"qweight", "qzeros", "scales", "scaled_zeros"})
    dropped: frozenset[str] = frozenset()

    def __init__(self, settings: Fields) -> None:
        self._settings = settings
        bits = read_bits(settings, ("bits", "w_bit"), _BITS)
        if bits != _BITS:
            raise UnsupportedCheckpointError(
                f"{settings.path}: AWQ with {bits} bits is not supported, only with {_BITS}; choose a 4-bit version of "
                "the model"
            )
        self._group_size = read_group_size(settings, ("group_size", "q_group_size"))
        self._version = self._read_version()
        settings.flag("zero_point", True)
        self._skipped = read_names(settings, "modules_to_not_convert")

    def _read_version(self) -> str | None:
        settings = self._settings
        if settings.get("backend") == _LLM_AWQ:
            return _LLM_AWQ
        version = settings.get("version", settings.get("format"))
        if version is None:
            return None
        name = "version" if settings.get("version") is not None else "format"
        if not isinstance(version, str):
            raise settings.fail(name, f"one of {', '.join(_FORMATS)}")
        if version.lower() not in _FORMATS:
            raise UnsupportedCheckpointError(
                f"{settings.path}: AWQ's layout {version!r:.40} is not supported; supported are {', '.join(_FORMATS)}. "
                "Choose a version of the model that is saved as gemm"
            )
        return version.lower()

    def matrices(self, modules: Sequence[StoredModule]) -> Iterator[TensorInfo]:
        """See `PackedMethod`."""
        for module in modules:
            skipped = next((entry for entry in self._skipped if is_part_of(entry, module.name)), None)
            if skipped is not None:
                raise module.fail(
                    f"{module.name} is stored in codes ({', '.join(module.parts)}), yet modules_to_not_convert names "
                    f"{skipped!r}; weights and configuration do not belong together"
                )
            layout = _layout(module)
            if self._version is not None and _FORMATS[layout] != _FORMATS[self._version]:
                raise module.fail(
                    f"{module.name} is laid out as {layout} ({module.shapes()}), and the configuration says "
                    f"{self._version}; set version to {layout} if the weights are right"
                )
            read = {_GEMM: self._gemm, _GEMV: self._gemv}.get(layout, self._gemv_fast)
            yield read(module)

    def expects(self, module: str) -> bool:
        """See `PackedMethod`."""
        return not any(is_part_of(entry, module) for entry in self._skipped)

    def notes(self, _matrices: Sequence[TensorInfo], /) -> list[EffectiveSetting]:
        """See `PackedMethod`."""
        return []

    def _gemm(self, module: StoredModule) -> TensorInfo:
        weight, scales = module.part("qweight", ["I32"]), module.part("scales", _SCALES)
        inputs, outputs = weight.shape[0], scales.shape[1]
        size = module.check_groups(inputs, self._group_size, scales.shape[0], "scales")
        scheme = group_scheme(_BITS, size, scales, 1)
        return module.matrix(_FORMATS[_GEMM], (outputs, inputs), scheme, "qweight")

    def _gemv(self, module: StoredModule) -> TensorInfo:
        weight, scales = module.part("qweight", ["I32"]), module.part("scales", _SCALES)
        outputs, inputs = weight.shape[0], _WORD * weight.shape[1]
        size = self._padded_groups(module, inputs, scales.shape[1])
        scheme = group_scheme(_BITS, size, scales, 1)
        return module.matrix(_FORMATS[_GEMV], (outputs, inputs), scheme, "qweight")

    def _gemv_fast(self, module: StoredModule) -> TensorInfo:
        weight, scales = module.part("qweight", ["I16"]), module.part("scales", _SCALES)
        outputs, inputs = _INTERLEAVED_ROWS * weight.shape[0], weight.shape[1]
        if inputs % _BLOCK_INPUTS:
            raise module.fail(f"{module.name} has {inputs} inputs; gemv_fast stores them in blocks of {_BLOCK_INPUTS}")
        size = self._padded_groups(module, inputs, scales.shape[0])
        scheme = group_scheme(_BITS, size, scales, SCALE_BYTES[scales.dtype])
        return module.matrix(_FORMATS[_GEMV_FAST], (outputs, inputs), scheme, "qweight")

    def _padded_groups(self, module: StoredModule, inputs: int, stored: int) -> int:
        """The group size of a layout whose number of groups is padded to `stored`."""
        size = inputs if self._group_size < 0 else self._group_size
        if inputs % size:
            return module.check_groups(inputs, size, stored, "scales")
        expected = _WORD * zeros_width(inputs // size, size)
        if stored != expected:
            raise module.fail(
                f"{module.name}.scales has room for {stored} groups; {inputs} inputs by the configuration's group_size "
                f"{self._group_size} make {inputs // size}, stored in {expected}"
            )
        return size


def zeros_width(groups: int, size: int) -> int:
    """Words that AutoAWQ gives to the zeros of so many groups of `size` inputs: padded for its kernel's loads."""
    padding = {64: 2, 32: 4}.get(size, 1)
    return -(-groups // (_WORD * padding)) * padding


def _layout(module: StoredModule) -> str:
    """The layout that the stored shapes have; CheckpointError where they have none of AWQ's."""
    weight, scales = module.part("qweight", ["I32", "I16"]), module.part("scales", _SCALES)
    if "scaled_zeros" in module.parts or weight.dtype == "I16":
        layout, kind = (_LLM_AWQ, "scaled_zeros") if "scaled_zeros" in module.parts else (_GEMV_FAST, "qzeros")
        zeros = module.part(kind, [scales.dtype])
        if zeros.shape == scales.shape and scales.shape[1] == _INTERLEAVED_ROWS * weight.shape[0]:
            return layout
        raise module.fail(f"{module.name} is not laid out as {layout}: {module.shapes()}")
    zeros = module.part("qzeros", ["I32"])
    words = weight.shape[1]
    if zeros.shape == (scales.shape[0], words) and scales.shape[1] == _WORD * words:
        return _GEMM
    if zeros.shape[0] == scales.shape[0] == weight.shape[0] and scales.shape[1] == _WORD * zeros.shape[1]:
        return _GEMV
    hint = "; they look like GPTQ's" if scales.shape[1] == words and zeros.shape[0] == scales.shape[0] else ""
    raise module.fail(
        f"{module.name} has shapes of none of AWQ's layouts: {module.shapes()}{hint}. gemm stores (in, out / 8), "
        "(groups, out / 8), (groups, out), with outputs in eights; weights and configuration do not belong together"
    )
