"""The processor chain against a naive twin in plain Python, and that a row cares for nothing but itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.sampling_params import SamplingParams
from engine.sample.filters import filter_rows
from engine.sample.penalties import repetitions
from engine.sample.processors import adjust
from engine.sample.row import SamplingRow
from kernels.noise import Stream, uniform
from kernels.registry import load_ops

VOCABULARY = 12
TOKENS = st.integers(0, VOCABULARY - 1)
PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.5, 1.0, 2.0]),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-5, 5, width=32), max_size=3),
        "bad_words": st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "presence_penalty": st.sampled_from([0.0, 0.5, -1.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.25, -0.5]),
        "dry_multiplier": st.sampled_from([0.0, 0.8]),
        "dry_allowed_length": st.integers(1, 3),
        "dry_sequence_breakers": st.lists(TOKENS, max_size=2).map(tuple),
        "allowed_token_ids": st.just(()) | st.lists(TOKENS, min_size=1, max_size=9).map(tuple),
        "min_tokens": st.sampled_from([0, 3]),
        "top_k": st.sampled_from([0, 1, 5]),
        "top_p": st.sampled_from([1.0, 0.7]),
        "typical_p": st.sampled_from([1.0, 0.6]),
        "min_p": st.sampled_from([0.0, 0.2]),
        "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
        "seed": st.integers(0, 99),
    }
)


REFERENCE = load_ops([], torch.float64, torch.device("cpu"), num_threads=1)[0]


def adjusted_copy(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    copy = logits.clone()
    adjust(copy.unsqueeze(0), {0: row})
    return copy


def longest_repetition(text: list[int], follower: int, breakers: set[int]) -> int:
    """DRY, naively: the longest ending of the text that stood before `follower` somewhere inside it."""
    best = 0
    for at in range(1, len(text)):
        if text[at] != follower or follower in breakers:
            continue
        length = 0
        while length < at and text[at - 1 - length] == text[-1 - length] and text[-1 - length] not in breakers:
            length += 1
        best = max(best, length)
    return best


def naive_adjust(logits: list[float], p: SamplingParams, text: list[int], prompt: int, ends: list[int]) -> list[float]:
    out = list(logits)
    for token in range(VOCABULARY):
        out[token] += p.logit_bias.get(token, 0.0)
        if any((*text, token)[-len(word) :] == word for word in p.bad_words):
            out[token] = -math.inf
        if token in text:
            out[token] = out[token] / p.repetition_penalty if out[token] > 0 else out[token] * p.repetition_penalty
        if count := text[prompt:].count(token):
            out[token] -= p.presence_penalty + p.frequency_penalty * count
        length = longest_repetition(text, token, set(p.dry_sequence_breakers))
        if length >= p.dry_allowed_length:
            out[token] -= p.dry_multiplier * p.dry_base ** (length - p.dry_allowed_length)
        if token in ends and len(text) - prompt < p.min_tokens:
            out[token] = -math.inf
        if p.allowed_token_ids and token not in p.allowed_token_ids:
            out[token] = -math.inf
    return out


def naive_filter(scores: list[float], p: SamplingParams, xtc: float) -> set[int]:
    """The tokens that are left; `scores` are all different."""
    left = {token for token in range(VOCABULARY) if scores[token] > -math.inf}

    def chances() -> dict[int, float]:
        total = sum(math.exp(scores[token]) for token in left)
        return {token: math.exp(scores[token]) / total for token in left}

    def smallest_set(order: list[int], share: float) -> set[int]:
        mass, kept, chance = 0.0, set[int](), chances()
        for token in order:
            kept.add(token)
            mass += chance[token]
            if mass >= share:
                break
        return kept

    if p.top_k:
        left = set(sorted(left, key=lambda token: -scores[token])[: p.top_k])
    if p.top_p < 1:
        left = smallest_set(sorted(left, key=lambda token: -scores[token]), p.top_p)
    if p.typical_p < 1:
        entropy = -sum(chance * math.log(chance) for chance in chances().values())
        surprise = {token: abs(-math.log(chance) - entropy) for token, chance in chances().items()}
        left = smallest_set(sorted(left, key=lambda token: surprise[token]), p.typical_p)
    most = max(chances().values())
    left = {token for token, chance in chances().items() if chance >= p.min_p * most}
    if xtc < p.xtc_probability:
        likely = sorted(
            (token for token, chance in chances().items() if chance >= p.xtc_threshold), key=scores.__getitem__
        )
        left -= set(likely[1:])
    return left


@settings(max_examples=400, deadline=None)
@given(PARAMS, st.lists(TOKENS, min_size=1, max_size=14), st.data())
def test_the_chain_is_its_naive_twin(fields: dict[str, Any], text: list[int], data: st.DataObject) -> None:
    params = SamplingParams(**fields)
    prompt = data.draw(st.integers(1, len(text)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) * 2
    ends = [2, 7] if params.min_tokens else []
    row = SamplingRow(params, fields["seed"], len(text), 0, prompt, text if params.needs_token_ids else (), ends)
    adjusted = adjusted_copy(logits, row)
    expected = naive_adjust(logits.tolist(), params, text, prompt, ends)
    torch.testing.assert_close(adjusted, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    if max(expected) == -math.inf:
        return
    scores = torch.empty(1, VOCABULARY, dtype=torch.float64)
    filter_rows(scores, adjusted.unsqueeze(0), {0: row}, REFERENCE)
    scaled = (adjusted / params.temperature).tolist()
    xtc = uniform(fields["seed"], len(text), 0, Stream.XTC)
    assert set((scores[0] > -math.inf).nonzero().squeeze(-1).tolist()) == naive_filter(scaled, params, xtc)


@given(st.lists(st.integers(0, 3), max_size=30), st.sets(st.integers(0, 3), max_size=1))
def test_repetitions_are_the_longest_there_are(text: list[int], breakers: set[int]) -> None:
    found = repetitions(text, frozenset(breakers), most=100)
    naive = {token: longest_repetition(text, token, breakers) for token in range(4)}
    assert found == {token: length for token, length in naive.items() if length > 0}


def test_a_long_repetition_has_a_finite_penalty() -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_base=3.0)
    row = SamplingRow(params, 0, 3000, 0, 1, [5] * 3000)
    assert -math.inf < float(adjusted_copy(torch.zeros(8), row)[5]) < -1e30


def test_a_grammar_mask_leaves_the_tokens_of_its_bits() -> None:
    row = SamplingRow(SamplingParams(), 0, 0, allowed=bytes([0b00000110, 0b10000001]))
    adjusted = adjusted_copy(torch.zeros(11), row)
    assert (adjusted > -math.inf).nonzero().squeeze(-1).tolist() == [1, 2, 8]


def test_a_complete_grammar_ends_the_answer_even_before_min_tokens() -> None:
    params = SamplingParams(min_tokens=5)
    only_end = SamplingRow(params, 0, 3, num_prompt_tokens=2, end_token_ids=[1], allowed=bytes([0b10]))
    assert int(adjusted_copy(torch.zeros(4), only_end).argmax()) == 1
    more = SamplingRow(params, 0, 3, num_prompt_tokens=2, end_token_ids=[1], allowed=bytes([0b110]))
    assert (adjusted_copy(torch.zeros(4), more) > -math.inf).nonzero().squeeze(-1).tolist() == [2]
