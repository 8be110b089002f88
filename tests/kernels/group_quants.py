"""Random weights in codes, in every form that scales take."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.group_quant import GroupQuant, pack_nibbles

FORMS = ("zero", "zeros", "zeros, bf16", "minimum", "sub-scales", "sub-scales and minima", "permuted")


def random_group_quant(form: str, bits: int, shape: tuple[int, int], group_size: int, seed: int) -> GroupQuant:
    """Weights of about the size 1/8. Forms with sub-scales have one scale for 256 inputs."""
    generator = torch.Generator().manual_seed(seed)
    rows, inputs = shape
    groups, top = -(-inputs // group_size), 1 << bits

    def integers(high: int, *size: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, size, generator=generator, dtype=torch.uint8)

    def halves(*size: int, around: float) -> torch.Tensor:
        return ((torch.rand(*size, generator=generator) + 0.5) * around).to(torch.float16)

    codes = integers(top, rows, inputs)
    weight = GroupQuant(
        shape=shape,
        bits=bits,
        group_size=group_size,
        codes=pack_nibbles(codes) if bits == 4 else codes,
        scale=halves(rows, groups, around=0.5 / top),
        zero=top // 2,
    )
    zeros = integers(top, rows, groups)
    if form == "zero":
        return weight
    if form == "zeros":
        return replace(weight, zero=zeros)
    if form == "zeros, bf16":
        return replace(weight, zero=zeros, scale=weight.scale.to(torch.bfloat16))
    if form == "minimum":
        return replace(weight, minimum=-halves(rows, groups, around=0.25))
    if form == "permuted":
        return replace(weight, zero=zeros, perm=torch.randperm(inputs, generator=generator).to(torch.int32))
    sub_groups = max(1, 256 // group_size)
    supers = -(-groups // sub_groups)
    weight = replace(
        weight,
        scale=halves(rows, supers, around=0.5 / top / 32),
        sub_scale=integers(64, rows, groups, low=1).view(torch.int8),
        sub_groups=sub_groups,
    )
    if form == "sub-scales":
        signs = (integers(2, rows, groups).to(torch.int8) * 2) - 1
        assert weight.sub_scale is not None
        return replace(weight, sub_scale=weight.sub_scale * signs)
    assert form == "sub-scales and minima"
    minima = -halves(rows, supers, around=0.25 / 32)
    return replace(weight, minimum=minima, sub_minimum=integers(64, rows, groups))
