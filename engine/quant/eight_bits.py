"""Numbers to codes of 8 bits, as they are read: for drafters, whose rounding costs acceptance and never a token.

Invariant: symmetric around code 128; a weight is off by at most half a step of its group's scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.group_quant import GroupQuant

MIDDLE, REACH = 128, 127


def to_eight_bits(weight: Tensor, group_size: int) -> GroupQuant:
    """weight [N, K], K a multiple of group_size, in layout "rows" with scales in fp16."""
    outputs, inputs = weight.shape
    groups = weight.to(torch.float32).view(outputs, inputs // group_size, group_size)
    scale = (groups.abs().amax(dim=2) / REACH).to(torch.float16)
    step = scale.to(torch.float32).clamp_(min=torch.finfo(torch.float16).smallest_normal * 2**-10).unsqueeze(2)
    codes = (groups / step).round_().clamp_(-REACH, REACH).add_(MIDDLE).to(torch.uint8)
    return GroupQuant((outputs, inputs), 8, group_size, codes.view(outputs, inputs), scale, zero=MIDDLE)
