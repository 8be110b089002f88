"""The exact distribution of what a verification emits: its noise is integrated out, not sampled.

Owns the measuring. `verify_rejection` runs with numbers in place of its noise: a draft is accepted below some u, which
bisection finds, and that is the probability of acceptance; a draw falls on one of two tokens by the difference of their
noise, which bisection finds too, and that is the logarithm of the ratio of their probabilities. What `verify_match`
compares is drawn before it, so all pairs of drafts and draws are gone through with the probabilities of the cells of
the noise that make them; where drafter and target share the noise, `shared_cells` integrates over it in closed form.
From these the joint distribution of all that is emitted is summed, in fp64. Knows nothing of who makes the scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import Tensor

from kernels.noise import Stream
from kernels.ops import VerifyMatch, VerifyRejection
from kernels.reference import verify

Prefix = tuple[int, ...]
Tables = dict[Prefix, Tensor]  # of the next token, fp64 [V], by what came before: probabilities or scores
Coupling = Callable[[Tensor, Tensor], Tensor]  # draft law [V], target law [V] -> both at once [V drafted, V drawn]
FAR = 1e9
HALVINGS = 56
NEGLIGIBLE = 1e-16


@dataclass(frozen=True)
class Sides:
    """What is true, and what a verification is told.

    target, draft: the laws of the next token, the draft's being the one that drafts are really drawn from. told_target,
    told_draft: scores, as the verification gets them; a right caller tells the logarithms of the laws.
    """

    target: Tables
    draft: Tables
    told_target: Tables
    told_draft: Tables

    @classmethod
    def honest(cls, target: Tables, draft: Tables) -> Sides:
        """Those of a caller without mistakes."""
        return cls(target, draft, logarithms(target), logarithms(draft))

    @property
    def size(self) -> int:
        return len(self.target[()])


def logarithms(laws: Tables) -> Tables:
    return {prefix: law.log() for prefix, law in laws.items()}


def laws(scores: Tables) -> Tables:
    return {prefix: one.softmax(0) for prefix, one in scores.items()}


def prefixes(size: int, length: int) -> Iterator[Prefix]:
    """All of up to `length` tokens."""
    for number in range(length + 1):
        yield from itertools.product(range(size), repeat=number)


def random_tables(seed: int, size: int, length: int, holes: float) -> Tables:
    """A distribution of the next token after every prefix of up to `length` tokens; some tokens are out."""
    generator = torch.Generator().manual_seed(seed)
    tables = {}
    for prefix in prefixes(size, length):
        scores = torch.randn(size, generator=generator, dtype=torch.float64) * 1.5
        scores[1:].masked_fill_(torch.rand(size - 1, generator=generator) < holes, -math.inf)
        tables[prefix] = scores.softmax(0)
    return tables


def certain(tables: Tables) -> Tables:
    """A drafter that always proposes its likeliest token: all of the probability on it."""
    found = {}
    for prefix, law in tables.items():
        found[prefix] = torch.zeros_like(law)
        found[prefix][int(law.argmax())] = 1.0
    return found


@dataclass
class ChosenNoise:
    """What the op gets for noise, by position."""

    uniforms: dict[int, float] = field(default_factory=dict)
    gumbels: dict[int, Tensor] = field(default_factory=dict)

    @contextmanager
    def given(self) -> Iterator[None]:
        """Within, the reference and the mutants draw from this."""

        def chosen_uniform(seed: int, position: int, sample_index: int, stream: int) -> float:
            assert stream == Stream.ACCEPT
            return self.uniforms[position]

        def chosen_gumbel(
            size: int, seed: int, position: int, sample_index: int, stream: int, device: object
        ) -> Tensor:
            assert stream in (Stream.RESIDUAL, Stream.TARGET)
            return self.gumbels[position]

        with (
            mock.patch.object(verify, "uniform", chosen_uniform),
            mock.patch.object(verify, "gumbel_vocabulary", chosen_gumbel),
        ):
            yield


def bisect(low: float, high: float, below: Callable[[float], bool]) -> float:
    """Where `below` turns from true to false; low or high where it never does."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


