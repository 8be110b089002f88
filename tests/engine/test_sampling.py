"""The draw as a whole: survivors of the filters, the distribution that comes out, faults, and ranges of the fields."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.core.sampling_params import Guided, SamplingError, SamplingParams
from engine.sample.filters import filter_rows
from engine.sample.row import SamplingRow
from engine.sample.sampler import Sampler
from kernels.noise import Stream, gumbel
from kernels.ops import Ops
from kernels.registry import load_ops
from tests.engine.drawing import DrawnRow, draw

REFERENCE = load_ops([], torch.float32, torch.device("cpu"), num_threads=1)[0]


def sample(logits: torch.Tensor, rows: list[SamplingRow], ops: Ops = REFERENCE) -> list[DrawnRow]:
    return draw(Sampler(ops, logits), logits, rows)


def tokens(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    drawn = sample(logits, rows)
    assert all(one.fault is None for one in drawn)
    return [one.token_id for one in drawn]


def filtered(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """What the filters make of one row [V]."""
    out = torch.empty(1, len(logits))
    filter_rows(out, logits.unsqueeze(0), {0: row}, REFERENCE)
    return out[0]


def survivors(probabilities: list[float], **params: Any) -> list[int]:
    scores = filtered(torch.tensor(probabilities).log(), SamplingRow(SamplingParams(**params), 0, 0))
    left: list[int] = (scores > -math.inf).nonzero().squeeze(-1).tolist()
    return left


def test_each_filter_keeps_exactly_what_it_should() -> None:
    p = [0.05, 0.4, 0.1, 0.25, 0.2]
    assert survivors(p) == [0, 1, 2, 3, 4]
    assert survivors(p, top_k=2) == [1, 3]
    assert survivors(p, top_k=9) == [0, 1, 2, 3, 4]
    assert survivors(p, top_p=0.6) == [1, 3]
    assert survivors(p, top_p=0.66) == [1, 3, 4]
    assert survivors(p, top_p=0.0001) == [1]
    assert survivors(p, min_p=0.49) == [1, 3, 4]
    assert survivors(p, xtc_probability=1.0, xtc_threshold=0.19) == [0, 2, 4]
    assert survivors(p, xtc_probability=1.0, xtc_threshold=0.3) == [0, 1, 2, 3, 4], "one alone is no choice"


def test_typical_p_prefers_the_expected_surprise_to_the_smallest() -> None:
    """Entropy 1.41 nats: surprises 0.92, 1.39, 1.61, 2.30, 3.00 lie 0.5, 0.03, 0.19, 0.89 and 1.6 from it."""
    p = [0.05, 0.4, 0.1, 0.25, 0.2]
    assert survivors(p, typical_p=0.2) == [3]
    assert survivors(p, typical_p=0.44) == [3, 4]
    assert survivors(p, typical_p=0.8) == [1, 3, 4]


def test_top_p_counts_what_top_k_left() -> None:
    """0.4 and 0.25 are kept by top-k; of their sum, 0.4 alone is 61 %."""
    assert survivors([0.05, 0.4, 0.1, 0.25, 0.2], top_k=2, top_p=0.6) == [1]


def test_ties_at_the_border_are_kept_together() -> None:
    assert survivors([0.2, 0.2, 0.2, 0.2, 0.2], top_k=2) == [0, 1, 2, 3, 4]
    assert survivors([0.2, 0.2, 0.2, 0.2, 0.2], typical_p=0.1) == [0, 1, 2, 3, 4]


def test_a_wide_nucleus_is_found_beyond_the_short_list() -> None:
    flat = [1 / 4096] * 4096
    flat[7] = 2 / 4096
    assert len(survivors(flat, top_p=0.9)) == 4096
    scores = torch.linspace(0, 1, 4096)
    kept = filtered(scores, SamplingRow(SamplingParams(top_p=0.9), 0, 0)) > -math.inf
    mass = scores.double().softmax(0)[kept].sum()
    smallest = scores.double().softmax(0)[kept].min()
    assert mass >= 0.9 > mass - smallest


def test_xtc_happens_as_often_as_it_should() -> None:
    params = SamplingParams(xtc_probability=0.3, xtc_threshold=0.1)
    logits = torch.tensor([0.5, 0.4, 0.1]).log()
    struck = sum(filtered(logits, SamplingRow(params, 9, position))[0] == -math.inf for position in range(2000))
    assert 0.26 < struck / 2000 < 0.34


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, 0.5]])
    rows = [SamplingRow(SamplingParams(temperature=0), 0, 0)] * 2
    assert tokens(logits, rows) == [1, 0]


def test_draws_follow_the_filtered_softmax() -> None:
    """Chi-square over 8 tokens at level 1e-4: with 4 kept tokens (3 degrees of freedom) the bound is 21.1."""
    logits = torch.tensor([0.3, 1.2, -0.5, 2.0, 0.9, -1.0, 0.0, 1.5])
    params = SamplingParams(temperature=0.8, top_k=4)
    draws = 4000
    chosen = tokens(logits.expand(draws, 8), [SamplingRow(params, 17, position) for position in range(draws)])
    keep = torch.tensor([1, 3, 4, 7])
    expected = (logits[keep] / 0.8).double().softmax(0) * draws
    counted = torch.bincount(torch.tensor(chosen), minlength=8)
    assert int(counted.sum() - counted[keep].sum()) == 0
    assert float(((counted[keep] - expected) ** 2 / expected).sum()) < 21.1


@pytest.mark.parametrize("seed", [0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_the_draw_uses_all_64_bits_of_the_seed(seed: int) -> None:
    logits = torch.zeros(1, 500)
    noise = gumbel(torch.arange(500), seed, 3, 2, Stream.TARGET)
    assert tokens(logits, [SamplingRow(SamplingParams(), seed, 3, 2)]) == [int(noise.argmax())]


@pytest.mark.parametrize("backend", ["reference", "cpu_ops"])
def test_a_row_that_cannot_be_drawn_spoils_no_other(backend: str) -> None:
    """Not-a-number, everything forbidden, and a row that is fine."""
    ops = load_ops([backend], torch.float32, torch.device("cpu"), num_threads=2)[0]
    logits = torch.tensor([[math.nan, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    nothing = SamplingParams(bad_words=((0,), (1,), (2,)))
    rows = [SamplingRow(SamplingParams(), 0, 0), SamplingRow(nothing, 0, 0), SamplingRow(SamplingParams(top_k=1), 0, 0)]
    broken, forbidden, fine = sample(logits, rows, ops)
    assert broken.fault is not None
    assert "nan" in broken.fault
    assert forbidden.fault is not None
    assert "no token is left" in forbidden.fault
    assert (fine.token_id, fine.fault) == (1, None)


VOCABULARY = 3000
WISHES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_p": 0.8, "logprobs": 2, "logprobs_mode": "processed"},
    {"temperature": 0.0, "repetition_penalty": 1.5, "logprobs": 20},
    {"temperature": 0.6, "top_k": 50, "logprobs": 0},
    {"dry_multiplier": 1.0, "typical_p": 0.9, "min_p": 0.01},
    {"frequency_penalty": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.01},
    {"min_p": 0.1, "logprobs": 5, "logprobs_mode": "processed"},
    {"logprobs": 3, "logprobs_mode": "processed"},
    {"presence_penalty": 0.5, "logprobs": 3, "logprobs_mode": "processed"},
    {"temperature": 1.7, "top_p": 0.99},
]


def wishful_rows(count: int) -> tuple[torch.Tensor, list[SamplingRow]]:
    """Logits and rows that want all kinds of things; some have a grammar."""
    generator = torch.Generator().manual_seed(count)
    text = torch.randint(VOCABULARY, (count, 60), generator=generator).tolist()
    masks = torch.randint(256, (count, -(-VOCABULARY // 8)), generator=generator, dtype=torch.uint8)
    rows = [
        SamplingRow(
            SamplingParams(**WISHES[index % len(WISHES)]),
            seed=index,
            position=60,
            sample_index=index % 3,
            num_prompt_tokens=20,
            token_ids=text[index],
            allowed=bytes(masks[index].tolist()) if index % 4 == 3 else b"",
        )
        for index in range(count)
    ]
    return torch.randn(count, VOCABULARY, generator=generator) * 2, rows


@pytest.mark.parametrize("backend", ["reference", "cpu_ops"])
def test_a_row_does_not_depend_on_its_batch(backend: str) -> None:
    """Alone, and in any place among sixteen: the same token and the same bits of its log probabilities."""
    ops = load_ops([backend], torch.float32, torch.device("cpu"), num_threads=2)[0]
    logits, rows = wishful_rows(33)
    before = logits.clone()
    sampler = Sampler(ops, logits)
    alone = [draw(sampler, logits[i : i + 1], rows[i : i + 1])[0] for i in range(33)]
    assert len({one.token_id for one in alone}) > 20
    for seed in range(6):
        chosen = torch.randperm(33, generator=torch.Generator().manual_seed(seed))[:16].tolist()
        together = draw(sampler, logits[chosen], [rows[i] for i in chosen])
        assert together == [alone[i] for i in chosen]
    assert torch.equal(logits, before), "the caller's logits were written to"


def test_backends_draw_the_same_tokens() -> None:
    logits, rows = wishful_rows(44)
    ours, reference = (
        sample(logits, rows, load_ops([backend], torch.float32, torch.device("cpu"), num_threads=2)[0])
        for backend in ("cpu_ops", "reference")
    )
    assert [one.token_id for one in ours] == [one.token_id for one in reference]
    for one, other in zip(ours, reference, strict=True):
        assert (one.logprobs is None) == (other.logprobs is None)
        if one.logprobs is not None and other.logprobs is not None:
            assert one.logprobs.top_token_ids == other.logprobs.top_token_ids
            assert one.logprobs.logprobs == pytest.approx(other.logprobs.logprobs, rel=1e-6, abs=1e-6)


def test_rows_drawn_from_their_logits_need_no_copy() -> None:
    """Greedy ones, and those at temperature 1 without a filter."""
    logits = torch.zeros(3, 50)
    sampler = Sampler(REFERENCE, logits)
    draw(sampler, logits, [SamplingRow(SamplingParams(temperature=t, logprobs=2), 0, 0) for t in (0.0, 1.0, 1.0)])
    assert sampler.buffer_bytes == 0
    draw(sampler, logits[:1], [SamplingRow(SamplingParams(temperature=0.5), 0, 0)])
    assert sampler.buffer_bytes == logits.nbytes


def test_a_list_of_allowed_tokens_is_all_there_is() -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0, 2.0]])
    for seed in range(20):
        assert tokens(logits, [SamplingRow(SamplingParams(allowed_token_ids=(0, 2)), seed, 5)])[0] in (0, 2)
    assert tokens(logits, [SamplingRow(SamplingParams(temperature=0.0, allowed_token_ids=(0, 2)), 0, 5)]) == [2]
    nothing = SamplingRow(SamplingParams(allowed_token_ids=(2,), bad_words=((2,),)), 0, 5)
    assert "no token is left" in str(sample(logits, [nothing])[0].fault)
    assert str(SamplingParams(allowed_token_ids=(4,)).token_id_fault(4)).startswith("allowed_token_ids: token id 4")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 2.0),
        ("typical_p", 0.0),
        ("seed", -1),
        ("seed", 1 << 64),
        ("max_tokens", 0),
        ("min_tokens", 257),
        ("logit_bias", {3: 101.0}),
        ("bad_words", ((),)),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("dry_multiplier", -1.0),
        ("dry_base", 0.0),
        ("xtc_probability", 1.1),
        ("xtc_threshold", math.nan),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("logprobs_mode", "cooked"),
    ],
)
def test_values_out_of_range_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(SamplingError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_an_unknown_kind_of_grammar_lists_the_known_ones() -> None:
    with pytest.raises(SamplingError, match=r"'xml': known are json, json_schema"):
        Guided("xml")


@pytest.mark.parametrize(
    "params",
    [{"stop_token_ids": (9,)}, {"logit_bias": {9: 1.0}}, {"bad_words": ((1, 9),)}, {"dry_sequence_breakers": (9,)}],
)
def test_token_ids_outside_the_vocabulary_are_named(params: dict[str, Any]) -> None:
    fault = SamplingParams(**params).token_id_fault(9)
    assert fault is not None
    assert fault.param in params
    assert "token id 9" in str(fault)
    assert SamplingParams(**params).token_id_fault(10) is None
