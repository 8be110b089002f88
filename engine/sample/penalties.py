"""The processors that change or forbid single tokens, each for some rows of scores [S, V] at once, in place.

What they do to all rows goes to the device in one copy, and no row's result depends on the others. Token ids are those
of the vocabulary: `Engine.add_request` refuses others, which would be another row's here. A token that stands in the
text several times is computed as often, always to the same result: for a long text that costs less than to find the
different ones. Definitions: logit bias, presence and frequency penalty: OpenAI's API reference. Bad words: the last
token of a word is forbidden where the tokens before it stand at the end of the text (transformers' NoBadWords).
Repetition penalty: CTRL, arXiv 1909.05858, as transformers has it: prompt and output count. DRY: its author's original,
text-generation-webui pull request 5677.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.sample.row import SamplingRow

Rows = Mapping[int, SamplingRow]  # by their place in the scores
LARGEST_EXPONENT = 80.0  # e to this is finite in fp32


def add_bias(scores: Tensor, rows: Rows) -> None:
    """logit_bias: added once."""
    _add(scores, {index: row.sampling.logit_bias for index, row in rows.items()})


def forbid_bad_words(scores: Tensor, rows: Rows) -> None:
    """bad_words: the token that would complete a word cannot come."""
    ends = [
        index * scores.shape[1] + word[-1]
        for index, row in rows.items()
        for word in row.sampling.bad_words
        if tuple(row.token_ids[len(row.token_ids) - len(word) + 1 :]) == word[:-1]
    ]
    if ends:
        scores.view(-1)[_ids(scores, ends)] = -math.inf


def penalise_repetition(scores: Tensor, rows: Rows) -> None:
    """repetition_penalty: the logit of every token seen is divided when positive, multiplied when negative.

    At once for all rows that have the same one: by a number a GPU divides otherwise than by a tensor of such.
    """
    alike: dict[float, dict[int, Tensor]] = {}
    for index, row in rows.items():
        if row.sampling.repetition_penalty != 1.0 and len(row.token_ids) > 0:
            alike.setdefault(row.sampling.repetition_penalty, {})[index] = _tensor(row.token_ids)
    flat = scores.view(-1)
    for penalty, texts in alike.items():
        places = _places(scores, texts)
        before = flat.index_select(0, places)
        flat.index_copy_(0, places, torch.where(before > 0, before / penalty, before * penalty))


def penalise_presence_and_frequency(scores: Tensor, rows: Rows) -> None:
    """presence_penalty once, frequency_penalty as often as a token stands in the output."""
    texts: dict[int, Tensor] = {}
    amounts: list[Tensor] = []
    for index, row in rows.items():
        presence, frequency = row.sampling.presence_penalty, row.sampling.frequency_penalty
        output = row.token_ids[row.num_prompt_tokens :]
        if (presence == 0.0 and frequency == 0.0) or len(output) == 0:
            continue
        texts[index] = text = _tensor(output)
        counts = torch.bincount(text).index_select(0, text).double()
        amounts.append((presence + frequency * counts).to(scores.dtype))
    if texts:
        places, flat = _places(scores, texts), scores.view(-1)
        left = flat.index_select(0, places) - torch.cat(amounts).to(scores.device)
        flat.index_copy_(0, places, left)


def penalise_continuations(scores: Tensor, rows: Rows) -> None:
    """dry_*: a token that would lengthen a repetition of n tokens loses multiplier * base^(n - allowed_length).

    The exponent stops growing where floats would overflow, and longer repetitions need not be told apart.
    """
    _add(scores, {index: _continuations(row) for index, row in rows.items() if row.sampling.dry_multiplier != 0.0})


def _continuations(row: SamplingRow) -> dict[int, float]:
    """By token what it gains from the dry_* of a row: less than nothing."""
    sampling = row.sampling
    growth = math.log(sampling.dry_base)
    most = sampling.dry_allowed_length + int(LARGEST_EXPONENT / growth if growth > 0.0 else LARGEST_EXPONENT)
    return {
        token_id: -(sampling.dry_multiplier * sampling.dry_base ** (length - sampling.dry_allowed_length))
        for token_id, length in repetitions(row.token_ids, frozenset(sampling.dry_sequence_breakers), most).items()
        if length >= sampling.dry_allowed_length
    }


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


def _places(scores: Tensor, texts: Mapping[int, Tensor]) -> Tensor:
    """Where the tokens of each row's text stand in the flat scores, int64, on their device."""
    places = torch.empty(sum(map(len, texts.values())), dtype=torch.int64)
    start = 0
    for index, text in texts.items():
        torch.add(text, index * scores.shape[1], out=places[start : start + len(text)])
        start += len(text)
    return places.to(scores.device)


def _add(scores: Tensor, amounts: Mapping[int, Mapping[int, float]]) -> None:
    """Adds to each row what `amounts` has for its tokens."""
    places = [index * scores.shape[1] + token_id for index, of_row in amounts.items() for token_id in of_row]
    if places:
        added = [amount for of_row in amounts.values() for amount in of_row.values()]
        scores.view(-1)[_ids(scores, places)] += torch.tensor(added, dtype=scores.dtype, device=scores.device)


def _ids(scores: Tensor, places: list[int]) -> Tensor:
    return torch.tensor(places, dtype=torch.int64, device=scores.device)
