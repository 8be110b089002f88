"""The processors take all rows at once: every row gets the bits that it got when each was processed by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.core.sampling_params import SamplingParams
from engine.sample.penalties import LARGEST_EXPONENT, repetitions
from engine.sample.processors import adjust, apply_grammar, hold_back_ends, keep_allowed
from engine.sample.row import SamplingRow
from tests.engine.test_processors import PARAMS, TOKENS, VOCABULARY


def one_row(logits: Tensor, row: SamplingRow) -> None:
    """The chain as it was: a row of logits [V] at a time."""
    sampling, seen = row.sampling, list(row.token_ids)
    if sampling.logit_bias:
        logits[list(sampling.logit_bias)] += torch.tensor(list(sampling.logit_bias.values()), dtype=logits.dtype)
    ends = [word[-1] for word in sampling.bad_words if tuple(seen[len(seen) - len(word) + 1 :]) == word[:-1]]
    if ends:
        logits[ends] = -math.inf
    penalty = sampling.repetition_penalty
    if penalty != 1.0 and seen:
        text = torch.tensor(seen)
        before = logits.index_select(0, text)
        logits.index_copy_(0, text, torch.where(before > 0, before / penalty, before * penalty))
    output = seen[row.num_prompt_tokens :]
    if (sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0) and output:
        text = torch.tensor(output)
        counts = torch.bincount(text).index_select(0, text).double()
        amounts = sampling.presence_penalty + sampling.frequency_penalty * counts
        logits.index_copy_(0, text, logits.index_select(0, text) - amounts.to(logits.dtype))
    if sampling.dry_multiplier != 0.0:
        growth, allowed = math.log(sampling.dry_base), sampling.dry_allowed_length
        most = allowed + int(LARGEST_EXPONENT / growth if growth > 0.0 else LARGEST_EXPONENT)
        lost = {
            token: sampling.dry_multiplier * sampling.dry_base ** (length - allowed)
            for token, length in repetitions(seen, frozenset(sampling.dry_sequence_breakers), most).items()
            if length >= allowed
        }
        if lost:
            logits[list(lost)] -= torch.tensor(list(lost.values()), dtype=logits.dtype)
    for processor in (apply_grammar, keep_allowed, hold_back_ends):
        processor(logits.unsqueeze(0), {0: row})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(PARAMS, st.lists(TOKENS, min_size=1, max_size=14)), min_size=1, max_size=6), st.data())
def test_rows_at_once_have_the_bits_of_one_at_a_time(
    dtype: torch.dtype, wishes: list[tuple[dict[str, Any], list[int]]], data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    scores = torch.randn(len(wishes) + 1, VOCABULARY, generator=generator).to(dtype) * 2
    rows = {}
    for index, (fields, text) in enumerate(wishes):
        params = SamplingParams(**fields)
        prompt = data.draw(st.integers(1, len(text)))
        ends = [2, 7] if params.min_tokens else []
        seen = text if params.needs_token_ids else ()
        rows[index + (index > 0)] = SamplingRow(params, 0, len(text), 0, prompt, seen, ends)  # row 1 is nobody's
    expected = scores.clone()
    for index, row in rows.items():
        one_row(expected[index], row)
    adjust(scores, rows)
    assert torch.equal(scores, expected)


class OnDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is done on the device, for which torch's own "meta" stands in; what lies there comes from the CPU."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += isinstance(result, Tensor) and result.device.type == "meta"
        return result


def test_more_rows_are_no_more_calls_to_the_device() -> None:
    wish = SamplingParams(
        logit_bias={3: 1.0},
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.1,
        bad_words=((4,),),
        dry_multiplier=0.8,
        dry_allowed_length=1,
    )

    def calls(count: int) -> int:
        rows = {index: SamplingRow(wish, 0, 4, 0, 1, [1, 2, 1, 5 + index, 1]) for index in range(count)}
        scores = torch.zeros(count, 20, device="meta")
        with OnDevice() as device:  # type: ignore[no-untyped-call]
            adjust(scores, rows)
        return int(device.calls)

    assert 0 < calls(8) <= calls(1)
