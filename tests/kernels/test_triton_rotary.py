"""The codes that the Triton kernel writes are the reference's own, bit for bit, and both widths of code are read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops import AttentionMetadata, KVCache
from kernels.reference.rotary import encode
from kernels.triton_ops.rotary import rotary_kv_write
from tests.kernels.attention_cases import EVEN, paged_attention
from tests.kernels.attention_cases import rotary_kv_write as rotary_case
from tests.kernels.case import CaseMaker
from tests.kernels.test_ops import EXTENTS, TOLERANCE, backend_ops

FLOAT8 = torch.float8_e4m3fn
SIZE, WIDTH = 8, 24


def written(values: Tensor, code_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes and scales in order of the rows [n, WIDTH] that went in as values and, not turned at all, as keys."""
    rows = len(values)
    blocks = 1 + -(-rows // SIZE)
    codes, scales = torch.zeros(2, blocks, 1, SIZE, WIDTH).to(code_dtype), torch.zeros(2, blocks, 1, SIZE)
    cache = KVCache(*codes, *scales)
    metadata = AttentionMetadata(
        positions=torch.zeros(rows, dtype=torch.int64),
        slot_mapping=torch.arange(SIZE, SIZE + rows),
        block_tables=torch.arange(1, blocks, dtype=torch.int32).unsqueeze(0),
        query_start_loc=[0, rows],
        query_starts=torch.tensor([0, rows], dtype=torch.int32),
        row_request=torch.zeros(rows, dtype=torch.int32),
    )
    rotary_kv_write(values.repeat(1, 3), torch.ones(1, WIDTH // 2), torch.zeros(1, WIDTH // 2), cache, metadata, 1)
    finite = scales[0].isfinite()  # an infinity times sin 0 is a NaN in keys
    assert torch.equal(codes[0].float()[finite], codes[1].float()[finite])
    assert torch.equal(scales[0][finite], scales[1][finite])
    return codes[1][1:].flatten(0, 2)[:rows], scales[1][1:].flatten()[:rows]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # an infinity times sin 0
@pytest.mark.parametrize("code_dtype", [torch.int8, FLOAT8], ids=["int8", "float8"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_codes_are_the_references(dtype: torch.dtype, code_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.logspace(-30, 30, 60) if dtype == torch.float32 else torch.logspace(-8, 4, 60)
    x = (torch.randn(60, WIDTH, generator=generator) * sizes.unsqueeze(1)).to(dtype)
    x[:4] = 0
    x[1, :4] = torch.tensor([127.0, 0.5, 1.5, -2.5])  # halves
    x[2, :8] = torch.tensor([448.0, 17.0, 19.0, -18.0, 2**-7, 2**-9, 2**-10, -3 * 2**-10])  # float8's halves
    x[5, 3], x[6, 20], x[7, 23] = torch.nan, torch.inf, -torch.inf
    if dtype == torch.float32:
        x[8, :3] = torch.tensor([3e-43, -3e-43, 1e-44])  # the scale has one bit or two
        x[8, 3:] = 0
    codes, scales = written(x, code_dtype)
    expected, expected_scales = encode(x, code_dtype)
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scales.nan_to_num(7, 8), expected_scales.nan_to_num(7, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "make",
    [rotary_case(FLOAT8), paged_attention(EVEN, window=70, context=300, code_dtype=FLOAT8)],
    ids=["rotary_kv_write", "paged_attention"],
)
def test_float8(make: CaseMaker, dtype: torch.dtype) -> None:
    ops = backend_ops("rotary_kv_write", "triton_ops", dtype)
    extent = EXTENTS["triton_ops"]
    case = make(torch.Generator().manual_seed(2), dtype, extent.rows)
    together = case.run(ops, 0, extent.rows)
    error = (together.double() - case.truth).abs()
    # A key one rounding of its dtype away from the truth's may have the neighbouring code: an eighth of its size.
    near = error <= TOLERANCE[dtype] * float(case.truth.abs().max())
    assert float(near.double().mean()) > 0.99
    assert bool((error <= case.truth.abs() / 8 + TOLERANCE[dtype] * float(case.truth.abs().max())).all())
    for first, last in extent.parts:
        assert torch.equal(case.run(ops, first, last), together[first:last])
