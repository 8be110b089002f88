"""Rejection sampling gives exactly the target's distribution: measured on the reference through its noise, not sampled.

The noise is replaced by numbers that the test chooses. A draft is accepted below some u: bisection finds it, and that
is the probability of acceptance. A draw falls on one of two tokens by the difference of their noise: bisection finds
it, and that is the logarithm of the ratio of their probabilities. From these the joint distribution of all that is
emitted is summed over all drafts, and must be the target's own. A last test runs with the true noise, whose streams
must be independent. Mutants with known mistakes must fail, or the tests would prove nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import pytest
import torch
from torch import Tensor

from kernels.noise import Stream, gumbel_vocabulary, uniform
from kernels.ops import VerifyRejection
from kernels.reference import verify

Prefix = tuple[int, ...]
Tables = dict[Prefix, Tensor]  # the next token's distribution, fp64 [V], by what came before
FAR = 1e9
CHI_SQUARE_3 = 30.66  # of three degrees of freedom: once in a million
HALVINGS = 56


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


def random_tables(seed: int, size: int, length: int, holes: float) -> Tables:
    """A distribution of the next token after every prefix of up to `length` tokens; some tokens are out."""
    generator = torch.Generator().manual_seed(seed)
    tables = {}
    for prefix in (p for n in range(length + 1) for p in itertools.product(range(size), repeat=n)):
        scores = torch.randn(size, generator=generator, dtype=torch.float64) * 1.5
        scores[1:].masked_fill_(torch.rand(size - 1, generator=generator) < holes, -math.inf)
        tables[prefix] = scores.softmax(0)
    return tables


def bisect(low: float, high: float, below: Callable[[float], bool]) -> float:
    """Where `below` turns from true to false; low or high where it never does."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


class Measured:
    """One verification of some drafts, as a function of its noise."""

    def __init__(self, op: VerifyRejection, target: Tables, draft: Tables, drafts: Prefix) -> None:
        rows = [drafts[:row] for row in range(len(drafts) + 1)]
        self.op = op
        self.size = len(target[()])
        self.scores = torch.stack([target[prefix].log() for prefix in rows])
        self.draft_scores = torch.stack([draft[prefix].log() for prefix in rows])
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


def emitted(op: VerifyRejection, target: Tables, draft: Tables, length: int) -> Tensor:
    """The joint distribution of the next length + 1 tokens, fp64 [V, ..., V]: what one verification of `length` drafts
    emits, and what the target says after that."""
    size = len(target[()])
    joint = torch.zeros((size,) * (length + 1), dtype=torch.float64)
    for drafts in itertools.product(range(size), repeat=length):
        reached = math.prod(float(draft[drafts[:row]][token]) for row, token in enumerate(drafts))
        if reached == 0.0:
            continue
        measured = Measured(op, target, draft, drafts)
        for row in range(length + 1):
            accepted = measured.acceptance(row) if row < length else 0.0
            if accepted < 1.0 - 1e-14:
                replaced = measured.replacement(row)
                for token in range(size):
                    _add(joint, target, (*drafts[:row], token), reached * (1 - accepted) * float(replaced[token]))
            reached *= accepted
            if reached < 1e-16:
                break
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
    joint = torch.zeros((len(target[()]),) * (length + 1), dtype=torch.float64)
    _add(joint, target, (), 1.0)
    return joint


@pytest.mark.parametrize(("size", "length", "holes"), [(3, 2, 0.0), (3, 3, 0.3), (5, 2, 0.5)])
def test_what_is_emitted_has_the_targets_joint_distribution(size: int, length: int, holes: float) -> None:
    target, draft = random_tables(1, size, length, holes), random_tables(2, size, length, holes)
    joint = emitted(verify.verify_rejection, target, draft, length)
    assert float((joint - own_joint(target, length)).abs().max()) < 1e-11


def mutant(mistake: str) -> VerifyRejection:
    """Rejection sampling for one request, with one mistake (or none)."""

    def wrong(
        out: Tensor,
        num_accepted: Tensor,
        scores: Tensor,
        draft_scores: Tensor,
        drafts: Tensor,
        starts: Tensor,
        addresses: Tensor,
    ) -> None:
        out.fill_(-1)
        target, draft = scores.double().softmax(1), draft_scores.double().softmax(1)
        last = len(drafts) - 1
        for row in range(last + 1):
            at, weights, stream = addresses[row, :3].tolist(), target[row], Stream.TARGET
            if row < last:
                token = int(drafts[row])
                p, q = float(target[row, token]), float(draft[row, token])
                share = {"accepts by p": p, "accepts by q": q, "upside down": q / p if p else 1.0}.get(mistake, p / q)
                if verify.uniform(*at, Stream.ACCEPT) < share:
                    out[row] = token
                    continue
                late = min(row + 1, last) if mistake == "the row after" else row
                weights = (target[late] - draft[row]).clamp(min=0)
                weights = target[row] if mistake == "redraws from p" else weights
                weights = (target[row] - draft[row]).abs() if mistake == "no positive part" else weights
                stream = Stream.ACCEPT if mistake == "shared noise" else Stream.RESIDUAL
            elif mistake == "bonus from the drafter" and row:
                weights = draft[row - 1]
            noise = verify.gumbel_vocabulary(len(weights), *at, stream, weights.device)
            out[row] = (weights.log() + noise).argmax()
            num_accepted[0] = row
            break

    return wrong


@pytest.mark.parametrize(
    "mistake",
    [
        "accepts by p",
        "accepts by q",
        "upside down",
        "redraws from p",
        "no positive part",
        "the row after",
        "bonus from the drafter",
    ],
)
def test_a_mistake_shows_in_the_joint_distribution(mistake: str) -> None:
    target, draft = random_tables(1, 3, 2, 0.0), random_tables(2, 3, 2, 0.0)
    assert float((emitted(mutant(mistake), target, draft, 2) - own_joint(target, 2)).abs().max()) > 1e-3


def chi_square(op: VerifyRejection, number: int = 1500) -> float:
    """Of the first of two tokens against the target's distribution, over `number` seeds with the true noise."""
    target = torch.tensor([0.35, 0.35, 0.2, 0.1], dtype=torch.float64)
    draft = torch.tensor([0.05, 0.05, 0.45, 0.45], dtype=torch.float64)
    scores, draft_scores = target.log().repeat(2, 1), draft.log().repeat(2, 1)
    drafts = torch.multinomial(draft, number, replacement=True, generator=torch.Generator().manual_seed(5)).tolist()
    counts = torch.zeros(4, dtype=torch.float64)
    out, accepted = torch.empty(2, dtype=torch.int64), torch.empty(1, dtype=torch.int32)
    starts = torch.tensor([0, 2], dtype=torch.int32)
    for seed, token in enumerate(drafts):
        addresses = torch.tensor([[seed, 10, 0, 0], [seed, 11, 0, 0]])
        op(out, accepted, scores, draft_scores, torch.tensor([token, -1]), starts, addresses)
        counts[out[0]] += 1
    expected = target * number
    return float(((counts - expected).square() / expected).sum())


def test_with_the_true_noise_tokens_are_as_frequent_as_the_target_says() -> None:
    assert verify.uniform is uniform
    assert verify.gumbel_vocabulary is gumbel_vocabulary
    assert chi_square(verify.verify_rejection) < CHI_SQUARE_3
    assert chi_square(mutant("none")) < CHI_SQUARE_3
    assert chi_square(mutant("shared noise")) > CHI_SQUARE_3
