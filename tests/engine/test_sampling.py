"""Noise, filters and the draw: known answers, exact survivor sets, and the distribution that comes out."""

from __future__ import annotations

import math

import pytest
import torch

from engine.core.sampling_params import SamplingError, SamplingParams
from engine.sample.noise import Stream, gumbel, gumbel_vocabulary, philox4x32
from engine.sample.processors import keep_threshold
from engine.sample.sampler import SamplingRow, sample

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


@pytest.mark.parametrize("change", ["seed", "position", "sample_index", "stream"])
def test_noise_depends_on_every_part_of_its_address(change: str) -> None:
    address = {"seed": 5, "position": 6, "sample_index": 0, "stream": Stream.TARGET}
    other = address | {change: Stream.ACCEPT if change == "stream" else 9}
    ids = torch.arange(64)
    assert not torch.equal(gumbel(ids, **address), gumbel(ids, **other))  # type: ignore[arg-type]


def test_noise_is_gumbel_distributed() -> None:
    noise = gumbel_vocabulary(200_000, 3, 1, 0, Stream.TARGET, torch.device("cpu"))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)


def survivors(probabilities: list[float], **params: float | int) -> list[int]:
    scaled = torch.tensor(probabilities).log()
    threshold = keep_threshold(scaled, SamplingParams(**params))  # type: ignore[arg-type]
    return (scaled >= threshold).nonzero().squeeze(-1).tolist()  # type: ignore[no-any-return]


def test_each_filter_keeps_exactly_what_it_should() -> None:
    p = [0.05, 0.4, 0.1, 0.25, 0.2]
    assert survivors(p) == [0, 1, 2, 3, 4]
    assert survivors(p, top_k=2) == [1, 3]
    assert survivors(p, top_k=9) == [0, 1, 2, 3, 4]
    assert survivors(p, top_p=0.6) == [1, 3]
    assert survivors(p, top_p=0.66) == [1, 3, 4]
    assert survivors(p, top_p=0.0001) == [1]
    assert survivors(p, min_p=0.49) == [1, 3, 4]


def test_top_p_counts_what_top_k_left() -> None:
    """0.4 and 0.25 are kept by top-k; of their sum, 0.4 alone is 61 %."""
    assert survivors([0.05, 0.4, 0.1, 0.25, 0.2], top_k=2, top_p=0.6) == [1]


def test_ties_at_the_border_are_kept_together() -> None:
    assert survivors([0.2, 0.2, 0.2, 0.2, 0.2], top_k=2) == [0, 1, 2, 3, 4]


def test_a_wide_nucleus_is_found_beyond_the_short_list() -> None:
    flat = [1 / 4096] * 4096
    flat[7] = 2 / 4096
    assert len(survivors(flat, top_p=0.9)) == 4096
    scaled = torch.linspace(0, 1, 4096)
    kept = scaled >= keep_threshold(scaled, SamplingParams(top_p=0.9))
    mass = scaled.double().softmax(0)[kept].sum()
    smallest = scaled.double().softmax(0)[kept].min()
    assert mass >= 0.9 > mass - smallest


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, 0.5]])
    rows = [SamplingRow(SamplingParams(temperature=0), 0, 0)] * 2
    assert sample(logits, rows) == [1, 0]


def test_draws_follow_the_filtered_softmax() -> None:
    """Chi-square over 8 tokens at level 1e-4: with 4 kept tokens (3 degrees of freedom) the bound is 21.1."""
    logits = torch.tensor([0.3, 1.2, -0.5, 2.0, 0.9, -1.0, 0.0, 1.5])
    params = SamplingParams(temperature=0.8, top_k=4)
    draws = 4000
    batch = logits.expand(draws, 8)
    chosen = sample(batch, [SamplingRow(params, 17, position) for position in range(draws)])
    keep = torch.tensor([1, 3, 4, 7])
    expected = (logits[keep] / 0.8).double().softmax(0) * draws
    counted = torch.bincount(torch.tensor(chosen), minlength=8)
    assert int(counted.sum() - counted[keep].sum()) == 0
    assert float(((counted[keep] - expected) ** 2 / expected).sum()) < 21.1


def test_a_row_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 500, generator=generator)
    rows = [SamplingRow(SamplingParams(temperature=1.0, top_p=0.8), seed, 3) for seed in range(9)]
    together = sample(logits, rows)
    assert [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(9)] == together


def test_logits_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(FloatingPointError, match="row 0"):
        sample(torch.tensor([[float("nan"), 0.0]]), [SamplingRow(SamplingParams(), 0, 0)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 2.0),
        ("seed", -1),
        ("seed", 1 << 64),
        ("max_tokens", 0),
    ],
)
def test_values_out_of_range_name_the_field(field: str, value: float) -> None:
    with pytest.raises(SamplingError, match=field) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field
