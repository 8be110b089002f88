"""The compiled ops with their true noise: tokens are as frequent as the target says, at every place of a turn.

Per toy (`tests.kernels.toy_decoding`) six hypotheses: the first token; the first three at once; the bonus behind a
whole accepted draft; what replaces a rejected first draft; the token after that, which another turn makes; and how
often the first draft is accepted. Chi-square each, Holm's correction over all of a rule's toys at 1e-3, seeds fixed, so
a failure is a change of the program and no bad luck. The total variation of the first token has Weissman's bound. Each
of the mistakes below must be found by the very same test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.noise import Stream
from kernels.registry import load_ops
from tests.kernels.frequencies import chi_square_p, holm, radius, total_variation
from tests.kernels.proof_paths import shared_cells
from tests.kernels.toy_decoding import (
    Toy,
    Turn,
    Verifier,
    by_match,
    by_rejection,
    decode,
    draft_scores,
    noise_of,
    random_toy,
    target_law,
)

OPS = load_ops(["cpu_ops"], torch.float32, torch.device("cpu"), num_threads=2)[0]
LEVEL = 1e-3
NUMBER, MUTANT_NUMBER = 200_000, 40_000
NARROW = (0.7, 0.0, 0.8, 0.0)
TOYS: dict[str, Toy] = {
    "plain": random_toy(6),
    "temperature and top_p on both sides": replace(random_toy(6), settings=NARROW, draft_settings=NARROW),
    "top_p and top_k on the target alone": replace(random_toy(6), settings=(1.0, 4.0, 0.8, 0.0)),
    "min_p on the drafter alone": replace(random_toy(6), draft_settings=(1.0, 0.0, 1.0, 0.2)),
    "reduced vocabulary": replace(random_toy(6), draft_vocabulary=torch.arange(6) % 3 > 0),
    "certain drafts": replace(random_toy(6), certain=True),
    "one draft": replace(random_toy(6), num_drafts=1),
    "five drafts of a close drafter": replace(random_toy(6), draft_logits=random_toy(6).logits * 0.9, num_drafts=5),
}


def hypotheses(rule: str, toy: Toy, verify: Verifier, number: int, **mistakes: bool) -> dict[str, float]:
    """p-values by name."""
    found = decode(OPS, toy, verify, number, max(3, toy.num_drafts + 1), seed=1000, **mistakes)
    p, q, size = target_law(OPS, toy), draft_scores(OPS, toy).double().softmax(1), toy.size
    tokens, count = found.tokens, toy.num_drafts
    law = p[0][:, None, None] * p[:, :, None] * p[None]
    code = tokens[:, 0] * size**2 + tokens[:, 1] * size + tokens[:, 2]
    whole, none = tokens[found.accepted == count], tokens[found.accepted == 0]
    acceptance, replaced = first_draft(rule, toy, p[0], q[0])
    accepted = torch.bincount((found.accepted == 0).long(), minlength=2)
    return {
        "first": chi_square_p(torch.bincount(tokens[:, 0], minlength=size), p[0]),
        "first three": chi_square_p(torch.bincount(code, minlength=size**3), law.flatten()),
        "bonus": chi_square_p(pairs(whole[:, count - 1], whole[:, count], size), p),
        "replaced": chi_square_p(torch.bincount(none[:, 0], minlength=size), replaced),
        "after it": chi_square_p(pairs(none[:, 0], none[:, 1], size), p),
        "accepted": chi_square_p(accepted, torch.tensor([acceptance, 1 - acceptance], dtype=torch.float64)),
    }


def pairs(before: Tensor, after: Tensor, size: int) -> Tensor:
    """Counts [V before, V after]."""
    return torch.bincount(before * size + after, minlength=size * size).view(size, size)


def first_draft(rule: str, toy: Toy, p: Tensor, q: Tensor) -> tuple[float, Tensor]:
    """How probable it is that the first draft is accepted, and the law of what replaces it when it is not."""
    if rule == "rejection":
        rest = (p - q).clamp(min=0)
        return float(torch.minimum(p, q).sum()), rest / rest.sum()
    cells = shared_cells(q, p) if toy.stream == Stream.TARGET else torch.outer(q, p)
    apart = cells - torch.diag(cells.diag())
    return float(cells.diag().sum()), apart.sum(0) / apart.sum()


def of_rule(rule: str, toy: Toy) -> Toy:
    """Proposers share the target's noise for `match`, and have their own for `rejection`."""
    return replace(toy, stream=Stream.TARGET) if rule == "match" else toy


VERIFIERS: dict[str, Verifier] = {"match": by_match(OPS), "rejection": by_rejection(OPS)}


