"""The processors that change or forbid single tokens, each for one row of logits, in place.

A token that stands in the text several times is computed as often, always to the same result: for a long text that
costs less than to find the different ones. Definitions: logit bias, presence and frequency penalty: OpenAI's API
reference. Bad words: the last token of a word is forbidden where the tokens before it stand at the end of the text
(transformers' NoBadWords). Repetition penalty: CTRL, arXiv 1909.05858, as transformers has it: prompt and output count.
DRY: its author's original, text-generation-webui pull request 5677.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.sample.row import SamplingRow

LARGEST_EXPONENT = 80.0  # e to this is finite in fp32


def add_bias(logits: Tensor, row: SamplingRow) -> None:
    """logit_bias: added once."""
    bias = row.sampling.logit_bias
    if bias:
        logits[_ids(logits, list(bias))] += torch.tensor(list(bias.values()), dtype=logits.dtype, device=logits.device)


def forbid_bad_words(logits: Tensor, row: SamplingRow) -> None:
    """bad_words: the token that would complete a word cannot come."""
    seen = row.token_ids
    ends = [word[-1] for word in row.sampling.bad_words if tuple(seen[len(seen) - len(word) + 1 :]) == word[:-1]]
    if ends:
        logits[_ids(logits, ends)] = -math.inf


def penalise_repetition(logits: Tensor, row: SamplingRow) -> None:
    """repetition_penalty: the logit of every token seen is divided when positive, multiplied when negative."""
    penalty = row.sampling.repetition_penalty
    if penalty != 1.0 and len(row.token_ids) > 0:
        text = _tensor(row.token_ids).to(logits.device)
        before = logits.index_select(0, text)
        logits.index_copy_(0, text, torch.where(before > 0, before / penalty, before * penalty))


def penalise_presence_and_frequency(logits: Tensor, row: SamplingRow) -> None:
    """presence_penalty once, frequency_penalty as often as a token stands in the output."""
    presence, frequency = row.sampling.presence_penalty, row.sampling.frequency_penalty
    output = row.token_ids[row.num_prompt_tokens :]
    if (presence == 0.0 and frequency == 0.0) or len(output) == 0:
        return
    text = _tensor(output)
    amounts = presence + frequency * torch.bincount(text).index_select(0, text).double()
    text = text.to(logits.device)
    left = logits.index_select(0, text) - amounts.to(logits.dtype).to(logits.device)
    logits.index_copy_(0, text, left)


def penalise_continuations(logits: Tensor, row: SamplingRow) -> None:
    """dry_*: a token that would lengthen a repetition of n tokens loses multiplier * base^(n - allowed_length).

    The exponent stops growing where floats would overflow, and longer repetitions need not be told apart.
    """
    sampling = row.sampling
    if sampling.dry_multiplier == 0.0:
        return
    growth = math.log(sampling.dry_base)
    most = sampling.dry_allowed_length + int(LARGEST_EXPONENT / growth if growth > 0.0 else LARGEST_EXPONENT)
    amounts = {
        token_id: sampling.dry_multiplier * sampling.dry_base ** (length - sampling.dry_allowed_length)
        for token_id, length in repetitions(row.token_ids, frozenset(sampling.dry_sequence_breakers), most).items()
        if length >= sampling.dry_allowed_length
    }
    if amounts:
        penalty = torch.tensor(list(amounts.values()), dtype=logits.dtype, device=logits.device)
        logits[_ids(logits, list(amounts))] -= penalty


def repetitions(token_ids: Sequence[int], breakers: frozenset[int], most: int) -> dict[int, int]:
    """For each token that once followed the text's present ending: the length of the longest ending it followed.

    Lengths count up to `most`. No ending reaches over a breaker, and a breaker is never such a token.
    """
    since_breaker = next((n for n, token_id in enumerate(reversed(token_ids)) if token_id in breakers), len(token_ids))
    if len(token_ids) < 2:
        return {}
    text = _tensor(token_ids)
    ends = torch.arange(len(text) - 1)  # where an earlier copy of the ending may end, as far as it has been compared
    lengths = torch.zeros(int(text.max()) + 1, dtype=torch.int64)  # of each follower
    length, longest = 0, min(most, since_breaker)
    while length < longest and len(ends) > 0:
        goes_on = (ends >= length) & (text[ends - length] == text[-1 - length])
        lengths[text[ends[~goes_on] + 1]] = length
        ends = ends[goes_on]
        length += 1
    lengths[text[ends + 1]] = length
    followers = lengths.nonzero().squeeze(-1).tolist()
    return {token_id: int(lengths[token_id]) for token_id in followers if token_id not in breakers}


def _tensor(token_ids: Sequence[int]) -> Tensor:
    """int64 [n], n above 0. Of an array it is the array's own memory, for a moment: an array that is in use as a tensor
    cannot grow."""
    numbers = token_ids if isinstance(token_ids, array) else array("q", token_ids)
    return torch.frombuffer(numbers, dtype=torch.int64)


def _ids(logits: Tensor, token_ids: list[int]) -> Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
