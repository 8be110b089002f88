"""Keys and values as codes: what rounds to what, the same in every backend; and float8, the reference's alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache
from kernels.reference.rotary import encode
from kernels.registry import load_ops
from tests.kernels.attention_cases import EVEN, numbers, paged_attention, rotary_kv_write
from tests.kernels.case import CaseMaker
from tests.kernels.test_ops import TOLERANCE, backend_ops

FLOAT8 = torch.float8_e4m3fn
SIZE, WIDTH = 8, 24


def written(backend: str, dtype: torch.dtype, values: Tensor) -> KVCache:
    """The cache of one head after the rows [rows, WIDTH] went into it as values and, not turned at all, as keys."""
    rows = len(values)
    ops = backend_ops("rotary_kv_write", backend, dtype)
    blocks = 1 + -(-rows // SIZE)
    codes, scales = torch.zeros(2, blocks, 1, SIZE, WIDTH, dtype=torch.int8), torch.zeros(2, blocks, 1, SIZE)
    cache = KVCache(*codes, *scales)
    metadata = AttentionMetadata(
        positions=torch.zeros(rows, dtype=torch.int64),
        slot_mapping=torch.arange(SIZE, SIZE + rows),
        block_tables=torch.arange(1, blocks, dtype=torch.int32).unsqueeze(0),
        query_start_loc=[0, rows],
        query_starts=torch.tensor([0, rows], dtype=torch.int32),
        row_request=torch.zeros(rows, dtype=torch.int32),
    )
    cos, sin = torch.ones(1, WIDTH // 2), torch.zeros(1, WIDTH // 2)
    ops.rotary_kv_write(values.to(dtype).repeat(1, 3), cos, sin, cache, metadata, 1)
    return cache


def rows_of(cache: KVCache) -> tuple[Tensor, Tensor]:
    """Codes and scales of the values in order of their slots, block 0 left out; keys must be the same."""
    assert torch.equal(cache.keys, cache.values)
    assert cache.key_scales is not None
    assert cache.value_scales is not None
    key_scales, value_scales = (held.nan_to_num(7.0, 7.0) for held in (cache.key_scales, cache.value_scales))
    assert torch.equal(key_scales, value_scales), "an infinity times sin 0 is a NaN in keys"
    return cache.values[1:].flatten(0, 2), cache.value_scales[1:].flatten()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_both_backends_write_the_same_codes(dtype: torch.dtype) -> None:
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1)) * torch.logspace(-30, 30, 64).unsqueeze(1)
    codes, scales = rows_of(written("cpu_ops", dtype, x))
    others, other_scales = rows_of(written("reference", dtype, x))
    assert torch.equal(codes, others)
    assert torch.equal(scales, other_scales)
    apart = (codes.double() * scales.double().unsqueeze(-1) - x.to(dtype).double()).abs()
    assert bool((apart.amax(-1) <= scales.double() * 0.5001).all())
    assert int(codes.abs().amax(-1).min()) == 127


@pytest.mark.parametrize("backend", ["cpu_ops", "reference"])
def test_zeros_halves_tiny_numbers_and_what_is_no_number(backend: str) -> None:
    x = torch.zeros(8, WIDTH)
    x[1, :4] = torch.tensor([127.0, 0.5, 1.5, -2.5])
    x[2, :3] = torch.tensor([-1.0, 1.0, 1e-9])
    x[3, :2] = torch.tensor([1e-44, -1e-45])  # the scale is no longer there
    x[4, :3] = torch.tensor([3e-43, -3e-43, 1e-44])  # the scale has one bit or two
    x[5, 3], x[6, 20], x[7, 23] = torch.nan, torch.inf, -torch.inf
    codes, scales = rows_of(written(backend, torch.float32, x))
    assert codes[0].count_nonzero() == 0
    assert float(scales[0]) == 0
    assert (codes[1, :4].tolist(), float(scales[1])) == ([127, 0, 2, -2], 1.0)
    assert codes[2, :3].tolist() == [-127, 127, 0]
    assert float(scales[3]) == codes[3].count_nonzero() == 0
    assert codes[4, 0] == -codes[4, 1] > 100
    assert scales[5:].isfinite().tolist() == [False] * 3
    assert (
        numbers(written(backend, torch.float32, x))[0].isnan().flatten(0, 2).all(-1)[SIZE + 5 :].tolist() == [True] * 3
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "make",
    [rotary_kv_write(FLOAT8), paged_attention(EVEN, window=70, code_dtype=FLOAT8)],
    ids=["rotary_kv_write", "paged_attention"],
)
def test_float8_in_the_reference(make: CaseMaker, dtype: torch.dtype) -> None:
    ops, _ = load_ops([], dtype, torch.device("cpu"), num_threads=1)
    case = make(torch.Generator().manual_seed(2), dtype, 70)
    together = case.run(ops, 0, 70)
    assert float((together.double() - case.truth).abs().max()) <= TOLERANCE[dtype] * float(case.truth.abs().max())
    if dtype != torch.float64:
        for first, last in ((0, 1), (5, 6), (2, 18)):
            assert torch.equal(case.run(ops, first, last), together[first:last])


def test_float8_holds_three_bits_behind_the_point() -> None:
    x = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(3))
    codes, scales = encode(x, FLOAT8)
    apart = (codes.float() * scales.unsqueeze(-1) - x).abs()
    assert bool((apart <= x.abs() / 16 + scales.unsqueeze(-1) * 2**-10).all())
    assert float(codes.float().abs().amax(-1).min()) == 448


def test_the_c_kernels_refuse_float8() -> None:
    cache = written("reference", torch.float32, torch.ones(1, WIDTH))
    wrong = KVCache(cache.keys.to(FLOAT8), cache.values.to(FLOAT8), cache.key_scales, cache.value_scales)
    ops = backend_ops("paged_attention", "cpu_ops", torch.float32)
    metadata = AttentionMetadata(
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(1, 1, dtype=torch.int32),
        [0, 1],
        torch.tensor([0, 1], dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    with pytest.raises(TypeError, match=r"wants a contiguous CPU tensor of torch\.int8"):
        ops.paged_attention(torch.zeros(1, WIDTH), torch.zeros(1, 3 * WIDTH), wrong, metadata, 1.0)