@pytest.mark.parametrize("rule", VERIFIERS)
def test_tokens_are_as_frequent_as_the_target_says(rule: str) -> None:
    found = {
        f"{name}: {place}": p
        for name, toy in TOYS.items()
        for place, p in hypotheses(rule, of_rule(rule, toy), VERIFIERS[rule], NUMBER).items()
    }
    assert len(found) == 6 * len(TOYS)
    assert holm(found, LEVEL) == [], {name: p for name, p in found.items() if p < LEVEL}


def test_match_with_noise_of_its_own_is_as_lossless() -> None:
    assert holm(hypotheses("match", TOYS["plain"], VERIFIERS["match"], NUMBER), LEVEL) == []


@pytest.mark.parametrize(("size", "number"), [(8, 1_000_000), (64, 1_000_000)])
@pytest.mark.parametrize("rule", VERIFIERS)
def test_the_total_variation_is_within_its_bound(rule: str, size: int, number: int) -> None:
    """TV of the sampler to the target is at most the counted one + the radius: 0.0025 and 0.0051, with 99.9 %."""
    toy = of_rule(rule, replace(random_toy(size, seed=4), num_drafts=1))
    first = decode(OPS, toy, VERIFIERS[rule], number, 1).tokens[:, 0]
    counted = total_variation(torch.bincount(first, minlength=size), target_law(OPS, toy)[0])
    assert counted < radius(size, number)


def twin(mistake: str = "none") -> Verifier:
    """`verify_rejection` for many requests at once in plain torch, with one mistake or none."""

    def verify(turn: Turn) -> tuple[Tensor, Tensor]:
        rows = turn.scores.shape[1]
        p, q = turn.scores.double().softmax(2), turn.draft_scores.double().softmax(2)
        if mistake == "p before the temperature":
            p = turn.logits.double().softmax(2)
        at = turn.drafts.clamp(min=0).unsqueeze(2)
        ratio = (p.gather(2, at) / q.gather(2, at)).squeeze(2)
        if mistake == "accepts by p":
            ratio = p.gather(2, at).squeeze(2)
        if mistake == "upside down":
            ratio = 1 / ratio
        if mistake == "clipped at 0.8":
            ratio = ratio.clamp(max=0.8)
        u = noise_of(turn.addresses, Stream.ACCEPT, 1)[0]
        accepted = (u < ratio)[:, :-1].long().cumprod(1).sum(1)
        drawn = _replacements(mistake, turn, p, q, accepted)
        place = torch.arange(rows)
        out = torch.where(place < accepted[:, None], turn.drafts, -1)
        return out.scatter_(1, accepted[:, None], drawn[:, None]), accepted.to(torch.int32)

    return verify


def _replacements(mistake: str, turn: Turn, p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
    """The recovered or bonus token of each request [N]."""
    number, rows, size = p.shape
    every = torch.arange(number)
    is_bonus = accepted == rows - 1
    row = torch.where(is_bonus, accepted, (accepted + 1).clamp(max=rows - 1)) if "row after" in mistake else accepted
    target, draft = p[every, row], q[every, accepted]
    if mistake == "top_p not in what replaces":
        target = turn.logits[every, row].double().softmax(1)
    rest = (target - draft).clamp(min=0)
    if mistake == "replaces from p":
        rest = target
    if mistake == "replaces from the absolute difference":
        rest = (target - draft).abs()
    if mistake == "bonus from the drafter":
        target = torch.where(is_bonus[:, None], q[every, accepted - 1], target)
    weights = torch.where(is_bonus[:, None], target, rest)
    own = turn.addresses[every, accepted]
    if mistake == "replaces without dividing by the sum":
        u = noise_of(own, Stream.RESIDUAL, 1)[0]
        return torch.where(
            is_bonus,
            (target.log() + noise_of(own, Stream.TARGET, size)[1]).argmax(1),
            (rest.cumsum(1) < u[:, None]).sum(1).clamp(max=size - 1),
        )
    late = {"replaces with the noise of acceptance": Stream.ACCEPT, "replaces with the draft's noise": Stream.DRAFT}
    rejected = noise_of(own, late.get(mistake, Stream.RESIDUAL), size)[1]
    noise = torch.where(is_bonus[:, None], noise_of(own, Stream.TARGET, size)[1], rejected)
    return (weights.log() + noise).argmax(1)


@pytest.mark.parametrize("name", TOYS)
def test_the_twin_without_a_mistake_is_the_op(name: str) -> None:
    ours, theirs = (decode(OPS, TOYS[name], verify, 5000, 4) for verify in (twin(), by_rejection(OPS)))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.accepted, theirs.accepted)


BY_THE_OP = [
    "accepts by p",
    "upside down",
    "clipped at 0.8",
    "p before the temperature",
    "top_p not in what replaces",
    "replaces from p",
    "replaces from the absolute difference",
    "replaces without dividing by the sum",
    "replaces from the row after",
    "bonus from the drafter",
    "replaces with the noise of acceptance",
    "replaces with the draft's noise",
]


