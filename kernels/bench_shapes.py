"""What a piece of work is that `kernels.bench` times, the shapes of models, and the ops on activations alone.

Owns `Work`, with the least that an op must move and compute. Knows no clock and no backend: it is given `Ops`.
Invariant: weights and keys that a model would read from memory lie in so many copies that no cache holds them all;
activations, which a model has just written, lie in one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import Ops, accumulation_dtype
from kernels.roofs import Call, last_cache_bytes

BATCHES = 64  # of row numbers, which calls take in turn


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes. group_size: of its weights in codes. cache_bytes: what copies have to exceed together; None:
    twice what the machine's last cache holds."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    group_size: int = 128
    cache_bytes: int | None = None

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name -> outputs and inputs."""
        return {
            "qkv": (self.qkv, self.hidden),
            "output": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "head": (self.vocabulary, self.hidden),
        }


SHAPES = {
    "135M": Shape(576, 1536, 9, 3, 64, 49152, group_size=32),  # SmolLM2-135M, the default model
    "1.7B": Shape(2048, 8192, 32, 32, 64, 49152),  # SmolLM2-1.7B
    "8B": Shape(4096, 14336, 32, 8, 128, 128256),  # Llama-3.1-8B
    "tiny": Shape(64, 96, 4, 2, 16, 160, group_size=32, cache_bytes=1),  # for tests
}


@dataclass(frozen=True, slots=True)
class Work:
    """One line of the table. make: the calls that do it by some ops, each on its own copy of what a model must fetch.

    beside: the nearest that torch itself has, or None.
    """

    op: str
    shape: str
    rows: int
    num_bytes: float
    operations: float
    make: Callable[[Ops], Sequence[Call]]
    beside: Callable[[], Sequence[Call]] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where inputs are made."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device

    def normal(self, *size: int) -> Tensor:
        """Random numbers of the model's dtype."""
        return torch.randn(*size, device=self.device).to(self.dtype)

    def scores(self, rows: int) -> Tensor:
        """Random scores [rows, V]."""
        wide = accumulation_dtype(self.dtype)
        return 3 * torch.randn(rows, self.shape.vocabulary, device=self.device, dtype=wide)

    def integers(self, high: int, *size: int) -> Tensor:
        return torch.randint(high, size, device=self.device)

    def copies(self, num_bytes: int) -> int:
        """How many of something a cache does not hold together."""
        wanted = self.shape.cache_bytes or 2 * last_cache_bytes(self.device)
        return max(1, -(-wanted // num_bytes))


def on_activations(op: str, shape: str, rows: int, num_bytes: float, call: Callable[[Ops], object]) -> Work:
    """Work on activations alone."""
    return Work(op, shape, rows, num_bytes, 0, lambda ops: [lambda: call(ops)])


# --- norms, activations, gathers ---


def _norm(place: Place, rows: int) -> Work:
    x, weight = place.normal(rows, place.shape.hidden), place.normal(place.shape.hidden)
    out = torch.empty_like(x)
    moved = 2 * x.nbytes + weight.nbytes
    return on_activations(
        "rms_norm", f"{place.shape.hidden}", rows, moved, lambda ops: ops.rms_norm(out, x, weight, 1e-5)
    )


def _add_norm(place: Place, rows: int) -> Work:
    x, residual = (place.normal(rows, place.shape.hidden) for _ in range(2))
    out, weight = torch.empty_like(x), place.normal(place.shape.hidden)
    moved = 4 * x.nbytes + weight.nbytes

    def call(ops: Ops) -> None:
        ops.add_rms_norm(out, residual, x, weight, 1e-5)

    return on_activations("add_rms_norm", f"{place.shape.hidden}", rows, moved, call)


def _group_norm(place: Place, rows: int) -> Work:
    shape, x = place.shape, place.normal(rows, place.shape.qkv)
    weight = place.normal(shape.head_dim)
    moved = 2 * x.nbytes * shape.heads * shape.head_dim / shape.qkv

    def call(ops: Ops) -> None:
        ops.group_rms_norm(x, 0, shape.heads, weight, 1e-5)

    return on_activations("group_rms_norm", f"{shape.heads} x {shape.head_dim}", rows, moved, call)


def _add(place: Place, rows: int) -> Work:
    x, residual = place.normal(rows, place.shape.hidden), place.normal(rows, place.shape.hidden)
    x *= 1e-6  # thousands of sums
    return on_activations("add", f"{place.shape.hidden}", rows, 3 * x.nbytes, lambda ops: ops.add(residual, x))


def _scale(place: Place, rows: int) -> Work:
    x = place.normal(rows, place.shape.hidden)
    return on_activations("scale", f"{place.shape.hidden}", rows, 2 * x.nbytes, lambda ops: ops.scale(x, 1.0))


def _silu(place: Place, rows: int) -> Work:
    gate_up = place.normal(rows, 2 * place.shape.inner)
    out = gate_up.new_empty(rows, place.shape.inner)
    moved = gate_up.nbytes + out.nbytes
    return on_activations("silu_mul", f"{place.shape.inner}", rows, moved, lambda ops: ops.silu_mul(out, gate_up))


def _gelu(place: Place, rows: int) -> Work:
    gate_up = place.normal(rows, 2 * place.shape.inner)
    out = gate_up.new_empty(rows, place.shape.inner)
    moved = gate_up.nbytes + out.nbytes
    return on_activations("gelu_mul", f"{place.shape.inner}", rows, moved, lambda ops: ops.gelu_mul(out, gate_up))


def _gather(place: Place, rows: int) -> Work:
    x, order = place.normal(max(rows, 64), place.shape.hidden), place.integers(rows, rows)
    out = x.new_empty(rows, x.shape[1])
    return on_activations(
        "gather_rows", f"{x.shape[1]}", rows, 2 * out.nbytes, lambda ops: ops.gather_rows(out, x, order)
    )


def _scatter(place: Place, rows: int) -> Work:
    x, order = place.normal(rows, place.shape.hidden), place.integers(rows, rows).argsort()
    out = x.new_empty(rows, 3 * x.shape[1])
    return on_activations(
        "scatter_rows",
        f"{x.shape[1]} of {out.shape[1]}",
        rows,
        2 * x.nbytes,
        lambda ops: ops.scatter_rows(out, x, order, x.shape[1]),
    )


def _embedding(place: Place, rows: int) -> Work:
    table = place.normal(place.shape.vocabulary, place.shape.hidden)
    out, ids = table.new_empty(rows, table.shape[1]), [place.integers(len(table), rows) for _ in range(BATCHES)]

    def make(ops: Ops) -> Sequence[Call]:
        return [functools.partial(ops.embedding, out, some, table) for some in ids]

    return Work("embedding", f"{table.shape[0]} x {table.shape[1]}", rows, 2 * out.nbytes, 0, make)


SIMPLE = {
    "embedding": _embedding,
    "gather_rows": _gather,
    "scatter_rows": _scatter,
    "rms_norm": _norm,
    "add_rms_norm": _add_norm,
    "group_rms_norm": _group_norm,
    "add": _add,
    "scale": _scale,
    "silu_mul": _silu,
    "gelu_mul": _gelu,
}
