"""Weights in codes, laid out once for the Triton products: 16-bit words that become tensor-core operands.

Owns the layout "words". A word holds four 4-bit or two 8-bit codes of one output. A step is a row of 16 or 32 words for
each output, and the codes at one place of its words (the lowest four bits, say) are neighbouring inputs of one group: a
product needs no shuffling, only a shift and a mask. Steps of all outputs lie together, outputs padded to whole tiles.
Invariant: codes, scales, minima and zeros keep their bits and dtypes; only padding is added. Inputs of a group that
fits no step are padded as well, and the kernels read zeros there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.group_quant import GroupQuant

WORDS = "words"
TILE = 128  # outputs
_PREPARED_AT_ONCE = 1 << 26  # codes


@dataclass(frozen=True, slots=True)
class StepShape:
    """How codes fall into steps.

    words: words of an output in a step. places: codes of a word. groups: groups that a step holds. steps_per_group:
    steps that a group takes; this or `groups` is 1. steps: in all.
    """

    words: int
    places: int
    groups: int
    steps_per_group: int
    steps: int

    @property
    def inputs(self) -> int:
        """Inputs of a step, padding included."""
        return self.words * self.places


@dataclass(frozen=True, slots=True)
class WordsQuant(GroupQuant):
    """A GroupQuant in layout "words".

    codes: int16 [steps, padded outputs, words]; scale, minimum [S, padded outputs]; zero, sub_scale, sub_minimum
    [G, padded outputs]. group_size is at most the number of inputs.
    """

    step: StepShape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", step_shape(self))


def step_shape(weight: GroupQuant) -> StepShape:
    """The steps of a weight, from its bits, group size and inputs."""
    places = 16 // weight.bits
    group_size = min(weight.group_size, weight.shape[1])
    if group_size <= 16 * places:
        words = 16
        groups = 16 * places // (1 << max(4, (group_size - 1).bit_length()))
        return StepShape(words, places, groups, 1, -(-weight.num_groups // groups))
    # two short steps are better than a long one that is half empty
    words = 32 if -(-group_size // (16 * places)) % 2 == 0 else 16
    steps_per_group = -(-group_size // (words * places))
    return StepShape(words, places, 1, steps_per_group, weight.num_groups * steps_per_group)


def in_words(weight: GroupQuant) -> WordsQuant:
    """The same weight in layout "words"."""
    changed = {
        name: tensor.contiguous() if name == "perm" else _whole_tiles(tensor).t().contiguous()
        for name, tensor in weight.tensors().items()
        if name != "codes"
    }
    kept = {item.name: getattr(weight, item.name) for item in fields(GroupQuant)}
    kept |= {"group_size": min(weight.group_size, weight.shape[1]), "layout": WORDS}
    return WordsQuant(**kept | changed | {"codes": _words(weight)})


def _whole_tiles(rows: Tensor) -> Tensor:
    """[N, n] -> [padded outputs, n], with zeros for outputs that are not there."""
    return pad(rows, (0, 0, 0, -rows.shape[0] % TILE))


def _words(weight: GroupQuant) -> Tensor:
    """int16 [steps, padded outputs, words], a part of the outputs at a time."""
    outputs, inputs = weight.shape
    step = step_shape(weight)
    words = torch.zeros(
        step.steps, -(-outputs // TILE) * TILE, step.words, dtype=torch.int16, device=weight.codes.device
    )
    at_once = max(TILE, _PREPARED_AT_ONCE // inputs)
    for first in range(0, outputs, at_once):
        part = slice(first, min(first + at_once, outputs))
        codes = _padded_groups(weight.rows(part).expanded_codes(), weight, step)
        if step.places == 4:
            codes = codes[:, :, 0::2] | (codes[:, :, 1::2] << 4)
        words[:, part] = codes.transpose(2, 3).contiguous().view(torch.int16).squeeze(-1).transpose(0, 1)
    return words


def _padded_groups(codes: Tensor, weight: GroupQuant, step: StepShape) -> Tensor:
    """uint8 [n, K] -> [n, steps, places, words], with zeros where a group or the last step is not whole."""
    group_size = min(weight.group_size, weight.shape[1])
    whole = pad(codes, (0, weight.num_groups * group_size - weight.shape[1]))
    groups = whole.view(len(codes), weight.num_groups, group_size)
    padded_size = step.inputs * step.steps_per_group // step.groups
    missing = step.steps * step.groups // step.steps_per_group - weight.num_groups
    groups = pad(groups, (0, padded_size - group_size, 0, missing))
    return groups.reshape(len(codes), step.steps, step.places, step.words)
