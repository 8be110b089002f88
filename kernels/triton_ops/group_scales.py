"""Scales and minima of groups in the layout "words", expanded to fp32 in a kernel: every form of `GroupQuant`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.group_words import WordsQuant

CONSTANT_ZERO, ZEROS, MINIMA, SUB_MINIMA = range(4)  # where minima come from
_CONSTANT_ZERO, _ZEROS, _SUB_MINIMA = (tl.constexpr(kind) for kind in (CONSTANT_ZERO, ZEROS, SUB_MINIMA))


def scale_tensors(weight: WordsQuant) -> tuple[Tensor, ...]:
    """scale, minimum, zero, sub_scale, sub_minimum; a tensor that the weight lacks is stood in for, and never read."""
    found = weight.tensors()
    return tuple(found.get(name, weight.scale) for name in ("scale", "minimum", "zero", "sub_scale", "sub_minimum"))


def scale_form(weight: WordsQuant) -> dict[str, bool | int]:
    """The kernel constants that say which of `scale_tensors` are there."""
    if weight.minimum is None:
        kind = ZEROS if isinstance(weight.zero, Tensor) else CONSTANT_ZERO
    else:
        kind = MINIMA if weight.sub_minimum is None else SUB_MINIMA
    return {"SUB_SCALES": weight.sub_scale is not None, "KIND": kind}


@triton.jit
def scale_and_minimum(
    scale: tl.tensor,
    minimum: tl.tensor,
    zero: tl.tensor,
    sub_scale: tl.tensor,
    sub_minimum: tl.tensor,
    constant_zero: tl.tensor,
    group: tl.tensor,
    output: tl.tensor,
    padded_outputs: tl.tensor,
    sub_groups: tl.tensor,
    inside: tl.tensor,
    SUB_SCALES: tl.constexpr,
    KIND: tl.constexpr,
) -> tl.tensor:
    """Scale and minimum in fp32 of the groups `group` of the outputs `output` (one may be a scalar), 0 where not
    `inside`."""
    here = group * padded_outputs + output
    shared = (group // sub_groups) * padded_outputs + output
    factor = tl.load(scale + shared, mask=inside, other=0).to(tl.float32)
    if SUB_SCALES:
        factor = factor * tl.load(sub_scale + here, mask=inside, other=0).to(tl.float32)
    if KIND == _CONSTANT_ZERO:
        shift = -(factor * constant_zero)
    elif KIND == _ZEROS:
        shift = -(factor * tl.load(zero + here, mask=inside, other=0).to(tl.float32))
    else:
        shift = tl.load(minimum + shared, mask=inside, other=0).to(tl.float32)
        if KIND == _SUB_MINIMA:
            shift = shift * tl.load(sub_minimum + here, mask=inside, other=0).to(tl.float32)
    return factor, shift
