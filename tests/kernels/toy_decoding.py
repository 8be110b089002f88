"""A toy target whose next token depends on the last one, decoded with drafts by the real ops, many requests at once.

Owns the turn: draft, scores of all rows, verify, keep what is emitted, and go on behind it. The verification is given,
so that one with a mistake goes through the same turn; so are the mistakes that a caller can make. Noise is addressed as
in the engine: seed, position, sample index, stream. Knows nothing of tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.noise import MASK32, Stream, philox4x32
from kernels.ops import Ops

Verifier = Callable[["Turn"], tuple[Tensor, Tensor]]
FIRST_POSITION = 5
ALL = (1.0, 0.0, 1.0, 0.0)  # temperature, top_k, top_p, min_p that leave the logits as they are


@dataclass(frozen=True)
class Toy:
    """logits, draft_logits: fp32 [V last, V next]. settings, draft_settings: see `kernels.ops.FilterScores`.

    draft_vocabulary: bool [V], what the drafter can propose; None: everything. certain: drafts are its likeliest token,
    and its law is told as such. stream: of the drafts' noise.
    """

    logits: Tensor
    draft_logits: Tensor
    settings: tuple[float, float, float, float] = ALL
    draft_settings: tuple[float, float, float, float] = ALL
    draft_vocabulary: Tensor | None = None
    certain: bool = False
    stream: int = Stream.DRAFT
    num_drafts: int = 2

    @property
    def size(self) -> int:
        return self.logits.shape[1]


@dataclass(frozen=True)
class Turn:
    """One verification of N requests with k drafts each, and what a mistaken one might look at.

    logits, scores, draft_scores, free_draft_scores [N, k + 1, V]: the target's before and after the processors, the
    drafter's after and before its own. drafts [N, k + 1] with -1 last; addresses [N, k + 1, 4].
    """

    logits: Tensor
    scores: Tensor
    free_draft_scores: Tensor
    draft_scores: Tensor
    drafts: Tensor
    addresses: Tensor


@dataclass(frozen=True)
class Decoded:
    """tokens [N, at least the length asked for]; accepted [N] and drafts [N, k] of the first turn."""

    tokens: Tensor
    accepted: Tensor
    drafts: Tensor


def random_toy(size: int, seed: int = 0) -> Toy:
    """A drafter that is neither right nor far off."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, size, generator=generator) * 1.2
    return Toy(logits, 0.6 * logits + 0.6 * torch.randn(size, size, generator=generator))


def filtered(ops: Ops, logits: Tensor, settings: tuple[float, float, float, float]) -> Tensor:
    """Rows of logits [.., V] as they are drawn from."""
    rows = logits.reshape(-1, logits.shape[-1]).contiguous()
    out = torch.empty_like(rows)
    ops.filter_scores(out, rows, torch.tensor(settings, dtype=torch.float64).repeat(len(rows), 1))
    return out.view(logits.shape)


def target_law(ops: Ops, toy: Toy) -> Tensor:
    """fp64 [V last, V next]."""
    return filtered(ops, toy.logits, toy.settings).double().softmax(1)


def draft_scores(ops: Ops, toy: Toy) -> Tensor:
    """fp32 [V last, V next]: what drafts are drawn from."""
    logits = toy.draft_logits
    if toy.draft_vocabulary is not None:
        logits = logits.masked_fill(~toy.draft_vocabulary, -torch.inf)
    scores = filtered(ops, logits, toy.draft_settings)
    if toy.certain:
        best = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.argmax(1, keepdim=True), True)
        scores = torch.where(best, 0.0, -torch.inf)
    return scores


