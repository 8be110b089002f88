"""One matrix that is stored in codes: its stored tensors, their checks, and the logical tensor they make.

Owns the checks that all packed formats share and the form of their errors. Knows no format.
Invariant: a matrix that leaves here has groups that divide its inputs, and every stored tensor of it has been named in
some check or is listed as stored.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.checkpoint.fields import Fields
from engine.checkpoint.info import BlockLayout, CheckpointError, GroupScheme, TensorInfo, UnsupportedCheckpointError
from engine.config import EffectiveSetting

SCALE_BYTES = {"F16": 2, "BF16": 2, "F32": 4}
INTEGER_BITS = (4, 8)  # of the codes that are read
WHOLE_ROW = -1  # as a group size
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_EMBEDDING = "model.embed_tokens"


@dataclass(frozen=True, slots=True)
class StoredModule:
    """The tensors that hold one matrix, by the last part of their names."""

    name: str
    parts: Mapping[str, TensorInfo]

    def part(self, kind: str, dtypes: Sequence[str], dimensions: int = 2) -> TensorInfo:
        """The part `kind`; CheckpointError where it is missing or not stored as one of `dtypes`."""
        found = self.parts.get(kind)
        if found is None:
            stored = ", ".join(self.parts)
            raise self.fail(f"{self.name}.{kind} is missing beside {stored}; the checkpoint is incomplete")
        if found.dtype not in dtypes:
            raise self.fail(f"{found.name} is stored as {found.dtype}, expected {' or '.join(dtypes)}")
        if len(found.shape) != dimensions or 0 in found.shape:
            raise self.fail(f"{found.name} has the shape {found.shape}, expected {dimensions} dimensions")
        return found

    def fail(self, finding: str) -> CheckpointError:
        """An error that names the file."""
        return CheckpointError(f"{self.file.file}: {finding}")

    def unsupported(self, finding: str) -> UnsupportedCheckpointError:
        """As `fail`, for what is sound and not read here."""
        return UnsupportedCheckpointError(f"{self.file.file}: {finding}")

    @property
    def file(self) -> TensorInfo:
        """Its first stored tensor."""
        return next(iter(self.parts.values()))

    def shapes(self) -> str:
        """The stored tensors with dtype and shape, for errors."""
        return ", ".join(f"{kind} {part.dtype} {part.shape}" for kind, part in self.parts.items())

    def matrix(self, dtype: str, shape: tuple[int, int], scheme: GroupScheme, codes: str) -> TensorInfo:
        """The logical tensor. dtype: a key of QUANT_FORMATS. codes: the part that holds the codes."""
        return TensorInfo(
            name=f"{self.name}.weight",
            dtype=dtype,
            shape=shape,
            file=self.parts[codes].file,
            offset=self.parts[codes].offset,
            nbytes=sum(part.nbytes for part in self.parts.values()),
            parts=tuple(self.parts.values()),
            scheme=scheme,
        )

    def check_groups(self, inputs: int, wanted: int, stored: int, scales: str) -> int:
        """The group size: `wanted` (WHOLE_ROW for all inputs), held against the number of groups `stored`."""
        size = inputs if wanted == WHOLE_ROW else wanted
        if inputs % size:
            raise self.fail(
                f"{self.name} has {inputs} inputs, which do not divide by the group size {size} of the configuration"
            )
        if inputs // size != stored:
            found = f"that is {inputs // stored} inputs each" if inputs % stored == 0 else "which do not divide evenly"
            raise self.fail(
                f"{self.name}.{scales} has {stored} groups for {inputs} inputs, {found}; the configuration says "
                f"group_size {wanted}"
            )
        return size


class PackedMethod(Protocol):
    """One way of quantising, as the configuration `settings` describes it.

    marks: last parts of names that only a matrix in codes has. dropped: last parts of names that are not needed here.
    """

    marks: frozenset[str]
    dropped: frozenset[str]

    def matrices(self, modules: Sequence[StoredModule]) -> Iterator[TensorInfo]:
        """The logical tensor of each module, in order. CheckpointError for what contradicts the configuration."""
        ...

    def expects(self, module: str) -> bool:
        """Whether the configuration says that the module is in codes."""
        ...

    def notes(self, matrices: Sequence[TensorInfo], /) -> list[EffectiveSetting]:
        """What of the configuration is not done as it says, given the matrices that were read."""
        ...


def first_bytes(tensor: TensorInfo, limit: int) -> bytes:
    """The tensor's bytes, at most `limit` of them."""
    try:
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.offset)
            return stream.read(min(limit, tensor.nbytes))
    except OSError as error:
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} cannot be read ({error.strerror or error})"
        ) from error


def group_scheme(bits: int, size: int, scales: TensorInfo, other_bytes: int, permuted: bool = False) -> GroupScheme:
    """Groups of `size` inputs with a scale as stored in `scales`, and `other_bytes` for its zero or minimum."""
    return GroupScheme(bits, size, BlockLayout(size, SCALE_BYTES[scales.dtype] + other_bytes), permuted)


def read_bits(settings: Fields, names: Sequence[str], default: int | None = None) -> int:
    """The width of the codes, under the first of `names` that is set."""
    name = _spelling(settings, names)
    bits = settings.count(name, default)
    if bits > 16:
        raise settings.fail(name, "a number of bits")
    return bits


def read_group_size(settings: Fields, names: Sequence[str]) -> int:
    """The group size, WHOLE_ROW for -1; 128 where none of `names` is set, as all makers have it."""
    name = _spelling(settings, names)
    value = settings.get(name, 128)
    if type(value) is not int or (value < 1 and value != WHOLE_ROW):
        raise settings.fail(name, "a positive whole number, or -1 for a whole row")
    return value


def _spelling(settings: Fields, names: Sequence[str]) -> str:
    present = [name for name in names if settings.get(name) is not None]
    if len({repr(settings.get(name)) for name in present}) > 1:
        found = " and ".join(f"{name} {settings.get(name)!r}" for name in present)
        raise CheckpointError(f"{settings.path}: {found} are one setting with two values; the configuration is damaged")
    return present[0] if present else names[0]


def read_names(settings: Fields, name: str) -> list[str]:
    """A list of texts; empty where the field is absent."""
    value = settings.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise settings.fail(name, "a list of names")
    return value


@functools.lru_cache(maxsize=64)  # a module is held against a whole list at a time
def names_of(module: str) -> tuple[str, ...]:
    """What a list may call a module: its own name, and that of the fused matrix it is a part of."""
    stem, _, last = module.rpartition(".")
    return (module, f"{stem}.{_FUSED[last]}") if last in _FUSED else (module,)


def matches(pattern: str, module: str, settings: Fields) -> bool:
    """Whether `pattern`, a whole name or "re:" with an expression for its beginning, names the module."""
    if not pattern.startswith("re:"):
        return pattern in names_of(module)
    expression = compiled(pattern.removeprefix("re:"), settings)
    return any(expression.match(name) for name in names_of(module))


def compiled(pattern: str, settings: Fields) -> re.Pattern[str]:
    """A regular expression of the configuration's."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{settings.path}: the pattern {pattern!r:.80} cannot be read ({error})") from error


def is_part_of(entry: str, module: str) -> bool:
    """Whether `entry` is a run of whole components of the module's name: "mlp.gate" is of "model.layers.0.mlp.gate"."""
    return bool(entry) and f".{entry}." in _dotted(module)


@functools.lru_cache(maxsize=64)
def _dotted(module: str) -> str:
    return " ".join(f".{name}." for name in names_of(module))
