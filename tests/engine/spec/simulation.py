"""A simulated engine for the controller: true costs and true chances, which it only sees through noise.

Time is kept without noise, so that figures do not depend on luck with it: `Run.goodput` is tokens over true time, as a
multiple of plain decoding. Everything comes from one seed; no clock is read.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.core.speculation import Draft
from engine.spec.controller import SpecController
from engine.spec.costs import StepCosts, StepSample
from engine.spec.turn import Candidate, Outcome, TurnTimes

STEP_S = 0.011
MOST = 8  # drafts of one request
STAIRS = ((1, 1.0), (2, 1.03), (3, 1.21), (4, 1.25), (5, 1.64), (8, 1.81), (9, 2.14), (12, 2.43), (16, 2.99))
BEYOND = 0.15  # of a step, for a row more
REQUEST = (4.3 - 2.99) / 15  # of a step, for a request more


def stairs(rows: int, requests: int) -> float:
    """Seconds of a step on the project's CPU, as measured."""
    index = bisect_left(STAIRS, (rows, 0.0))
    if index == len(STAIRS):
        steps = STAIRS[-1][1] + BEYOND * (rows - STAIRS[-1][0])
    elif STAIRS[index][0] == rows:
        steps = STAIRS[index][1]
    else:
        (low, one), (high, other) = STAIRS[index - 1], STAIRS[index]
        steps = one + (other - one) * (rows - low) / (high - low)
    return STEP_S * (steps + REQUEST * (requests - 1))


def flat(rows: int, requests: int) -> float:
    """Seconds of a step on a GPU: bound by memory up to 64 rows."""
    return 0.004 * (1.0 + 0.002 * rows + 0.004 * requests + max(rows - 64, 0) * 0.01)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a proposer has for a request in a turn: the true chance of each draft, and what it says of it."""

    proposer: str
    chances: tuple[float, ...]
    confidence: tuple[float, ...]


Text = Callable[[random.Random, int, int, int], Offer]
"""(random, tokens of the request, tokens of the run, drafts that a drafter may make) -> what comes of it."""


def costly(alpha: Callable[[int, int], float], skill: float = 1.0, decay: float = 1.0, width: float = 1.5) -> Text:
    """A drafter with cost alone. alpha(tokens of the request, of the run): its mean chance. skill: how much its
    confidence knows of the true chance. decay: by which the chance falls with each position."""

    def text(rng: random.Random, own: int, run: int, wish: int) -> Offer:
        chances, confidence = [], []
        mean = alpha(own, run)
        for position in range(wish):
            chance = spread(rng, mean * decay**position, width)
            chances.append(chance)
            confidence.append(told(rng, chance, skill))
        return Offer("eagle" if wish else "", tuple(chances), tuple(confidence))

    return text


def free(alpha: Callable[[int, int], float], matches: float = 0.6, boast: float = 0.0) -> Text:
    """Free drafts in some of the turns, none from a drafter. boast: the confidence that is added to the true one."""

    def text(rng: random.Random, own: int, run: int, wish: int) -> Offer:
        mean = alpha(own, run)
        if rng.random() > matches:
            return Offer("", (), ())
        chances = tuple(spread(rng, mean, 1.0) for _ in range(MOST))
        confidence = tuple(min(0.99, told(rng, chance, 0.8) + boast) for chance in chances)
        return Offer("suffix", chances, confidence)

    return text


def both(alpha: float, copying: float, burst: int, quiet: int) -> Text:
    """A hybrid: bursts of copied text that the suffix proposer foresees, a drafter between them."""

    drafter = costly(lambda *_: alpha)

    def text(rng: random.Random, own: int, run: int, wish: int) -> Offer:
        if own % (burst + quiet) < quiet:
            return drafter(rng, own, run, wish)
        chances = (copying,) * MOST
        return Offer("suffix", chances, tuple(told(rng, copying, 0.9) for _ in chances))

    return text


def spread(rng: random.Random, mean: float, width: float) -> float:
    """A chance around a mean: normal in the logit, then brought back to the mean on the whole."""
    if mean <= 0.0 or mean >= 1.0:
        return mean
    shift = math.log(mean / (1.0 - mean)) * math.sqrt(1.0 + 0.35 * width * width)
    return 1.0 / (1.0 + math.exp(-shift - rng.gauss(0.0, width)))


def told(rng: random.Random, chance: float, skill: float) -> float:
    """What a proposer says of a true chance: too sure, and only partly informed."""
    truth = math.log(min(max(chance, 0.01), 0.99) / (1.0 - min(max(chance, 0.01), 0.99)))
    said = 0.5 + 1.3 * skill * truth + (1.0 - skill) * rng.gauss(0.0, 1.5)
    return min(max(1.0 / (1.0 + math.exp(-said)), 0.01), 0.99)


@dataclass(frozen=True, slots=True)
class World:
    """text: of all requests. passes: a drafter's pass as a share of a plain step of one request. prompt: tokens that a
    drafter reads before its first draft of a request, a row each; reading: such a row as a share of a plain step."""

    text: Text
    step: Callable[[int, int], float] = stairs
    batch: int = 1
    drafter: str = ""
    passes: float = 0.09
    noise: float = 0.05
    length: int = 200  # tokens of a request
    limit: int = MOST
    known: bool = True  # whether steps were measured at load
    prompt: int = 0
    reading: float = 0.01

    def draft_s(self, passes: int, requests: int) -> float:
        """True seconds of a drafter's run."""
        return self.step(1, 1) * self.passes * (passes + 0.3) * (1.0 + 0.06 * (requests - 1)) if passes else 0.0