class Measured:
    """One verification of some drafts, as a function of its noise."""

    def __init__(self, op: VerifyRejection, sides: Sides, drafts: Prefix) -> None:
        rows = [drafts[:row] for row in range(len(drafts) + 1)]
        self.op = op
        self.size = sides.size
        self.scores = torch.stack([sides.told_target[prefix] for prefix in rows])
        self.draft_scores = torch.stack([sides.told_draft[prefix] for prefix in rows])
        self.draft_scores[-1] = math.nan
        self.drafts = torch.tensor([*drafts, -1])
        self.addresses = torch.tensor([[7, row, 0, 0] for row in range(len(rows))])

    def run(self, noise: ChosenNoise) -> tuple[int, list[int]]:
        out, accepted = torch.empty(len(self.drafts), dtype=torch.int64), torch.empty(1, dtype=torch.int32)
        starts = torch.tensor([0, len(self.drafts)], dtype=torch.int32)
        with noise.given():
            self.op(out, accepted, self.scores, self.draft_scores, self.drafts, starts, self.addresses)
        return int(accepted), out.tolist()

    def acceptance(self, row: int) -> float:
        """The probability that the draft of `row` is accepted once all before it are."""
        some = {place: torch.zeros(self.size, dtype=torch.float64) for place in range(len(self.drafts))}

        def accepted(u: float) -> bool:
            uniforms = dict.fromkeys(range(row), 0.0) | {row: u} | dict.fromkeys(range(row + 1, len(self.drafts)), 1.0)
            return self.run(ChosenNoise(uniforms, some))[0] > row

        return bisect(0.0, 1.0, accepted)

    def replacement(self, row: int) -> Tensor:
        """The distribution of the token in `row` once all drafts before it are accepted and its own is not."""
        uniforms = dict.fromkeys(range(row), 0.0) | dict.fromkeys(range(row, len(self.drafts)), 1.0)

        def drawn(noise: dict[int, float]) -> int:
            values = torch.full((self.size,), -FAR, dtype=torch.float64)
            for token, value in noise.items():
                values[token] = value
            accepted, tokens = self.run(ChosenNoise(uniforms, dict.fromkeys(range(len(self.drafts)), values)))
            assert accepted == row
            return tokens[row]

        possible = [token for token in range(self.size) if drawn({token: 0.0}) == token]
        logarithms = torch.full((self.size,), -math.inf, dtype=torch.float64)
        logarithms[possible[0]] = 0.0
        for token in possible[1:]:
            logarithms[token] = bisect(-60.0, 60.0, lambda ratio, t=token: drawn({possible[0]: ratio, t: 0.0}) == t)
        return logarithms.softmax(0)


def emitted_by_rejection(op: VerifyRejection, sides: Sides, length: int, *, every_path: bool = False) -> Tensor:
    """The joint distribution of the next length + 1 tokens, fp64 [V, ..., V]: what one verification of `length` drafts
    emits, and what the target says after that.

    every_path: what happens at a draft is measured again for all drafts that may stand behind it; else once.
    """
    size = sides.size
    joint = torch.zeros((size,) * (length + 1), dtype=torch.float64)
    known: dict[Prefix, float | Tensor] = {}
    for drafts in itertools.product(range(size), repeat=length):
        reached = math.prod(float(sides.draft[drafts[:row]][token]) for row, token in enumerate(drafts))
        if reached == 0.0:
            continue
        measured = Measured(op, sides, drafts)
        if every_path:
            known.clear()
        for row in range(length + 1):
            accepted = 0.0
            if row < length:
                seen = drafts[: row + 1]
                accepted = float(known[seen] if seen in known else known.setdefault(seen, measured.acceptance(row)))
            if accepted < 1.0 - 1e-14:
                place = (row, *drafts[: row + 1], -1)
                if place not in known:
                    known[place] = measured.replacement(row)
                replaced = known[place]
                assert isinstance(replaced, Tensor)
                for token in range(size):
                    share = reached * (1 - accepted) * float(replaced[token])
                    _add(joint, sides.target, (*drafts[:row], token), share)
            reached *= accepted
            if reached < NEGLIGIBLE:
                break
    return joint


def independent_cells(draft: Tensor, target: Tensor) -> Tensor:
    """Drafted and drawn with noise of their own."""
    return torch.outer(draft, target)


