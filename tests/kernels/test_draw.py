"""The noise and the draw: known answers, the Gumbel distribution, and one token whatever backend draws it."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.noise import Stream, gumbel, gumbel_vocabulary, philox4x32, uniform
from kernels.ops import Draw
from kernels.registry import load_ops

# Salmon et al. 2011, the known-answer vectors of Random123 for philox4x32-10
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def backend(name: str) -> Draw:
    ops, choices = load_ops([name], torch.float32, torch.device("cpu"), num_threads=2)
    assert next(choice.backend for choice in choices if choice.op == "draw") == name
    return ops.draw


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    assert tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1))) == answer


def test_noise_of_the_vocabulary_is_the_noise_of_its_tokens() -> None:
    at = ((1 << 63) + 12345, 77, 1, Stream.TARGET)
    whole = gumbel_vocabulary(1003, *at, torch.device("cpu"))
    assert torch.equal(whole, gumbel(torch.arange(1003), *at))
    some = torch.tensor([1002, 0, 5])
    assert torch.equal(whole[some], gumbel(some, *at))
    assert float(whole[0]) == pytest.approx(-math.log(-math.log1p(-uniform(*at))))


@pytest.mark.parametrize("change", ["seed", "position", "sample_index", "stream"])
def test_noise_depends_on_every_part_of_its_address(change: str) -> None:
    address = {"seed": 5, "position": 6, "sample_index": 0, "stream": Stream.TARGET}
    other = address | {change: Stream.ACCEPT if change == "stream" else 9}
    ids = torch.arange(64)
    assert not torch.equal(gumbel(ids, **address), gumbel(ids, **other))


def test_noise_is_gumbel_distributed() -> None:
    noise = gumbel_vocabulary(200_000, 3, 1, 0, Stream.TARGET, torch.device("cpu"))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)


@pytest.mark.parametrize("spread", [0.0, 0.3, 4.0, 30.0])
def test_the_draw_without_most_of_the_noise_finds_the_same_token(spread: float) -> None:
    """Flat scores (all noise counts), realistic ones, and peaked ones; some tokens are out."""
    generator = torch.Generator().manual_seed(int(spread * 10))
    scores = torch.randn(40, 1999, generator=generator) * spread
    scores[::3].masked_fill_(torch.rand(14, 1999, generator=generator) < 0.5, -math.inf)
    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (40,), generator=generator)
    addresses = torch.stack([seeds, torch.arange(40) * 1001, torch.arange(40) % 5, torch.arange(40) % 4], 1)
    tokens = {}
    for name in ("reference", "cpu_ops", "triton_ops"):
        tokens[name] = torch.empty(40, dtype=torch.int64)
        backend(name)(tokens[name], scores, addresses)
    assert torch.equal(tokens["reference"], tokens["cpu_ops"])
    assert torch.equal(tokens["reference"], tokens["triton_ops"])


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_a_long_row_is_drawn_the_same_in_parts(rows: int) -> None:
    """Few rows are cut into parts, for several threads, many are not; lengths end within a vector or just behind."""
    generator = torch.Generator().manual_seed(rows)
    for vocabulary in (16384, 16385, 40007):
        scores = torch.randn(rows, vocabulary, generator=generator) * 2
        addresses = torch.randint(1 << 31, (rows, 4), generator=generator)
        tokens = {}
        for name in ("reference", "cpu_ops"):
            tokens[name] = torch.empty(rows, dtype=torch.int64)
            backend(name)(tokens[name], scores, addresses)
        assert torch.equal(tokens["reference"], tokens["cpu_ops"])


@pytest.mark.parametrize("name", ["reference", "cpu_ops", "triton_ops"])
def test_equal_sums_go_to_the_lowest_id(name: str) -> None:
    """Scores so large that the noise is lost in them."""
    scores = torch.full((1, 40000), 1e30)
    scores[0, :77] = 0.0
    out = torch.empty(1, dtype=torch.int64)
    backend(name)(out, scores, torch.tensor([[1, 2, 3, 0]]))
    assert out.tolist() == [77]


@pytest.mark.parametrize("name", ["reference", "cpu_ops", "triton_ops"])
def test_rows_that_are_passed_over_stay(name: str) -> None:
    scores = torch.full((6, 300), -math.inf)
    scores[::2, 5] = 1.0
    addresses = torch.tensor([[1, 2, 0, 0], [0, 0, 0, -1]] * 3)
    out = torch.full((6,), 7)
    backend(name)(out, scores, addresses)
    assert out.tolist() == [5, 7] * 3


@pytest.mark.parametrize("name", ["reference", "cpu_ops", "triton_ops"])
@pytest.mark.parametrize("size", [5, 700])
def test_the_peak_of_a_row_that_is_not_a_number_is_its_first_such_place(size: int, name: str) -> None:
    scores = torch.zeros(3, size)
    scores[0, size // 2] = scores[0, -1] = math.nan
    scores[1] = -math.inf
    scores[2, -1] = math.inf
    values, ids = torch.empty(3), torch.empty(3, dtype=torch.int64)
    load_ops([name], torch.float32, torch.device("cpu"), num_threads=2)[0].peaks(values, ids, scores)
    assert ids.tolist() == [size // 2, 0, size - 1]
    assert values[0].isnan()
    assert values[1:].tolist() == [-math.inf, math.inf]


@pytest.mark.parametrize("name", ["reference", "cpu_ops", "triton_ops"])
def test_a_single_token_that_is_left_is_drawn(name: str) -> None:
    scores = torch.full((1, 10), -math.inf)
    scores[0, 7] = -50.0
    out = torch.empty(1, dtype=torch.int64)
    backend(name)(out, scores, torch.tensor([[1, 2, 3, 0]]))
    assert out.tolist() == [7]
