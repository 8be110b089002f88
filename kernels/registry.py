"""Which backends implement which op, and the choice among them.

Owns `KERNELS` (op -> backend -> "module:function") and `load_ops`. Knows nothing of models.
Invariant: nothing is imported until it is chosen, and every choice that is not the first wish is reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.ops import Ops

KERNELS: dict[str, dict[str, str]] = {
    "embedding": {"reference": "kernels.reference.embedding:embedding"},
    "rms_norm": {
        "cpu_ops": "kernels.cpu_ops.norm:rms_norm",
        "reference": "kernels.reference.norm:rms_norm",
    },
    "add_rms_norm": {
        "cpu_ops": "kernels.cpu_ops.norm:add_rms_norm",
        "reference": "kernels.reference.norm:add_rms_norm",
    },
    "group_rms_norm": {
        "cpu_ops": "kernels.cpu_ops.norm:group_rms_norm",
        "reference": "kernels.reference.norm:group_rms_norm",
    },
    "add": {
        "cpu_ops": "kernels.cpu_ops.elementwise:add",
        "reference": "kernels.reference.elementwise:add",
    },
    "scale": {
        "cpu_ops": "kernels.cpu_ops.elementwise:scale",
        "reference": "kernels.reference.elementwise:scale",
    },
    "soft_cap": {
        "cpu_ops": "kernels.cpu_ops.elementwise:soft_cap",
        "reference": "kernels.reference.elementwise:soft_cap",
    },
    "linear": {
        "cpu_ops": "kernels.cpu_ops.linear:linear",
        "reference": "kernels.reference.linear:linear",
    },
    "prepare_group_quant": {
        "cpu_ops": "kernels.cpu_ops.group_linear:prepare_group_quant",
        "reference": "kernels.reference.group_linear:prepare_group_quant",
    },
    "group_linear": {
        "cpu_ops": "kernels.cpu_ops.group_linear:group_linear",
        "reference": "kernels.reference.group_linear:group_linear",
    },
    "group_embedding": {
        "cpu_ops": "kernels.cpu_ops.group_linear:group_embedding",
        "reference": "kernels.reference.group_linear:group_embedding",
    },
    "rotary_kv_write": {
        "cpu_ops": "kernels.cpu_ops.rotary:rotary_kv_write",
        "reference": "kernels.reference.rotary:rotary_kv_write",
    },
    "paged_attention": {
        "cpu_ops": "kernels.cpu_ops.attention:paged_attention",
        "reference": "kernels.reference.attention:paged_attention",
    },
    "silu_mul": {
        "cpu_ops": "kernels.cpu_ops.activation:silu_mul",
        "reference": "kernels.reference.activation:silu_mul",
    },
    "gelu_mul": {
        "cpu_ops": "kernels.cpu_ops.activation:gelu_mul",
        "reference": "kernels.reference.activation:gelu_mul",
    },
    "mixture_mlp": {
        "cpu_ops": "kernels.cpu_ops.mixture:mixture_mlp",
        "reference": "kernels.reference.mixture:mixture_mlp",
    },
    "gather_rows": {"reference": "kernels.reference.embedding:gather_rows"},
    "draw": {
        "cpu_ops": "kernels.cpu_ops.draw:draw",
        "reference": "kernels.reference.draw:draw",
    },
}

THREADS: dict[str, str] = {"cpu_ops": "kernels.cpu_ops.binding:set_threads"}  # backends with threads of their own


class BackendUnavailable(RuntimeError):
    """A backend cannot serve on this machine. The message says why and what would help."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The backend that serves one op; `reason` is empty where it is the first wish."""

    op: str
    backend: str
    reason: str


def resolve(target: str) -> Any:
    """The object behind "module:attribute". Raises BackendUnavailable from the module's own import."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_ops(
    wishes: Sequence[str], dtype: torch.dtype, device: torch.device, num_threads: int
) -> tuple[Ops, list[KernelChoice]]:
    """The first backend of `wishes` that serves each op here, with `reference` as the last resort.

    wishes: backend names in order of preference. num_threads: for backends with threads of their own. Returns the ops
    and one `KernelChoice` per op. ValueError names an unknown backend and lists the known ones.
    """
    known = {backend for backends in KERNELS.values() for backend in backends}
    unknown = sorted(set(wishes) - known)
    if unknown:
        raise ValueError(f"unknown kernel backend {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    chosen = {op: _choose(op, wishes) for op in KERNELS}
    for backend in sorted({choice.backend for choice, _ in chosen.values()} & THREADS.keys()):
        resolve(THREADS[backend])(num_threads)
    module = KERNELS["linear"][chosen["linear"][0].backend].partition(":")[0]
    alignment = resolve(f"{module}:row_alignment")(dtype, device)
    functions = {op: function for op, (_, function) in chosen.items()}
    return Ops(row_alignment=alignment, **functions), [choice for choice, _ in chosen.values()]


def _choose(op: str, wishes: Sequence[str]) -> tuple[KernelChoice, Any]:
    """The backend that serves `op`, and its function."""
    reason = ""
    for backend in (name for name in (*wishes, "reference") if name in KERNELS[op]):
        try:
            return KernelChoice(op, backend, reason), resolve(KERNELS[op][backend])
        except BackendUnavailable as error:
            reason = f"{backend}: {error}"
    raise BackendUnavailable(f"no backend serves {op}: {reason}")
