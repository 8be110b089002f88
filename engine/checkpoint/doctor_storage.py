"""How a checkpoint stores its matrices: method, layout, bits, groups, zero points, and what the files say against it.

Owns the words for formats. Reads no weights. Invariant: what is said is read off the tensors; a configuration is only
quoted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from engine.checkpoint.info import GROUP_SCHEMES, OUTPUT_HEAD, CheckpointInfo, GroupScheme, TensorInfo
from engine.checkpoint.packed import Quantization, quantization_notes, read_quantization
from engine.checkpoint.packed_gptq import V2
from engine.checkpoint.packed_module import SCALE_BYTES

_WITH_MINIMA = frozenset({"Q4_1", "Q5_1", "Q4_K", "Q5_K"})
_GGUF_BITS = re.compile(r"Q(\d)_")
_GGUF = "GGUF"
_LAYOUTS = {  # of the packed formats: method and layout
    "AWQ_GEMM": ("AWQ", "gemm"),
    "AWQ_GEMV": ("AWQ", "gemv"),
    "AWQ_GEMV_FAST": ("AWQ", "gemv_fast"),
    "GPTQ_V1": ("GPTQ", "v1"),
    "GPTQ_V1_WORDS": ("GPTQ", "v1"),
    "GPTQ_V2": ("GPTQ", "v2"),
    "CT_PACKED": ("compressed-tensors", "pack-quantized"),
    "CT_INT8": ("compressed-tensors", "int-quantized"),
}
_SCALES = ("scales", "weight_scale")


@dataclass(frozen=True, slots=True)
class Storage:
    """How the matrices are stored. Without any in codes `method` is "none" and `bits` those of the plain numbers.

    method: "GGUF", "AWQ", "GPTQ", "compressed-tensors" or "none". layout: of that method, "" where it has but one.
    zero_points: "none", "symmetric", "asymmetric" or "mixed". formats: how many matrices are stored in each.
    """

    method: str
    layout: str
    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]
    zero_points: str
    act_order: bool
    formats: dict[str, int]
    remarks: tuple[str, ...] = ()


def is_in_codes(tensor: TensorInfo) -> bool:
    """Whether a tensor is stored as codes with scales, whatever becomes of it in memory."""
    return tensor.scheme is not None or tensor.dtype in GROUP_SCHEMES


def describe_storage(info: CheckpointInfo) -> Storage:
    """The storage of a checkpoint's matrices; a head that is tied and stored all the same does not count."""
    tied = info.config.tie_word_embeddings
    matrices = [
        tensor for name, tensor in info.tensors.items() if len(tensor.shape) >= 2 and not (tied and name == OUTPUT_HEAD)
    ]
    formats = dict(Counter(matrix.dtype for matrix in matrices).most_common())
    coded = [matrix for matrix in matrices if is_in_codes(matrix)]
    if not coded:
        return Storage("none", next(iter(formats), ""), (), (), "none", False, formats)
    schemes = [_scheme(matrix) for matrix in coded]
    found = sorted({_LAYOUTS.get(matrix.dtype, (_GGUF, "blocks")) for matrix in coded})
    return Storage(
        method=" and ".join(sorted({method for method, _ in found})),
        layout=" and ".join(layout for _, layout in found),
        bits=tuple(sorted({_bits_stored(matrix) for matrix in coded})),
        group_sizes=tuple(sorted({scheme.group_size for scheme in schemes})),
        zero_points=_mix({_has_zeros(matrix) for matrix in coded}),
        act_order=any(scheme.permuted for scheme in schemes),
        formats=formats,
        remarks=tuple(_remarks(info, coded)),
    )


def _scheme(matrix: TensorInfo) -> GroupScheme:
    return matrix.scheme or GROUP_SCHEMES[matrix.dtype]


def _bits_stored(matrix: TensorInfo) -> int:
    found = _GGUF_BITS.match(matrix.dtype)
    return int(found[1]) if found else _scheme(matrix).bits


def _has_zeros(matrix: TensorInfo) -> bool:
    """Whether a group has a zero point or a minimum of its own beside its scale."""
    scales = next((part for part in matrix.parts if part.name.endswith(_SCALES)), None)
    if scales is None:
        return matrix.dtype in _WITH_MINIMA
    return _scheme(matrix).scales.nbytes > SCALE_BYTES[scales.dtype]


def _mix(asymmetric: set[bool]) -> str:
    if len(asymmetric) == 2:
        return "mixed"
    return "asymmetric" if True in asymmetric else "symmetric"


def _remarks(info: CheckpointInfo, coded: list[TensorInfo]) -> Iterator[str]:
    """What the tensors say against the configuration, and how the version of GPTQ was found."""
    folder = info.path if info.path.is_dir() else info.path.parent
    found = read_quantization(folder / "config.json", info.metadata, info.config) if coded[0].parts else None
    if found is None:
        return
    notes = quantization_notes(info)
    yield from (f"{note.name}: {note.requested} → {note.effective}: {note.reason}" for note in notes)
    if found.method == "gptq" and not any(note.name == "GPTQ version" for note in notes):
        yield _gptq_version(found, coded)


def _gptq_version(found: Quantization, coded: list[TensorInfo]) -> str:
    """What the zeros were found to be, against what the configuration says."""
    settings = found.settings
    declared = settings.get("checkpoint_format") or settings.get("format") or "nothing of it, which means gptq (v1)"
    version = "v2" if coded[0].dtype == V2 else "v1"
    if all(_has_zeros(matrix) for matrix in coded):
        return f"GPTQ version: the zeros differ and do not tell it, so the configuration's word counts: {declared}"
    return (
        f"GPTQ version: the sampled zeros are those of symmetric codes in {version}; the configuration says {declared}"
    )
