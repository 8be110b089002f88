"""Blocks as the gguf package writes and reads them, against our reading: equal to the bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from bench.random_checkpoint import GGUF_FORMATS, random_blocks
from engine.checkpoint import TensorInfo
from engine.checkpoint.info import GROUP_SCHEMES
from engine.quant import resolve_format
from kernels.group_quant import GroupQuant

SHAPE = (6, 512)
QUANTISED_THERE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # of the K formats it only reads blocks


def read(form: str, raw: torch.Tensor) -> torch.Tensor:
    tensor = TensorInfo("w", form, SHAPE, Path("w.gguf"), 0, raw.numel(), scheme=GROUP_SCHEMES[form])
    found = resolve_format(form)(tensor, {"": raw})
    assert isinstance(found, GroupQuant)
    return found.dequantised()


def theirs(form: str, raw: torch.Tensor) -> torch.Tensor:
    blocks = raw.numpy().reshape(SHAPE[0], -1)
    return torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[form]).reshape(SHAPE))


@pytest.mark.parametrize("form", QUANTISED_THERE)
def test_what_gguf_quantises(form: str) -> None:
    weights = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    raw = torch.from_numpy(gguf.quants.quantize(weights, gguf.GGMLQuantizationType[form]).flatten())
    assert torch.equal(read(form, raw), theirs(form, raw))
    assert (read(form, raw) - torch.from_numpy(weights)).abs().max() < 0.5


@pytest.mark.parametrize("form", GGUF_FORMATS)
def test_any_blocks(form: str) -> None:
    raw = random_blocks(SHAPE, form, torch.Generator().manual_seed(2)).flatten()
    assert torch.equal(read(form, raw), theirs(form, raw))
