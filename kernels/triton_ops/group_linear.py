"""`kernels.ops.GroupLinear` in Triton: codes become tensor-core operands without arithmetic; scales come a group later.

A code of 4 bits is put into the mantissa of a 16-bit float whose exponent stands for 16: the number is 16 + code,
exactly (8 bits: 1024 + code in fp16; two halves, 16 + low and 256 + 16 high, in bf16). The constant is taken back
through the group's sum of activations, which the product by a matrix of ones gives in the layout of the accumulator.
`kernels.triton_ops.splits` says how sums are ordered, `group_words` how codes lie.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.group_quant import GroupQuant
from kernels.triton_ops.device import INTERPRETED, check_dtypes
from kernels.triton_ops.group_scales import scale_and_minimum, scale_form, scale_tensors
from kernels.triton_ops.group_words import TILE, WordsQuant, in_words
from kernels.triton_ops.splits import add_splits, block_rows, partial_sums, steps_per_split

NUM_STAGES = 4  # loads in flight

_PLAIN = tl.constexpr(INTERPRETED)  # the interpreter runs no assembly
# what a 16-bit operand stands for beyond its code, by the bits of a code
_OFFSETS = {(torch.float16, 4): 16, (torch.bfloat16, 4): 16, (torch.float16, 8): 1024, (torch.bfloat16, 8): 272}


def prepare_group_quant(weight: GroupQuant) -> GroupQuant:
    """See `kernels.ops.PrepareGroupQuant`: in layout "words", whatever the groups are."""
    return in_words(weight.with_activation_bits(16))


@triton.jit
def field(words: tl.tensor, SHIFT: tl.constexpr, MASK: tl.constexpr, BASE: tl.constexpr) -> tl.tensor:
    """((words >> SHIFT) & MASK) | BASE of int16 words, two to an instruction; SHIFT below 0 is to the left.

    MASK takes no bit that the shift drew over from the neighbour.
    """
    if _PLAIN:
        unsigned = words.to(tl.uint16, bitcast=True)
        shifted = unsigned >> SHIFT if SHIFT >= 0 else unsigned << -SHIFT
        result = ((shifted & MASK) | BASE).to(tl.int16, bitcast=True)
    elif SHIFT >= 0:
        result = tl.inline_asm_elementwise(
            f"shr.b32 $0, $1, {SHIFT}; lop3.b32 $0, $0, {MASK * 65537}, {BASE * 65537}, 0xEA;",
            "=r,r",
            [words],
            dtype=tl.int16,
            is_pure=True,
            pack=2,
        )
    else:
        result = tl.inline_asm_elementwise(
            f"shl.b32 $0, $1, {-SHIFT}; lop3.b32 $0, $0, {MASK * 65537}, {BASE * 65537}, 0xEA;",
            "=r,r",
            [words],
            dtype=tl.int16,
            is_pure=True,
            pack=2,
        )
    return result


@triton.jit
def _add_product(
    total: tl.tensor, x: tl.tensor, words: tl.tensor, PLACE: tl.constexpr, BITS: tl.constexpr
) -> tl.tensor:
    """total [M, N] + x [M, W] @ (the codes at one place of words [N, W], plus the constant of _OFFSETS)^T."""
    if x.dtype == tl.float32:
        code = ((words.to(tl.int32) & 0xFFFF) >> (PLACE * BITS)) & ((1 << BITS) - 1)
        total = tl.dot(x, tl.trans(code.to(tl.float32)), total, input_precision="ieee")
    elif x.dtype == tl.float16:
        if BITS == 4:  # noqa: SIM108 the compiler takes no conditional expression of two calls
            operand = field(words, 4 * PLACE - 6, 0x03C0, 0x4C00)
        else:
            operand = field(words, 8 * PLACE, 0x00FF, 0x6400)
        total = tl.dot(x, tl.trans(operand.to(tl.float16, bitcast=True)), total)
    else:
        operand = field(words, BITS * PLACE - 3, 0x0078, 0x4180)
        total = tl.dot(x, tl.trans(operand.to(tl.bfloat16, bitcast=True)), total)
        if BITS == 8:
            upper = field(words, 8 * PLACE + 1, 0x0078, 0x4380)
            total = tl.dot(x, tl.trans(upper.to(tl.bfloat16, bitcast=True)), total)
    return total


@triton.jit(do_not_specialize=["rows"])  # one binary for any number of rows
def _group_linear(
    out: tl.tensor,
    x: tl.tensor,
    codes: tl.tensor,
    scale: tl.tensor,
    minimum: tl.tensor,
    zero: tl.tensor,
    sub_scale: tl.tensor,
    sub_minimum: tl.tensor,
    perm: tl.tensor,
    bias: tl.tensor,
    constant_zero: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    padded_outputs: tl.tensor,
    group_size: tl.tensor,
    num_groups: tl.tensor,
    sub_groups: tl.tensor,
    steps: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    split_steps: tl.tensor,
    splits_here: tl.tensor,
    OFFSET: tl.constexpr,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    PLACES: tl.constexpr,
    GROUPS: tl.constexpr,
    STEPS_PER_GROUP: tl.constexpr,
    SUB_SCALES: tl.constexpr,
    KIND: tl.constexpr,
    EVEN: tl.constexpr,
    PERMUTED: tl.constexpr,
    PARTIAL: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    # rows vary fastest: neighbouring programs share codes, and the cache serves them
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    j = tl.arange(0, WORDS)
    row_there = (m < rows)[:, None]
    x_rows = x + m.to(tl.int64)[:, None] * x_stride
    code_rows = codes + n[:, None] * WORDS + j[None, :]
    ones = tl.full((WORDS, BLOCK_N), 1, x.dtype.element_ty)
    first_split = tl.program_id(2) * splits_here
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for split in range(first_split, first_split + splits_here):
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in tl.range(split * split_steps, tl.minimum(steps, (split + 1) * split_steps), num_stages=STAGES):
            words = tl.load(code_rows + tl.cast(step, tl.int64) * padded_outputs * WORDS)
            for g in tl.static_range(GROUPS):
                group = (step // STEPS_PER_GROUP) * GROUPS + g
                product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                for p in tl.static_range(PLACES // GROUPS):
                    at = (step % STEPS_PER_GROUP) * (WORDS * PLACES) + p * WORDS + j
                    column = group * group_size + at
                    there = row_there
                    if not EVEN:
                        inside = (at < group_size) & (column < inputs)
                        there = row_there & inside[None, :]
                        if PERMUTED:
                            column = tl.load(perm + column, mask=inside, other=0)
                    elif PERMUTED:
                        column = tl.load(perm + column)
                    left = tl.load(x_rows + column[None, :], mask=there, other=0)
                    product = _add_product(product, left, words, g * (PLACES // GROUPS) + p, BITS)
                    sums = tl.dot(left, ones, sums, input_precision="ieee")
                factor, shift = scale_and_minimum(
                    scale,
                    minimum,
                    zero,
                    sub_scale,
                    sub_minimum,
                    constant_zero,
                    tl.cast(group, tl.int64),
                    n,
                    padded_outputs,
                    sub_groups,
                    group < num_groups,
                    SUB_SCALES,
                    KIND,
                )
                part = tl.fma(factor[None, :], product, part)
                part = tl.fma((shift - OFFSET * factor)[None, :], sums, part)
        total += part
    there = row_there & (n < outputs)[None, :]
    if PARTIAL:
        place = out + (tl.program_id(2).to(tl.int64) * rows + m[:, None]) * outputs + n[None, :]
        tl.store(place, total, mask=there)
    else:
        if BIASED:
            total += tl.load(bias + n, mask=n < outputs, other=0).to(tl.float32)[None, :]
        tl.store(out + m.to(tl.int64)[:, None] * out_stride + n[None, :], total.to(out.dtype.element_ty), mask=there)


def group_linear(out: Tensor, x: Tensor, weight: GroupQuant, bias: Tensor | None) -> None:
    """See `kernels.ops.GroupLinear`. ValueError for a weight that `prepare_group_quant` did not lay out."""
    check_dtypes(x)
    if not isinstance(weight, WordsQuant):
        raise ValueError(f'group_linear: this weight has the layout "{weight.layout}", not "words"')
    if x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("group_linear: columns next to each other")
    rows, (outputs, inputs), step = x.shape[0], weight.shape, weight.step
    split_steps = steps_per_split(outputs, TILE, step.steps, step.inputs)
    splits = triton.cdiv(step.steps, split_steps)
    partial = partial_sums(out, splits)
    block_m = block_rows(rows)
    grid = (triton.cdiv(rows, block_m), triton.cdiv(outputs, TILE), 1 if partial is None else splits)
    _group_linear[grid](
        out if partial is None else partial,
        x,
        weight.codes,
        *scale_tensors(weight),
        weight.codes if weight.perm is None else weight.perm,
        x if bias is None else bias,
        0 if isinstance(weight.zero, Tensor) else weight.zero,
        rows,
        outputs,
        inputs,
        weight.codes.shape[1],
        weight.group_size,
        weight.num_groups,
        weight.sub_groups,
        step.steps,
        x.stride(0),
        out.stride(0),
        split_steps,
        splits if partial is None else 1,
        OFFSET=_OFFSETS.get((x.dtype, weight.bits), 0),
        BITS=weight.bits,
        WORDS=step.words,
        PLACES=step.places,
        GROUPS=step.groups,
        STEPS_PER_GROUP=step.steps_per_group,
        **scale_form(weight),
        EVEN=inputs == step.inputs * step.steps,
        PERMUTED=weight.perm is not None,
        PARTIAL=partial is not None,
        BIASED=bias is not None,
        BLOCK_M=block_m,
        BLOCK_N=TILE,
        STAGES=NUM_STAGES,
        num_warps=4,
    )
    if partial is not None:
        add_splits(out, partial, bias)
