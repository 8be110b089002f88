"""Whether an op of a backend computes on this machine what its contract says.

Owns `CHECKS` (op -> its checks) and the comparison: right against the reference in fp64 on the CPU, and some rows alone
equal, bit for bit, to the same rows among others (design, section 6). Knows no backend: it is given `Ops`.
Invariant: a check that is run never raises; it gives the reason for which the op must not serve, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import check_cases as cases
from kernels import check_scores as scores
from kernels.check_cases import ROWS, Side
from kernels.ops import Ops

# Largest error as a share of the largest value. In 16 bits one and a half steps of rounding; in fp32 what the order of
# sums and a GPU's approximate functions amount to. TF32 products err by 5e-4 and fail.
TOLERANCE = {torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3, torch.float32: 1e-5}
ONE_CODE = 1.01 / 127  # a rotated key that lies between two int8 codes may get either
SEED = 5

_LONE_ROWS = tuple(slice(row, row + 1) for row in (0, 4, 14, 18))  # the first row, and some of either request


@dataclass(frozen=True, slots=True)
class Check:
    """One way to try an op.

    run: with which of the rows, gives their results. alone: parts of the rows that are run by themselves too. slack:
    added to the tolerance. scores: its numbers are fp32 for a model of any dtype.
    """

    run: Callable[[Ops, Side, slice], tuple[Tensor, ...]]
    name: str = ""
    alone: tuple[slice, ...] = _LONE_ROWS
    slack: float = 0.0
    scores: bool = False


_REQUESTS = tuple(request for request in scores.REQUESTS if request.stop > request.start)

CHECKS: dict[str, tuple[Check, ...]] = {
    "embedding": (Check(cases.embedding),),
    "rms_norm": (Check(cases.rms_norm),),
    "add_rms_norm": (Check(cases.add_rms_norm),),
    "group_rms_norm": (Check(cases.group_rms_norm),),
    "add": (Check(cases.add),),
    "scale": (Check(cases.scale),),
    "soft_cap": (Check(cases.soft_cap),),
    "linear": (
        Check(cases.linear(75, 101)),
        Check(cases.linear(96, 160), "whole tiles"),
        Check(cases.linear(64, 203, logits=True), "logits"),
    ),
    "prepare_group_quant": (Check(cases.prepare_group_quant),),
    "group_linear": (
        Check(cases.group_linear(4, 32, "minimum")),
        Check(cases.group_linear(8, 32, "zeros"), "8 bits"),
        Check(cases.group_linear(4, 128, "permuted"), "permuted"),
        Check(cases.group_linear(4, 32, "sub-scales", inputs=512), "sub-scales"),
        Check(cases.group_linear(8, 16, "minimum", inputs=80), "groups of 16"),
        Check(cases.group_linear(4, 64, "minimum", activation_bits=8), "activations of 8 bits"),
        Check(cases.group_linear(8, 32, "zeros", activation_bits=8), "8 bits, activations of 8 bits"),
    ),
    "group_embedding": (
        Check(cases.group_embedding(4, 32, "minimum")),
        Check(cases.group_embedding(8, 32, "zeros"), "8 bits"),
    ),
    "rotary_kv_write": (
        Check(cases.rotary_kv_write(None)),
        Check(cases.rotary_kv_write(torch.int8), "int8", slack=ONE_CODE),
    ),
    "paged_attention": (
        Check(cases.paged_attention()),
        Check(cases.paged_attention(window=50, soft_cap=5.0), "windowed and capped"),
        Check(cases.paged_attention(code_dtype=torch.int8), "int8"),
        # all rows at once go another way than a row alone, and must come to its bits
        Check(cases.paged_attention(heads=(2 * cases.MANY_KV_HEADS, cases.MANY_KV_HEADS, 16)), "many heads"),
    ),
    "silu_mul": (Check(cases.silu_mul),),
    "gelu_mul": (Check(cases.gelu_mul),),
    "mixture_mlp": (Check(cases.mixture_mlp),),
    "gather_rows": (Check(cases.gather_rows),),
    "scatter_rows": (Check(cases.scatter_rows),),
    "peaks": (Check(scores.peaks, scores=True),),
    "filter_scores": (Check(scores.filter_scores, scores=True),),
    "log_probabilities": (Check(scores.log_probabilities, scores=True),),
    "draw": (Check(scores.draw, scores=True),),
    "verify_match": (Check(scores.verify_match, alone=_REQUESTS, scores=True),),
    "verify_rejection": (Check(scores.verify_rejection, alone=_REQUESTS, scores=True),),
}

FLOAT8 = torch.float8_e4m3fn
ONE_FLOAT8_STEP = 1.01 * 32 / 448  # between the largest numbers: a key that lies between two may get either
FLOAT8_CHECKS: dict[str, tuple[Check, ...]] = {  # for a KV cache of float8 codes, which not every device has
    "rotary_kv_write": (Check(cases.rotary_kv_write(FLOAT8), "float8", slack=ONE_FLOAT8_STEP),),
    "paged_attention": (Check(cases.paged_attention(code_dtype=FLOAT8), "float8"),),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. error: the largest, as a share of the largest value; NaN where the op gave no numbers.

    fault: why the op must not serve, empty where it may.
    """

    error: float
    allowed: float
    fault: str


