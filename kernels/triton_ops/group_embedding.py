"""`kernels.ops.GroupEmbedding` in Triton: rows of a table in the layout "words"."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.group_quant import GroupQuant
from kernels.triton_ops.device import check_dtypes
from kernels.triton_ops.group_scales import scale_and_minimum, scale_form, scale_tensors
from kernels.triton_ops.group_words import WordsQuant

_STEPS = 16  # of a program


@triton.jit
def _group_embedding(
    out: tl.tensor,
    token_ids: tl.tensor,
    codes: tl.tensor,
    scale: tl.tensor,
    minimum: tl.tensor,
    zero: tl.tensor,
    sub_scale: tl.tensor,
    sub_minimum: tl.tensor,
    perm: tl.tensor,
    constant_zero: tl.tensor,
    inputs: tl.tensor,
    padded_outputs: tl.tensor,
    group_size: tl.tensor,
    num_groups: tl.tensor,
    sub_groups: tl.tensor,
    steps: tl.tensor,
    out_stride: tl.tensor,
    WORDS: tl.constexpr,
    PLACES: tl.constexpr,
    GROUPS: tl.constexpr,
    STEPS_PER_GROUP: tl.constexpr,
    SUB_SCALES: tl.constexpr,
    KIND: tl.constexpr,
    PERMUTED: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    token = tl.load(token_ids + tl.program_id(0))
    step = tl.program_id(1) * STEPS + tl.arange(0, STEPS)
    j = tl.arange(0, WORDS)
    place = (step.to(tl.int64) * padded_outputs + token)[:, None] * WORDS + j[None, :]
    words = tl.load(codes + place, mask=(step < steps)[:, None], other=0).to(tl.int32) & 0xFFFF
    for p in tl.static_range(PLACES):
        group = (step // STEPS_PER_GROUP) * GROUPS + p // (PLACES // GROUPS)
        factor, shift = scale_and_minimum(
            scale,
            minimum,
            zero,
            sub_scale,
            sub_minimum,
            constant_zero,
            group.to(tl.int64),
            token,
            padded_outputs,
            sub_groups,
            group < num_groups,
            SUB_SCALES,
            KIND,
        )
        code = ((words >> (p * (16 // PLACES))) & ((1 << (16 // PLACES)) - 1)).to(tl.float32)
        at = ((step % STEPS_PER_GROUP) * (WORDS * PLACES) + p % (PLACES // GROUPS) * WORDS)[:, None] + j[None, :]
        column = group[:, None] * group_size + at
        there = (at < group_size) & (column < inputs)
        if PERMUTED:
            column = tl.load(perm + column, mask=there, other=0)
        value = factor[:, None] * code + shift[:, None]
        row = out + tl.program_id(0).to(tl.int64) * out_stride
        tl.store(row + column, value.to(out.dtype.element_ty), mask=there)


def group_embedding(out: Tensor, token_ids: Tensor, table: GroupQuant) -> None:
    """See `kernels.ops.GroupEmbedding`. ValueError for a table that `prepare_group_quant` did not lay out."""
    check_dtypes(out)
    if not isinstance(table, WordsQuant):
        raise ValueError(f'group_embedding: this table has the layout "{table.layout}", not "words"')
    step = table.step
    _group_embedding[(len(token_ids), triton.cdiv(step.steps, _STEPS))](
        out,
        token_ids,
        table.codes,
        *scale_tensors(table),
        table.codes if table.perm is None else table.perm,
        0 if isinstance(table.zero, Tensor) else table.zero,
        table.shape[1],
        table.codes.shape[1],
        table.group_size,
        table.num_groups,
        table.sub_groups,
        step.steps,
        out.stride(0),
        WORDS=step.words,
        PLACES=step.places,
        GROUPS=step.groups,
        STEPS_PER_GROUP=step.steps_per_group,
        **scale_form(table),
        PERMUTED=table.perm is not None,
        STEPS=_STEPS,
    )