@pytest.mark.parametrize("mistake", BY_THE_OP)
def test_a_mistake_of_the_op_is_found(mistake: str) -> None:
    toy = (
        TOYS["temperature and top_p on both sides"] if "temperature" in mistake or "top_p" in mistake else TOYS["plain"]
    )
    assert holm(hypotheses("rejection", toy, twin(mistake), MUTANT_NUMBER), LEVEL) != []


def mistaken(change: Callable[[Turn], Turn], rule: str = "rejection") -> Verifier:
    """A caller that tells the op something else."""
    return lambda turn: VERIFIERS[rule](change(turn))


def one_position(turn: Turn) -> Turn:
    addresses = turn.addresses.clone()
    addresses[:, :, 1] = addresses[:, :1, 1]
    return replace(turn, addresses=addresses)


def rows_late(turn: Turn) -> Turn:
    return replace(turn, scores=torch.cat([turn.scores[:, :1], turn.scores[:, :-1]], 1).contiguous())


def target_without_filters(turn: Turn) -> Turn:
    return replace(turn, scores=turn.logits.contiguous())


def q_before_filters(turn: Turn) -> Turn:
    return replace(turn, draft_scores=turn.free_draft_scores)


def q_of_one_row(turn: Turn) -> Turn:
    return replace(turn, draft_scores=turn.draft_scores[:, :1].expand_as(turn.draft_scores).contiguous())


BY_THE_CALLER: dict[str, tuple[str, str, Callable[[Turn], Turn]]] = {
    "top_p not on the target": ("rejection", "temperature and top_p on both sides", target_without_filters),
    "top_p not in q": ("rejection", "temperature and top_p on both sides", q_before_filters),
    "q not zero outside the reduced vocabulary": ("rejection", "reduced vocabulary", q_before_filters),
    "an argmax draft with q of its softmax": ("rejection", "certain drafts", q_before_filters),
    "q of the first row on all": ("rejection", "plain", q_of_one_row),
    "logits one row late": ("rejection", "plain", rows_late),
    "the same noise on all rows": ("rejection", "plain", one_position),
    "match: logits one row late": ("match", "plain", rows_late),
    "match: no processors": ("match", "temperature and top_p on both sides", target_without_filters),
    "match: the same noise on all rows": ("match", "plain", one_position),
}


@pytest.mark.parametrize("mistake", BY_THE_CALLER)
def test_a_mistake_of_the_caller_is_found(mistake: str) -> None:
    rule, name, change = BY_THE_CALLER[mistake]
    found = hypotheses(rule, of_rule(rule, TOYS[name]), mistaken(change, rule), MUTANT_NUMBER)
    assert holm(found, LEVEL) != []


@pytest.mark.parametrize("stream", [Stream.ACCEPT, Stream.RESIDUAL])
def test_drafts_with_the_noise_of_the_verification_are_found(stream: Stream) -> None:
    """What is right for `match`, noise shared with the drafter, is wrong for `rejection`."""
    toy = replace(TOYS["plain"], stream=stream)
    assert holm(hypotheses("rejection", toy, VERIFIERS["rejection"], MUTANT_NUMBER), LEVEL) != []


@pytest.mark.parametrize("rule", VERIFIERS)
def test_going_on_behind_the_rejected_draft_is_found(rule: str) -> None:
    toy = of_rule(rule, TOYS["plain"])
    assert holm(hypotheses(rule, toy, VERIFIERS[rule], MUTANT_NUMBER, keeps_rejected=True), LEVEL) != []


def test_the_statistics_themselves() -> None:
    """Known answers: the 1e-3 quantile of chi-square with 3 degrees of freedom, Holm's steps, two radii."""
    law = torch.full((4,), 0.25, dtype=torch.float64)
    counts = torch.tensor([25.0, 25.0, 25.0, 25.0]) * 100 + torch.tensor([1.0, -1.0, 1.0, -1.0]) * math.sqrt(
        16.266 * 625
    )
    assert chi_square_p(counts, law) == pytest.approx(1e-3, rel=1e-3)
    assert chi_square_p(torch.tensor([10, 0, 1]), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)) == 0.0
    assert holm({"a": 0.0003, "b": 0.0006, "c": 0.5}, 1e-3) == ["a"]
    assert holm({"a": 0.0003, "b": 0.0005, "c": 0.5}, 1e-3) == ["a", "b"]
    assert radius(8, 100_000) == pytest.approx(0.0079, abs=2e-4)
    assert radius(64, 1_000_000) == pytest.approx(0.0051, abs=1e-4)
