"""`kernels.ops.Linear` in Triton: weights as they are in the checkpoint, fp32 sums, one tile for all rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.device import check_dtypes
from kernels.triton_ops.splits import add_splits, block_rows, partial_sums, steps_per_split

BLOCK_N, BLOCK_K = 64, 64
NUM_STAGES = 4  # loads in flight


def row_alignment(dtype: torch.dtype, device: torch.device) -> int:
    """See `kernels.ops.Ops.row_alignment`: any number of rows will do."""
    return 1


@triton.jit(do_not_specialize=["rows"])  # one binary for any number of rows
def _linear(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    split_steps: tl.tensor,
    splits_here: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    PARTIAL: tl.constexpr,
    BIASED: tl.constexpr,
) -> None:
    # rows vary fastest: neighbouring programs share a weight tile, and the cache serves it
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row_there, column_there = (m < rows)[:, None], n < outputs
    x_rows = x + m.to(tl.int64)[:, None] * x_stride
    weight_rows = weight + tl.where(column_there, n, 0).to(tl.int64)[:, None] * inputs
    steps = tl.cdiv(inputs, BLOCK_K)
    first_split = tl.program_id(2) * splits_here
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for split in range(first_split, first_split + splits_here):
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in tl.range(split * split_steps, tl.minimum(steps, (split + 1) * split_steps), num_stages=STAGES):
            at = step * BLOCK_K + k
            if EVEN:
                left = tl.load(x_rows + at[None, :], mask=row_there, other=0)
                right = tl.load(weight_rows + at[None, :])
            else:
                inside = (at < inputs)[None, :]
                left = tl.load(x_rows + at[None, :], mask=row_there & inside, other=0)
                right = tl.load(weight_rows + at[None, :], mask=inside, other=0)
            part = tl.dot(left, tl.trans(right), part, input_precision="ieee")
        total += part
    there = row_there & column_there[None, :]
    if PARTIAL:
        place = out + (tl.program_id(2).to(tl.int64) * rows + m[:, None]) * outputs + n[None, :]
        tl.store(place, total, mask=there)
    else:
        if BIASED:
            total += tl.load(bias + n, mask=column_there, other=0).to(tl.float32)[None, :]
        tl.store(out + m.to(tl.int64)[:, None] * out_stride + n[None, :], total.to(out.dtype.element_ty), mask=there)


def linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """See `kernels.ops.Linear`."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    check_dtypes(x)
    if x.dtype != weight.dtype or x.stride(1) != 1 or out.stride(1) != 1 or not weight.is_contiguous():
        raise ValueError("linear: x and weight of one dtype, and columns next to each other")
    steps = triton.cdiv(inputs, BLOCK_K)
    split_steps = steps_per_split(outputs, BLOCK_N, steps, BLOCK_K)
    splits = triton.cdiv(steps, split_steps)
    partial = partial_sums(out, splits)
    block_m = block_rows(rows)
    grid = (triton.cdiv(rows, block_m), triton.cdiv(outputs, BLOCK_N), 1 if partial is None else splits)
    _linear[grid](
        out if partial is None else partial,
        x,
        weight,
        x if bias is None else bias,
        rows,
        outputs,
        inputs,
        x.stride(0),
        out.stride(0),
        split_steps,
        splits if partial is None else 1,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        STAGES=NUM_STAGES,
        EVEN=inputs % BLOCK_K == 0,
        PARTIAL=partial is not None,
        BIASED=bias is not None,
        num_warps=4,
    )
    if partial is not None:
        add_splits(out, partial, bias)
