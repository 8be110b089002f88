"""Which backends implement which op, and the choice among them.

Owns `KERNELS` (op -> backend -> "module:function") and `load_ops`. Knows nothing of models.
Invariant: no backend is imported until it is chosen, no compiled op serves that was not found right on this machine,
and every choice that is not the first wish is reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.check_stamp import stamp_of
from kernels.checks import FLOAT8_CHECKS, check_op
from kernels.ops import Ops

KERNELS: dict[str, dict[str, str]] = {
    "embedding": {
        "cpu_ops": "kernels.cpu_ops.embedding:embedding",
        "triton_ops": "kernels.triton_ops.embedding:embedding",
        "reference": "kernels.reference.embedding:embedding",
    },
    "rms_norm": {
        "cpu_ops": "kernels.cpu_ops.norm:rms_norm",
        "triton_ops": "kernels.triton_ops.norm:rms_norm",
        "reference": "kernels.reference.norm:rms_norm",
    },
    "add_rms_norm": {
        "cpu_ops": "kernels.cpu_ops.norm:add_rms_norm",
        "triton_ops": "kernels.triton_ops.norm:add_rms_norm",
        "reference": "kernels.reference.norm:add_rms_norm",
    },
    "group_rms_norm": {
        "cpu_ops": "kernels.cpu_ops.norm:group_rms_norm",
        "triton_ops": "kernels.triton_ops.norm:group_rms_norm",
        "reference": "kernels.reference.norm:group_rms_norm",
    },
    "add": {
        "cpu_ops": "kernels.cpu_ops.elementwise:add",
        "triton_ops": "kernels.triton_ops.elementwise:add",
        "reference": "kernels.reference.elementwise:add",
    },
    "scale": {
        "cpu_ops": "kernels.cpu_ops.elementwise:scale",
        "triton_ops": "kernels.triton_ops.elementwise:scale",
        "reference": "kernels.reference.elementwise:scale",
    },
    "soft_cap": {
        "cpu_ops": "kernels.cpu_ops.elementwise:soft_cap",
        "triton_ops": "kernels.triton_ops.elementwise:soft_cap",
        "reference": "kernels.reference.elementwise:soft_cap",
    },
    "linear": {
        "cpu_ops": "kernels.cpu_ops.linear:linear",
        "triton_ops": "kernels.triton_ops.linear:linear",
        "reference": "kernels.reference.linear:linear",
    },
    "prepare_group_quant": {
        "cpu_ops": "kernels.cpu_ops.group_linear:prepare_group_quant",
        "triton_ops": "kernels.triton_ops.group_linear:prepare_group_quant",
        "reference": "kernels.reference.group_linear:prepare_group_quant",
    },
    "group_linear": {
        "cpu_ops": "kernels.cpu_ops.group_linear:group_linear",
        "triton_ops": "kernels.triton_ops.group_linear:group_linear",
        "reference": "kernels.reference.group_linear:group_linear",
    },
    "group_embedding": {
        "cpu_ops": "kernels.cpu_ops.group_linear:group_embedding",
        "triton_ops": "kernels.triton_ops.group_embedding:group_embedding",
        "reference": "kernels.reference.group_linear:group_embedding",
    },
    "rotary_kv_write": {
        "cpu_ops": "kernels.cpu_ops.rotary:rotary_kv_write",
        "triton_ops": "kernels.triton_ops.rotary:rotary_kv_write",
        "reference": "kernels.reference.rotary:rotary_kv_write",
    },
    "paged_attention": {
        "cpu_ops": "kernels.cpu_ops.attention:paged_attention",
        "triton_ops": "kernels.triton_ops.attention:paged_attention",
        "reference": "kernels.reference.attention:paged_attention",
    },
    "silu_mul": {
        "cpu_ops": "kernels.cpu_ops.activation:silu_mul",
        "triton_ops": "kernels.triton_ops.activation:silu_mul",
        "reference": "kernels.reference.activation:silu_mul",
    },
    "gelu_mul": {
        "cpu_ops": "kernels.cpu_ops.activation:gelu_mul",
        "triton_ops": "kernels.triton_ops.activation:gelu_mul",
        "reference": "kernels.reference.activation:gelu_mul",
    },
    "mixture_mlp": {
        "cpu_ops": "kernels.cpu_ops.mixture:mixture_mlp",
        "triton_ops": "kernels.triton_ops.mixture:mixture_mlp",
        "reference": "kernels.reference.mixture:mixture_mlp",
    },
    "gather_rows": {
        "cpu_ops": "kernels.cpu_ops.embedding:gather_rows",
        "triton_ops": "kernels.triton_ops.embedding:gather_rows",
        "reference": "kernels.reference.embedding:gather_rows",
    },
    "scatter_rows": {
        "cpu_ops": "kernels.cpu_ops.embedding:scatter_rows",
        "triton_ops": "kernels.triton_ops.embedding:scatter_rows",
        "reference": "kernels.reference.embedding:scatter_rows",
    },
    "peaks": {
        "cpu_ops": "kernels.cpu_ops.sampling:peaks",
        "triton_ops": "kernels.triton_ops.peaks:peaks",
        "reference": "kernels.reference.sampling:peaks",
    },
    "filter_scores": {
        "cpu_ops": "kernels.cpu_ops.sampling:filter_scores",
        "triton_ops": "kernels.triton_ops.filters:filter_scores",
        "reference": "kernels.reference.sampling:filter_scores",
    },
    "log_probabilities": {
        "cpu_ops": "kernels.cpu_ops.sampling:log_probabilities",
        "triton_ops": "kernels.triton_ops.logprobs:log_probabilities",
        "reference": "kernels.reference.sampling:log_probabilities",
    },
    "draw": {
        "cpu_ops": "kernels.cpu_ops.draw:draw",
        "triton_ops": "kernels.triton_ops.draw:draw",
        "reference": "kernels.reference.draw:draw",
    },
    "verify_match": {
        "cpu_ops": "kernels.cpu_ops.verify:verify_match",
        "triton_ops": "kernels.triton_ops.verify:verify_match",
        "reference": "kernels.reference.verify:verify_match",
    },
    "verify_rejection": {
        "cpu_ops": "kernels.cpu_ops.verify:verify_rejection",
        "triton_ops": "kernels.triton_ops.verify:verify_rejection",
        "reference": "kernels.reference.verify:verify_rejection",
    },
}

ONE_LAYOUT = ("prepare_group_quant", "group_linear", "group_embedding", "mixture_mlp")  # what one makes, the rest read

THREADS: dict[str, str] = {"cpu_ops": "kernels.cpu_ops.binding:set_threads"}  # backends with threads of their own
REMARKS: dict[str, str] = {"cpu_ops": "kernels.cpu_ops.binding:remarks"}  # backends that may say more


class BackendUnavailable(RuntimeError):
    """A backend cannot serve on this machine. The message says why and what would help."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The backend that serves one op; `reason` is empty where it is the first wish."""

    op: str
    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What of a backend that serves is not as was wished: what it is about, the wish, what became of it, and why."""

    name: str
    wished: str
    found: str
    reason: str


def resolve(target: str) -> Any:
    """The object behind "module:attribute". Raises BackendUnavailable from the module's own import."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_ops(
    wishes: Sequence[str], dtype: torch.dtype, device: torch.device, num_threads: int, *, float8: bool = False
) -> tuple[Ops, list[KernelChoice]]:
    """The first backend of `wishes` that serves each op here, with `reference` as the last resort.

    wishes: backend names in order of preference. num_threads: for backends with threads of their own. float8: the KV
    cache will be in it, so that has to be right too. Returns the ops and one `KernelChoice` per op. ValueError names an
    unknown backend and lists the known ones.

    Compiled ops are checked against the reference when this machine first chooses them for a model of `dtype`
    (`kernels.check_stamp` remembers what was found); one that fails is replaced by the reference, with the reason.
    """
    known = {backend for backends in KERNELS.values() for backend in backends}
    unknown = sorted(set(wishes) - known)
    if unknown:
        raise ValueError(f"unknown kernel backend {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    chosen = {op: _choose(op, wishes) for op in KERNELS}
    for backend in sorted({choice.backend for choice in chosen.values()} & THREADS.keys()):
        resolve(THREADS[backend])(num_threads)
    chosen |= _replacements(chosen, dtype, device, float8=float8)
    return _bound(chosen, dtype, device), list(chosen.values())


def remarks_on(choices: Sequence[KernelChoice]) -> list[Remark]:
    """What people should know of the backends that were chosen, beyond which op each serves."""
    backends = sorted({choice.backend for choice in choices} & REMARKS.keys())
    return [remark for backend in backends for remark in resolve(REMARKS[backend])()]


def backend_ops(wishes: Sequence[str], dtype: torch.dtype, device: torch.device) -> Ops:
    """As `load_ops` chooses them, but not checked: what checks and measurements run."""
    return _bound({op: _choose(op, wishes) for op in KERNELS}, dtype, device)


def _choose(op: str, wishes: Sequence[str]) -> KernelChoice:
    """The backend that serves `op`."""
    reason = ""
    for backend in (name for name in (*wishes, "reference") if name in KERNELS[op]):
        try:
            resolve(KERNELS[op][backend])
        except BackendUnavailable as error:
            reason = f"{backend}: {error}"
        else:
            return KernelChoice(op, backend, reason)
    raise BackendUnavailable(f"no backend serves {op}: {reason}")


def _bound(chosen: dict[str, KernelChoice], dtype: torch.dtype, device: torch.device) -> Ops:
    """The functions of the choices."""
    module = KERNELS["linear"][chosen["linear"].backend].partition(":")[0]
    alignment = resolve(f"{module}:row_alignment")(dtype, device)
    functions = {op: resolve(KERNELS[op][choice.backend]) for op, choice in chosen.items()}
    return Ops(row_alignment=alignment, **functions)


def _replacements(
    chosen: dict[str, KernelChoice], dtype: torch.dtype, device: torch.device, *, float8: bool
) -> dict[str, KernelChoice]:
    """The reference for every op that does not do here what it should, and for those that need it to."""
    faults: dict[str, str] = {}
    for backend in sorted({choice.backend for choice in chosen.values()}):
        stamp = stamp_of(backend, device)
        if stamp is None:
            continue
        of_backend = [op for op, choice in chosen.items() if choice.backend == backend]
        entries = {op: _entry(op, float8=float8) for op in of_backend}
        known = stamp.read(dtype)
        unknown = [op for op in of_backend if entries[op] not in known]
        if not unknown:
            continue
        ops, reference = _bound(chosen, dtype, device), backend_ops([], torch.float64, torch.device("cpu"))
        found = {op: check_op(op, ops, reference, dtype, device, float8=float8) for op in sorted(unknown)}
        stamp.write(dtype, {name for op, fault in found.items() if not fault for name in (op, entries[op])})
        faults |= {op: f"{backend}: {fault} on this machine" for op, fault in found.items() if fault}
    for op in [op for op in faults if op in ONE_LAYOUT]:
        faults |= {
            other: faults[op] for other in ONE_LAYOUT if chosen[other].backend != "reference" and other not in faults
        }
    return {op: KernelChoice(op, "reference", reason) for op, reason in faults.items()}


def _entry(op: str, *, float8: bool) -> str:
    """What a stamp calls an op that was found right, with a KV cache in float8 where that makes a difference to it."""
    return f"{op} (float8)" if float8 and op in FLOAT8_CHECKS else op