def decode(
    ops: Ops, toy: Toy, verify: Verifier, number: int, length: int, *, seed: int = 0, keeps_rejected: bool = False
) -> Decoded:
    """`number` requests with seeds from `seed` on, each from token 0 until it has `length` tokens.

    keeps_rejected: the mistake to go on behind the draft that was rejected instead of what replaced it.
    """
    count = toy.num_drafts
    tokens = torch.full((number, length + count + 1), -1)
    lengths = torch.zeros(number, dtype=torch.int64)
    last = torch.zeros(number, dtype=torch.int64)
    seeds = torch.arange(seed, seed + number)
    first: tuple[Tensor, Tensor] | None = None
    draft_table = draft_scores(ops, toy)
    while (lengths < length).any():
        left = (lengths < length).nonzero().squeeze(1)
        turn = _turn(ops, toy, draft_table, last[left], seeds[left], lengths[left])
        out, accepted = verify(turn)
        if first is None:
            first = accepted, turn.drafts[:, :-1]
        columns = lengths[left, None] + torch.arange(count + 1)
        kept = torch.where(out >= 0, out, tokens[left].gather(1, columns))
        tokens[left] = tokens[left].scatter(1, columns, kept)
        lengths[left] += accepted + 1
        newest = out.gather(1, accepted.long()[:, None]).squeeze(1)
        if keeps_rejected:
            rejected = turn.drafts.gather(1, accepted.long()[:, None]).squeeze(1)
            newest = torch.where(rejected >= 0, rejected, newest)
        last[left] = newest
    assert first is not None
    return Decoded(tokens[:, :length], *first)


def _turn(ops: Ops, toy: Toy, draft_table: Tensor, last: Tensor, seeds: Tensor, lengths: Tensor) -> Turn:
    count, number = toy.num_drafts, len(last)
    positions = FIRST_POSITION + lengths[:, None] + torch.arange(count + 1)
    addresses = torch.stack(
        [seeds[:, None].expand_as(positions), positions, torch.zeros_like(positions), torch.zeros_like(positions)], 2
    )
    context = [last]
    for row in range(count):
        at = addresses[:, row].clone()
        at[:, 3] = toy.stream
        drawn = torch.empty(number, dtype=torch.int64)
        ops.draw(drawn, draft_table[context[-1]], at)
        context.append(drawn)
    seen = torch.stack(context, 1)
    logits = toy.logits[seen]
    drafts = torch.cat([seen[:, 1:], torch.full((number, 1), -1)], 1)
    return Turn(
        logits, filtered(ops, logits, toy.settings), toy.draft_logits[seen], draft_table[seen], drafts, addresses
    )


def by_match(ops: Ops) -> Verifier:
    """The rule `match`: the target draws on all rows, and the op compares."""

    def verify(turn: Turn) -> tuple[Tensor, Tensor]:
        number, rows, size = turn.scores.shape
        drawn, out = torch.empty(number * rows, dtype=torch.int64), torch.empty(number * rows, dtype=torch.int64)
        ops.draw(drawn, turn.scores.view(-1, size), turn.addresses.view(-1, 4).contiguous())
        accepted = torch.empty(number, dtype=torch.int32)
        ops.verify_match(out, accepted, drawn, turn.drafts.flatten(), starts(number, rows))
        return out.view(number, rows), accepted

    return verify


def by_rejection(ops: Ops) -> Verifier:
    """The rule `rejection`."""

    def verify(turn: Turn) -> tuple[Tensor, Tensor]:
        number, rows, size = turn.scores.shape
        out, accepted = torch.empty(number * rows, dtype=torch.int64), torch.empty(number, dtype=torch.int32)
        ops.verify_rejection(
            out,
            accepted,
            turn.scores.view(-1, size),
            turn.draft_scores.reshape(-1, size).contiguous(),
            turn.drafts.flatten(),
            starts(number, rows),
            turn.addresses.view(-1, 4).contiguous(),
        )
        return out.view(number, rows), accepted

    return verify


def starts(number: int, rows: int) -> Tensor:
    return torch.arange(number + 1, dtype=torch.int32) * rows


def noise_of(addresses: Tensor, stream: int, size: int) -> tuple[Tensor, Tensor]:
    """The uniform number fp64 [..] and the Gumbel noise fp64 [.., V] of many addresses [.., 4], on a stream."""
    flat = addresses.reshape(-1, 4)
    blocks = torch.arange(-(-size // 4)).expand(len(flat), -1)
    seed, position, index = (flat[:, column, None].expand_as(blocks) for column in range(3))
    counter = (blocks, position, index, torch.full_like(blocks, stream))
    words = torch.stack(philox4x32(counter, (seed & MASK32, (seed >> 32) & MASK32)), 2)
    uniforms = (words.view(len(flat), -1)[:, :size].double() + 0.5) / 2.0**32
    shape = addresses.shape[:-1]
    return uniforms[:, 0].view(shape), -torch.log(-torch.log1p(-uniforms)).view(*shape, size)