@dataclass(slots=True)
class Run:
    """tokens: of each turn. time_s, plain_s: true time of each turn, and of a plain step."""

    tokens: list[int] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    plain_s: float = 0.0
    batch: int = 1
    drafted: list[int] = field(default_factory=list)  # by the drafter that costs time, of each turn
    states: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)  # requests whose prompts the drafter has read

    def goodput(self, first: int = 0, last: int | None = None) -> float:
        """Tokens over time between two turns, over those of plain decoding."""
        spent = sum(self.time_s[first:last])
        return sum(self.tokens[first:last]) * self.plain_s / self.batch / spent if spent else 1.0

    def turn_of(self, tokens: int) -> int:
        """The turn in which the run reaches so many tokens."""
        total = 0
        for turn, count in enumerate(self.tokens):
            total += count
            if total >= tokens:
                return turn
        return len(self.tokens)


class Noise:
    """Of a machine that is shared: small all the time, large now and then, and slow spells."""

    def __init__(self, rng: random.Random, size: float) -> None:
        self.rng, self.size, self.spell = rng, size, 0

    def next(self) -> float:
        """The next step's time over its true one."""
        if not self.size:
            return 1.0
        self.spell = self.spell - 1 if self.spell else (80 if self.rng.random() < 0.002 else 0)
        factor = math.exp(self.rng.gauss(0.0, self.size)) * (1.35 if self.spell else 1.0)
        return factor * (self.rng.uniform(1.5, 4.0) if self.rng.random() < 0.01 else 1.0)


def make_controller(world: World, rng: random.Random) -> SpecController:
    """As after a load: with measured steps, each a little off."""
    samples: list[StepSample] = []
    if world.known:
        sizes = [(rows, 1) for rows in (1, 2, 3, 4, 5, 8, 9, 12, 16, 24)] + [(4, 4), (16, 16)]
        samples = [
            StepSample(rows, count, world.step(rows, count) * math.exp(rng.gauss(0.0, world.noise / 3)))
            for rows, count in sizes
        ]
    return SpecController(world.limit, StepCosts(samples), world.drafter)


def simulate(world: World, tokens: int, seed: int = 1, fixed: int | None = None) -> Run:
    """Decodes `tokens` tokens with the controller, or with `fixed` drafts in every turn."""
    rng = random.Random(seed)
    controller = make_controller(world, rng)
    noise = Noise(random.Random(seed + 1), world.noise)
    run = Run(plain_s=world.step(world.batch, world.batch), batch=world.batch)
    lengths = [int(rng.random() * world.length) for _ in range(world.batch)]
    names = [f"r{index}" for index in range(world.batch)]
    done = 0
    while done < tokens:
        made = _turn(world, controller, rng, noise, (names, lengths, done), run, fixed)
        done += sum(made)
        for index, count in enumerate(made):
            lengths[index] += count
            if lengths[index] >= world.length:
                controller.end(names[index])
                names[index], lengths[index] = f"{names[index]}'"[-40:] + str(done), 0
    return run


def _turn(
    world: World,
    controller: SpecController,
    rng: random.Random,
    noise: Noise,
    where: tuple[list[str], list[int], int],
    run: Run,
    fixed: int | None,
) -> list[int]:
    names, lengths, done = where
    count = len(names)
    candidates = [
        Candidate(
            name, world.limit, max(100, world.prompt) + length, True, True, world.drafter, 0, world.length - length
        )
        for name, length in zip(names, lengths, strict=True)
    ]
    wishes = controller.plan(candidates, 0) if fixed is None else [fixed if world.drafter else 0] * count
    offers, drafts = [], []
    for length, wish in zip(lengths, wishes, strict=True):
        offer = world.text(rng, length, done, wish)
        offers.append(offer)
        drafts.append(Draft((7,) * len(offer.chances), offer.confidence, offer.proposer))
    if fixed is None:
        sizes = controller.trim(candidates, drafts, 0)
    else:
        sizes = [min(fixed, len(draft.token_ids)) for draft in drafts]
    made_tokens, outcomes = [], []
    for name, offer, draft, size in zip(names, offers, drafts, sizes, strict=True):
        accepted = _accepted(rng, offer.chances[:size])
        made_tokens.append(1 + accepted)
        if size:
            outcomes.append(Outcome(name, draft.proposer, size, accepted, draft.confidence[:size]))
    costly_sizes = [len(draft.token_ids) for draft in drafts if draft.proposer == world.drafter and draft.token_ids]
    rows = count + sum(sizes)
    step_s = world.step(rows, count)
    draft_s = world.draft_s(max(costly_sizes, default=0), len(costly_sizes))
    new = {name for name, wish in zip(names, wishes, strict=True) if wish} - run.read
    read = 2 * len(costly_sizes) + world.prompt * len(new)  # accepted drafts and the last token, and new prompts
    draft_s += world.step(1, 1) * world.reading * world.prompt * len(new)
    run.read |= new
    if fixed is None:
        factor = noise.next()
        context = sum(candidate.context for candidate in candidates)
        times = TurnTimes(draft_s * factor, step_s * noise.next(), rows, count, True, context, read)
        controller.observe(outcomes, times)
        run.states.extend(state for name, state, _ in controller.proposers() if name == world.drafter)
    run.tokens.append(sum(made_tokens))
    run.time_s.append(step_s + draft_s)
    run.drafted.append(sum(costly_sizes))
    return made_tokens


def _accepted(rng: random.Random, chances: Sequence[float]) -> int:
    for position, chance in enumerate(chances):
        if rng.random() >= chance:
            return position
    return len(chances)


def best_fixed(world: World, tokens: int, seed: int = 1) -> tuple[int, float]:
    """The number of drafts that is best if it never changes, and its goodput."""
    found = [(simulate(world, tokens, seed, fixed).goodput(), fixed) for fixed in (0, 1, 2, 3, 4, 6, 8)]
    goodput, fixed = max(found)
    return fixed, goodput
