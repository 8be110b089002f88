"""Both rules give exactly the target's distribution behind every processor, for every kind of drafter.

The scores are the processor chain's own, row by row with the draft prefix before it, in fp64 over tiny vocabularies;
the truth is what plain decoding draws from: the chain after the tokens that were emitted. `tests.kernels.proof_paths`
integrates over the noise. Each mistake that a caller can make must show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.sample.filters import filter_rows, is_filtered
from engine.sample.processors import adjust
from engine.sample.row import SamplingRow
from engine.sample.sampler import Sampler
from kernels.noise import Stream
from kernels.ops import Draw, Ops, VerifyMatch
from kernels.reference import draw as reference_draw
from kernels.reference import verify
from kernels.registry import load_ops
from tests.engine.drawing import draw
from tests.kernels.proof_paths import (
    Coupling,
    Prefix,
    Sides,
    Tables,
    bisect,
    certain,
    emitted_by_match,
    emitted_by_rejection,
    independent_cells,
    largest_error,
    laws,
    logarithms,
    prefixes,
    random_tables,
    shared_cells,
)

SIZE, SEED = 4, 11
EXACT = 1e-12
PROMPT = [2, 1, 3, 2, 1]
REFERENCE: Ops = load_ops([], torch.float64, torch.device("cpu"), num_threads=1)[0]
COMPILED: Ops = load_ops(["cpu_ops"], torch.float32, torch.device("cpu"), num_threads=1)[0]
PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "typical_p": {"typical_p": 0.6},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.15},
    "repetition": {"repetition_penalty": 1.8},
    "presence and frequency": {"presence_penalty": 0.9, "frequency_penalty": 0.7},
    "dry": {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    "logit_bias": {"logit_bias": {0: 1.0, 3: -2.0}},
    "bad_words": {"bad_words": ((1, 2), (0,))},
    "allowed_token_ids": {"allowed_token_ids": (0, 1, 3)},
    "min_tokens": {"min_tokens": 2},
    "grammar": {},
    "all": {
        "temperature": 0.8,
        "top_k": 3,
        "top_p": 0.95,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "dry_multiplier": 0.5,
        "bad_words": ((1, 2),),
        "logit_bias": {3: 0.5},
        "min_tokens": 1,
    },
}
ENDS = (3,)


def mask(prefix: Prefix) -> bytes:
    """A grammar: no token twice in a row, and 3 only behind a 1."""
    last = prefix[-1] if prefix else -1
    allowed = [token for token in range(SIZE) if token != last and (token != 3 or last == 1)]
    return bytes([sum(1 << token for token in allowed)])


def sampling_row(name: str, sampling: SamplingParams, before: Prefix, masked_by: Prefix) -> SamplingRow:
    return SamplingRow(
        sampling,
        SEED,
        len(PROMPT) + len(before),
        num_prompt_tokens=len(PROMPT),
        token_ids=[*PROMPT, *before] if sampling.needs_token_ids else (),
        end_token_ids=ENDS if sampling.min_tokens else (),
        allowed=mask(masked_by) if name == "grammar" else b"",
    )


def processed(name: str, logits: Tables, sees: Callable[[Prefix], Prefix] = lambda prefix: prefix) -> Tables:
    """The scores that are drawn from after each prefix; `sees` is what a mistaken caller shows the chain instead."""
    sampling = SamplingParams(**PROCESSORS[name])
    found = {}
    for prefix, own in logits.items():
        row = sampling_row(name, sampling, sees(prefix), sees(prefix))
        scores = own.clone().unsqueeze(0)
        adjust(scores, {0: row})
        if sampling.greedy:
            best = int(scores.argmax())
            scores.fill_(-math.inf)
            scores[0, best] = 0.0
        elif is_filtered(sampling):
            filter_rows(scores, scores, {0: row}, REFERENCE)
        found[prefix] = scores[0]
    return found


def raw_logits(seed: int, length: int) -> Tables:
    return {prefix: law.log() for prefix, law in random_tables(seed, SIZE, length, 0.0).items()}


def drafters(name: str, length: int) -> dict[str, Tables]:
    """Laws that drafts are drawn from, by kind."""
    logits, own = raw_logits(1, length), raw_logits(2, length)
    close = {prefix: 0.7 * logits[prefix] + 0.3 * own[prefix] for prefix in logits}
    return {
        "with the same processors": laws(processed(name, close)),
        "with none": laws(own),
        "reduced vocabulary": random_tables(3, SIZE, length, 0.5),
        "certain": certain(own),
        "the target itself": laws(processed(name, logits)),
    }


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_match_emits_what_plain_decoding_draws(name: str, length: int) -> None:
    target = laws(processed(name, raw_logits(1, length)))
    for kind, law in drafters(name, length).items():
        sides = Sides.honest(target, law)
        for coupling in (independent_cells, shared_cells):
            for op in (verify.verify_match, COMPILED.verify_match):
                assert largest_error(emitted_by_match(op, sides, length, coupling), target) < EXACT, (kind, coupling)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("length", [0, 1, 2])
def test_rejection_emits_what_plain_decoding_draws(name: str, length: int) -> None:
    target = laws(processed(name, raw_logits(1, length)))
    laws_by_kind = drafters(name, length)
    kinds = list(laws_by_kind)
    if length == 2 and name not in ("none", "grammar"):  # all pairs take long: two kinds for each, all in turn
        first = list(PROCESSORS).index(name)
        kinds = [kinds[(first + step) % len(kinds)] for step in (0, 2)]
    for kind in kinds:
        joint = emitted_by_rejection(verify.verify_rejection, Sides.honest(target, laws_by_kind[kind]), length)
        assert largest_error(joint, target) < EXACT, kind


@pytest.mark.parametrize("kind", ["with the same processors", "reduced vocabulary", "certain"])
@pytest.mark.parametrize("name", ["none", "grammar", "all"])
def test_rejection_of_three_drafts(name: str, kind: str) -> None:
    target = laws(processed(name, raw_logits(1, 3)))
    joint = emitted_by_rejection(verify.verify_rejection, Sides.honest(target, drafters(name, 3)[kind]), 3)
    assert largest_error(joint, target) < EXACT


def told(target: Tables, draft: Tables, **changed: Tables) -> Sides:
    """What is true, with some of what is told replaced."""
    return Sides(target, draft, **({"told_target": logarithms(target), "told_draft": logarithms(draft)} | changed))


def mistaken(mistake: str, length: int) -> Sides:
    """A caller with one mistake."""
    logits = raw_logits(1, length)
    with_others = {"without temperature": "temperature", "without top_p": "top_p"}
    name = with_others.get(mistake, {"masks of the first row": "grammar"}.get(mistake, "presence and frequency"))
    target, draft = laws(processed(name, logits)), drafters(name, length)["with none"]
    if mistake in with_others:
        return told(target, draft, told_target=logits)
    if mistake in ("penalties without the drafts", "masks of the first row"):
        return told(target, draft, told_target=processed(name, logits, lambda prefix: ()))
    if mistake == "penalties one draft late":
        return told(target, draft, told_target=processed(name, logits, lambda prefix: prefix[:-1]))
    if mistake == "the logits of the row before":
        late = {prefix: logits[prefix[:-1]] for prefix in logits}
        return told(target, draft, told_target=processed(name, late))
    if mistake == "q not zero outside the reduced vocabulary":
        reduced = random_tables(3, SIZE, length, 0.5)
        return told(target, reduced, told_draft={p: law.clamp(min=0.2).log() for p, law in reduced.items()})
    if mistake == "an argmax draft with q of its softmax":
        return told(target, certain(draft), told_draft=logarithms(draft))
    if mistake == "q before the drafter's filter":
        cut = {prefix: law * (law >= law.median()) / law[law >= law.median()].sum() for prefix, law in draft.items()}
        return told(target, cut, told_draft=logarithms(draft))
    raise AssertionError(mistake)


ON_THE_TARGETS_SIDE = [
    "without temperature",
    "without top_p",
    "masks of the first row",
    "penalties without the drafts",
    "penalties one draft late",
    "the logits of the row before",
]
ON_THE_DRAFTERS_SIDE = [
    "q not zero outside the reduced vocabulary",
    "an argmax draft with q of its softmax",
    "q before the drafter's filter",
]


@pytest.mark.parametrize("mistake", [*ON_THE_TARGETS_SIDE, *ON_THE_DRAFTERS_SIDE])
def test_a_callers_mistake_shows_in_rejection(mistake: str) -> None:
    sides = mistaken(mistake, 2)
    assert largest_error(emitted_by_rejection(verify.verify_rejection, sides, 2), sides.target) > 1e-3


@pytest.mark.parametrize("mistake", ON_THE_TARGETS_SIDE)
def test_a_callers_mistake_shows_in_match(mistake: str) -> None:
    sides = mistaken(mistake, 2)
    assert largest_error(emitted_by_match(verify.verify_match, sides, 2, shared_cells), sides.target) > 1e-3


def wrong_match(mistake: str) -> VerifyMatch:
    """`verify_match` for requests of one length, with a mistake."""

    def wrong(out: Tensor, num_accepted: Tensor, drawn: Tensor, drafts: Tensor, starts: Tensor) -> None:
        rows = int(starts[1])
        before, after = drawn.view(-1, rows), drafts.view(-1, rows)
        compared = before.roll(1, 1) if mistake == "compares the row before" else before
        same = compared[:, :-1] == after[:, :-1]
        count = same.sum(1) if mistake == "goes on behind a difference" else same.long().cumprod(1).sum(1)
        place = torch.arange(rows)
        num_accepted.copy_(count)
        emitted = before.clone()
        if mistake == "keeps the draft that differs":
            emitted[:, :-1] = torch.where(place[:-1] == count.unsqueeze(1), after[:, :-1], before[:, :-1])
        out.copy_(torch.where(place <= count.unsqueeze(1), emitted, -1).flatten())

    return wrong


@pytest.mark.parametrize("coupling", [independent_cells, shared_cells])
def test_mistakes_of_match_show(coupling: Coupling) -> None:
    target = laws(raw_logits(1, 2))
    sides = Sides.honest(target, laws(raw_logits(2, 2)))
    assert largest_error(emitted_by_match(wrong_match("none"), sides, 2, coupling), target) < EXACT
    for mistake in ("compares the row before", "goes on behind a difference", "keeps the draft that differs"):
        assert largest_error(emitted_by_match(wrong_match(mistake), sides, 2, coupling), target) > 1e-3, mistake


def test_cells_of_shared_noise_are_what_the_noise_gives() -> None:
    """Their margins are the two laws exactly; single cells as often as 40,000 draws of both have them."""
    draft, target = random_tables(5, 5, 0, 0.3)[()], random_tables(6, 5, 0, 0.3)[()]
    cells = shared_cells(draft, target)
    assert float((cells.sum(0) - target).abs().max()) < EXACT
    assert float((cells.sum(1) - draft).abs().max()) < EXACT
    assert float(shared_cells(target, target).diag().sum()) == pytest.approx(1.0)
    number = 40_000
    addresses = torch.stack([torch.arange(number), *(torch.zeros(3, number, dtype=torch.int64))], 1)
    drawn = torch.empty(2, number, dtype=torch.int64)
    for out, law in zip(drawn, (draft, target), strict=True):
        COMPILED.draw(out, law.log().float().repeat(number, 1), addresses)
    counted = torch.bincount(drawn[0] * 5 + drawn[1], minlength=25).view(5, 5).double() / number
    assert float((counted - cells).abs().max()) < 5 * 0.5 / math.sqrt(number)


@contextmanager
def given_noise(noise: Tensor) -> Iterator[None]:
    """Within, the reference draws with this noise fp64 [V] instead of its own."""
    with (
        mock.patch.object(reference_draw, "gumbel", lambda ids, *address: noise[ids]),
        mock.patch.object(reference_draw, "gumbel_vocabulary", return_value=noise),
    ):
        yield


def drawn_law(op: Draw, scores: Tensor) -> Tensor:
    """The law of `draw` over fp64 scores [V], by bisecting the differences of its noise."""
    size = len(scores)

    def drawn(noise: dict[int, float]) -> int:
        values = torch.full((size,), -1e9, dtype=torch.float64)
        for token, value in noise.items():
            values[token] = value
        out = torch.empty(1, dtype=torch.int64)
        with given_noise(values):
            op(out, scores.unsqueeze(0), torch.tensor([[7, 3, 0, int(Stream.TARGET)]]))
        return int(out)

    possible = [token for token in range(size) if drawn({token: 0.0}) == token]
    found = torch.full((size,), -math.inf, dtype=torch.float64)
    found[possible[0]] = 0.0
    for token in possible[1:]:
        found[token] = bisect(-60.0, 60.0, lambda ratio, t=token: drawn({possible[0]: ratio, t: 0.0}) == t)
    return found.softmax(0)


@pytest.mark.parametrize("holes", [0.0, 0.4])
def test_a_draw_has_the_law_of_its_scores(holes: float) -> None:
    for law in random_tables(8, 5, 1, holes).values():
        assert float((drawn_law(reference_draw.draw, law.log()) - law).abs().max()) < EXACT


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_sampler_draws_from_the_scores_of_the_chain(name: str) -> None:
    """Every token with a probability is drawn by some noise, and no other, after every prefix of two tokens."""
    logits = raw_logits(1, 2)
    sampling = SamplingParams(**PROCESSORS[name])
    rows = [sampling_row(name, sampling, prefix, prefix) for prefix in prefixes(SIZE, 2)]
    table = torch.stack([logits[prefix] for prefix in prefixes(SIZE, 2)])
    possible = torch.stack(list(processed(name, logits).values())) > -math.inf
    sampler = Sampler(REFERENCE, table)
    for favoured in range(SIZE):
        noise = torch.zeros(SIZE, dtype=torch.float64)
        noise[favoured] = 60.0
        with given_noise(noise):
            drawn = torch.tensor([one.token_id for one in draw(sampler, table, rows)])
        assert torch.equal(drawn == favoured, possible[:, favoured]), favoured
