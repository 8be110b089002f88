"""What a checkpoint's headers say, as a report: formats, what is in codes and what is not, sizes, risks. Torch-free.

Owns the report and the wording of its reasons. Reads no weights, and knows nothing of this machine, of tokenizers or of
other models (app.doctor adds them). Invariant: a figure is counted from the tensors of the headers, never from what a
configuration promises; where the two differ, the report says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import CheckpointError, CheckpointInfo, UnsupportedCheckpointError, read_checkpoint
from engine.checkpoint.doctor_storage import Storage, describe_storage, is_in_codes
from engine.checkpoint.fp16_risk import Fp16Risk, fp16_risk
from engine.checkpoint.info import OUTPUT_HEAD, TensorInfo

DTYPE_BYTES = 2  # Pizarra computes in bf16 unless it is told otherwise

_KINDS = (  # the first that is found in a tensor's name
    ("norm", re.compile(r"norm|(^|[._])ln(_|\d|\.)")),
    ("experts", re.compile(r"\.experts\.")),
    ("router", re.compile(r"\.(gate|router)(\.\w+)?\.weight$")),
    ("head", re.compile(r"(^|\.)(lm_head|embed_out)\.")),
    ("embedding", re.compile(r"embed|(^|\.)w[tp]e\.")),
    ("attention", re.compile(r"attn|attention")),
    ("mlp", re.compile(r"mlp|ffn|feed_forward|fc\d|dense_")),
)
_LAYER_KINDS = ("attention", "mlp", "experts")


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """The matrices of one kind: "attention", "mlp", "experts", "router", "embedding", "head" or "other".

    quantised, plain: how many are stored in codes and how many as numbers. formats: how many in each format.
    """

    kind: str
    quantised: int
    plain: int
    formats: dict[str, int]
    num_parameters: int
    bytes_on_disk: int
    bytes_in_memory: int


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What the headers say. `problem` is "" and `verdict` "sound" where the checkpoint can be loaded; else `verdict` is
    "unsupported" or "broken", and only what is known all the same is filled in.

    runner: "native" (our decoder) or "transformers", with the reason. bits_per_weight: of all weights in memory.
    input_sizes: the inputs that the layers' matrices have; a group size must divide them.
    """

    path: str
    verdict: str
    problem: str
    format: str = ""
    architecture: str = ""
    runner: str = ""
    runner_reason: str = ""
    storage: Storage | None = None
    kinds: tuple[ModuleKind, ...] = ()
    tied_head: bool = False
    stored_head: bool = False
    num_biases: int = 0
    num_parameters: int = 0
    bytes_on_disk: int = 0
    bytes_in_memory: int = 0
    bits_per_weight_on_disk: float = 0.0
    bits_per_weight: float = 0.0
    fp16_risk: Fp16Risk | None = None
    context_length: int = 0
    vocab_size: int = 0
    input_sizes: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()


def examine(path: Path) -> tuple[CheckpointReport, CheckpointInfo | None]:
    """Read the headers at `path` and describe them. Raises nothing: what cannot be read is the report's problem."""
    try:
        info = read_checkpoint(path)
    except UnsupportedCheckpointError as error:
        return CheckpointReport(str(path), "unsupported", str(error)), None
    except CheckpointError as error:
        return CheckpointReport(str(path), "broken", str(error)), None
    except OSError as error:
        return CheckpointReport(str(path), "broken", f"{path}: cannot be read ({error.strerror or error})"), None
    return describe(info), info


def describe(info: CheckpointInfo) -> CheckpointReport:
    """The report of a checkpoint that was read."""
    config = info.config
    weights = [tensor for name, tensor in info.tensors.items() if not (name == OUTPUT_HEAD and _tied(info))]
    in_memory = info.weights_bytes(DTYPE_BYTES)
    storage = describe_storage(info)
    return CheckpointReport(
        path=str(info.path),
        verdict="sound",
        problem="",
        format=info.format,
        architecture=config.architecture,
        runner="transformers" if config.transformers_class else "native",
        runner_reason=config.transformers_reason,
        storage=storage,
        kinds=_kinds(weights),
        tied_head=config.tie_word_embeddings,
        stored_head=OUTPUT_HEAD in info.tensors,
        num_biases=sum(tensor.name.endswith(".bias") for tensor in weights),
        num_parameters=info.num_parameters,
        bytes_on_disk=info.weights_bytes_on_disk,
        bytes_in_memory=in_memory,
        bits_per_weight_on_disk=_bits(
            info.weights_bytes_on_disk, sum(each.num_elements for each in info.tensors.values())
        ),
        bits_per_weight=_bits(in_memory, info.num_parameters),
        fp16_risk=fp16_risk(info),
        context_length=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        input_sizes=_input_sizes(weights),
        remarks=(*storage.remarks, *_remarks(info, weights)),
    )


def module_kind(name: str) -> str:
    """The kind of module that a tensor of this name belongs to."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def _tied(info: CheckpointInfo) -> bool:
    return info.config.tie_word_embeddings


def _bits(nbytes: int, num_weights: int) -> float:
    return 8 * nbytes / num_weights if num_weights else 0.0


def _kinds(tensors: Iterable[TensorInfo]) -> tuple[ModuleKind, ...]:
    by_kind: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        kind = module_kind(tensor.name)
        if len(tensor.shape) >= 2 and kind != "norm":
            by_kind.setdefault(kind, []).append(tensor)
    order = [kind for kind, _ in _KINDS] + ["other"]
    return tuple(_module_kind(kind, by_kind[kind]) for kind in sorted(by_kind, key=order.index))


def _input_sizes(tensors: Iterable[TensorInfo]) -> tuple[int, ...]:
    layers = (tensor for tensor in tensors if len(tensor.shape) == 2 and module_kind(tensor.name) in _LAYER_KINDS)
    return tuple(sorted({tensor.shape[-1] for tensor in layers}))


def _module_kind(kind: str, matrices: list[TensorInfo]) -> ModuleKind:
    quantised = sum(is_in_codes(matrix) for matrix in matrices)
    return ModuleKind(
        kind=kind,
        quantised=quantised,
        plain=len(matrices) - quantised,
        formats=dict(Counter(matrix.dtype for matrix in matrices).most_common()),
        num_parameters=sum(matrix.num_elements for matrix in matrices),
        bytes_on_disk=sum(matrix.nbytes for matrix in matrices),
        bytes_in_memory=sum(matrix.bytes_in_memory(DTYPE_BYTES) for matrix in matrices),
    )


def _remarks(info: CheckpointInfo, weights: list[TensorInfo]) -> Iterable[str]:
    """What is true of the checkpoint and easily overlooked."""
    if _tied(info) and OUTPUT_HEAD in info.tensors:
        yield "the output head is tied to the embedding; the copy that is stored is checked and not loaded"
    expanded = [matrix for matrix in weights if is_in_codes(matrix) and matrix.scheme is None]
    if expanded:
        formats = ", ".join(sorted({matrix.dtype for matrix in expanded}))
        yield f"{len(expanded)} matrices stored as {formats} become plain numbers in memory"
