"""Rejection sampling gives exactly the target's distribution: measured on the reference through its noise, not sampled.

`tests.kernels.proof_paths` measures; here are random targets and drafters, and mutants with known mistakes, which must
fail, or the tests would prove nothing. A last test runs with the true noise, whose streams must be independent. The
same with the whole processor chain and for both rules: `test_chain_proof`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.noise import Stream, gumbel_vocabulary, uniform
from kernels.ops import VerifyRejection
from kernels.reference import verify
from tests.kernels.proof_paths import Sides, emitted_by_rejection, largest_error, random_tables

CHI_SQUARE_3 = 30.66  # of three degrees of freedom: once in a million
EXACT = 1e-12


@pytest.mark.parametrize(("size", "length", "holes"), [(4, 0, 0.0), (4, 1, 0.0), (3, 2, 0.0), (3, 3, 0.3), (5, 2, 0.5)])
def test_what_is_emitted_has_the_targets_joint_distribution(size: int, length: int, holes: float) -> None:
    target, draft = random_tables(1, size, length, holes), random_tables(2, size, length, holes)
    joint = emitted_by_rejection(verify.verify_rejection, Sides.honest(target, draft), length, every_path=True)
    assert largest_error(joint, target) < EXACT


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
    assert largest_error(emitted_by_rejection(mutant(mistake), Sides.honest(target, draft), 2), target) > 1e-3


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