def checks_of(op: str, *, float8: bool) -> tuple[Check, ...]:
    """What an op is tried by. float8: for a model whose KV cache is in float8, too."""
    return CHECKS[op] + (FLOAT8_CHECKS.get(op, ()) if float8 else ())


def check_op(
    op: str, ops: Ops, reference: Ops, dtype: torch.dtype, device: torch.device, *, float8: bool = False
) -> str:
    """Why ops' `op` must not serve a model of `dtype` on `device`; empty where it may. float8: see `checks_of`."""
    for check in checks_of(op, float8=float8):
        fault = run_check(check, ops, reference, dtype, device).fault
        if fault:
            return f"{op}{f' ({check.name})' if check.name else ''} {fault}"
    return ""


def run_check(check: Check, ops: Ops, reference: Ops, dtype: torch.dtype, device: torch.device) -> Finding:
    """Runs one check of `ops` against `reference`. dtype: the model's."""
    stored = torch.float32 if check.scores else dtype
    allowed = TOLERANCE[stored] + check.slack if stored in TOLERANCE else 0.0
    if not allowed:
        return Finding(torch.nan, 0.0, f"no tolerance is known for {dtype}")

    def results(subject: Ops, device: torch.device, given: torch.dtype, rows: slice) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(SEED)
        return check.run(subject, Side(device, stored, given, generator), rows)

    everyone = slice(0, ROWS)
    try:
        with _one_thread():
            truth = results(reference, torch.device("cpu"), torch.float64, everyone)
            together = results(ops, device, stored, everyone)
            error, fault = _compare(together, truth, allowed)
            if not fault:
                lone = ((part, results(ops, device, stored, part)) for part in check.alone)
                fault = _differing_rows(together, lone)
    except Exception as failure:  # whatever an op does here it must not do in a load
        return Finding(torch.nan, allowed, f"fails with {type(failure).__name__}: {str(failure)[:300]}")
    return Finding(error, allowed, fault)


@contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine torch's threads wait for each other many times longer than this work takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compare(found: Sequence[Tensor], truth: Sequence[Tensor], allowed: float) -> tuple[float, str]:
    """The largest error of any of the results, and why it is one too many."""
    worst = 0.0
    for one, other in zip(found, truth, strict=True):
        if not one.dtype.is_floating_point:
            if not torch.equal(one.cpu().long(), other.long()):
                return torch.nan, "gives other integers than the reference"
            continue
        wide = one.cpu().double()
        error = float((wide - other).abs().max() / other.abs().max()) if not torch.equal(wide, other) else 0.0
        if not error <= allowed:  # NaN too
            return error, f"differs from the reference by {error:.2g} of the largest value, {allowed:.2g} are allowed"
        worst = max(worst, error)
    return worst, ""


def _differing_rows(together: Sequence[Tensor], alone: Iterable[tuple[slice, Sequence[Tensor]]]) -> str:
    for part, results in alone:
        if not all(torch.equal(one, whole[part]) for one, whole in zip(results, together, strict=True)):
            rows = f"row {part.start}" if part.stop == part.start + 1 else f"rows {part.start} to {part.stop - 1}"
            return f"{rows} alone gives other bits than among {ROWS}"
    return ""