def shared_cells(draft: Tensor, target: Tensor) -> Tensor:
    """Both drawn with the same noise (`Stream.TARGET`), as proposers do for the rule `match`.

    Gumbel-max is a race of exponentials e_v: the draft is the first of e_v / q_v, the draw the first of e_v / p_v. For
    draft a and draw b, a not b, let r = e_a / e_b; all the others have to come later than both, which has the
    probability exp(-e_b c(r)), c(r) = 1 + r + sum over them of max(p_v / p_b, r q_v / q_a). Integrated over e_b that
    leaves dr / c(r)^2, and between two corners of the piecewise linear c the integral is (r1 - r0) / (c(r0) c(r1)).
    """
    size = len(draft)
    cells = torch.zeros(size, size, dtype=torch.float64)
    q, p = draft.tolist(), target.tolist()
    for a, b in itertools.product(range(size), repeat=2):
        if q[a] == 0.0 or p[b] == 0.0:
            continue
        if a == b:
            cells[a, a] = 1 / sum(max(q[v] / q[a], p[v] / p[a]) for v in range(size))
            continue
        others = [v for v in range(size) if v not in (a, b)]

        def weight(r: float, a: int = a, b: int = b, others: list[int] = others) -> float:
            return 1 + r + sum(max(p[v] / p[b], r * q[v] / q[a]) for v in others)

        low, high = p[a] / p[b], q[a] / q[b] if q[b] > 0.0 else math.inf
        if low >= high:
            continue
        corners = sorted({p[v] * q[a] / (p[b] * q[v]) for v in others if q[v] > 0.0})
        points = [low, *(r for r in corners if low < r < high), high]
        for r0, r1 in itertools.pairwise(points):
            slope = 1 + sum(q[v] / q[a] for v in others)  # of c where r is large
            cells[a, b] += (
                1 / (slope * weight(r0)) if math.isinf(r1) else (r1 - r0) / (weight(r0) * weight(r1))
            )  # the last corner lies below r0 where r1 is infinite
    return cells


def emitted_by_match(op: VerifyMatch, sides: Sides, length: int, coupling: Coupling) -> Tensor:
    """As `emitted_by_rejection`: all drafts and all draws of the target, verified in one call."""
    size, rows = sides.size, length + 1
    drawn_laws = laws(sides.told_target)
    chances = torch.ones(1, 1, dtype=torch.float64)  # of the drafts so far, and of the draws so far
    for row in range(length):
        paths = itertools.product(range(size), repeat=row)
        cells = torch.stack([coupling(sides.draft[path], drawn_laws[path]) for path in paths])
        chances = (chances[:, None, :, None] * cells[:, :, None, :]).reshape(size ** (row + 1), -1)
    last = torch.stack([drawn_laws[path] for path in itertools.product(range(size), repeat=length)])
    chances = (chances[:, :, None] * last[:, None, :]).reshape(len(last), -1)
    places = chances.nonzero()
    digits = size ** torch.arange(rows).flip(0)
    drawn = places[:, 1:] // digits % size
    drafts = torch.cat([places[:, :1] // digits[1:] % size, torch.full((len(places), 1), -1)], 1)
    out, accepted = torch.full((len(places) * rows,), 77), torch.empty(len(places), dtype=torch.int32)
    starts = torch.arange(len(places) + 1, dtype=torch.int32) * rows
    op(out, accepted, drawn.flatten(), drafts.flatten(), starts)
    emitted = out.view(-1, rows)
    assert torch.equal(emitted >= 0, torch.arange(rows) <= accepted.unsqueeze(1))
    found, which = torch.unique(emitted, dim=0, return_inverse=True)
    shares = torch.zeros(len(found), dtype=torch.float64).index_add_(0, which, chances[places[:, 0], places[:, 1]])
    joint = torch.zeros((size,) * rows, dtype=torch.float64)
    for tokens, share in zip(found.tolist(), shares.tolist(), strict=True):
        _add(joint, sides.target, tuple(token for token in tokens if token >= 0), share)
    return joint


def _add(joint: Tensor, target: Tables, tokens: Prefix, probability: float) -> None:
    """A sequence that was emitted, continued by the target."""
    if len(tokens) == joint.dim():
        joint[tokens] += probability
        return
    for token, share in enumerate(target[tokens].tolist()):
        if probability * share > 0.0:
            _add(joint, target, (*tokens, token), probability * share)


def own_joint(target: Tables, length: int) -> Tensor:
    """The target's joint distribution of the next length + 1 tokens."""
    joint = torch.zeros((len(target[()]),) * (length + 1), dtype=torch.float64)
    _add(joint, target, (), 1.0)
    return joint


def largest_error(joint: Tensor, target: Tables) -> float:
    return float((joint - own_joint(target, joint.dim() - 1)).abs().max())
