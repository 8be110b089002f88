"""The controller keeps its promise in simulated engines: near the best where drafts pay, near plain where they do not.

The simulation (tests/engine/spec/simulation.py) has true costs and chances, noise, slow spells and outliers; nothing
here reads a clock. Bounds leave room for the seed, not for a broken estimate: see the mutants at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from engine.core.speculation import MAX_VERIFY_ROWS, Draft
from engine.spec.controller import SpecController
from engine.spec.costs import StepCosts, StepSample
from engine.spec.ledger import Ledger
from engine.spec.turn import Candidate, Outcome, TurnTimes
from tests.engine.spec.simulation import Text, World, best_fixed, both, costly, flat, free, simulate, stairs

PLAIN, LONG_RUN, BEST = 0.97, 0.98, 0.9
EAGLE = "eagle"


def always(alpha: float) -> Callable[[int, int], float]:
    return lambda own, run: alpha


def turns(one: float, other: float, tokens: int) -> Callable[[int, int], float]:
    """A mean chance that changes every so many tokens of the run."""
    return lambda own, run: one if run // tokens % 2 == 0 else other


TEXTS: dict[str, tuple[Text, str]] = {
    "hopeless drafter": (costly(always(0.0)), EAGLE),
    "poor drafter": (costly(always(0.2)), EAGLE),
    "on the edge": (costly(always(0.35)), EAGLE),
    "fair drafter, confidence says nothing": (costly(always(0.5), skill=0.0), EAGLE),
    "good drafter that decays": (costly(always(0.65), decay=0.85), EAGLE),
    "boasting free drafts": (free(always(0.0), 0.9, 0.8), ""),
    "fair free drafts": (free(always(0.5)), ""),
    "regimes": (costly(turns(0.7, 0.02, 800)), EAGLE),
    "free regimes": (free(turns(0.9, 0.0, 300), 0.9, 0.3), ""),
    "flips faster than one can learn": (costly(turns(0.8, 0.0, 40)), EAGLE),
    "copying in bursts": (both(0.4, 0.93, 40, 60), EAGLE),
}


@pytest.mark.parametrize("step", [stairs, flat], ids=["cpu", "gpu"])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("text", TEXTS)
def test_it_is_never_slower_than_plain_decoding(text: str, batch: int, step: Callable[[int, int], float]) -> None:
    drafts, drafter = TEXTS[text]
    run = simulate(World(drafts, step, batch, drafter), 1500 * min(batch, 4))
    assert run.goodput(0, run.turn_of(400 * min(batch, 4))) >= PLAIN
    assert run.goodput() >= LONG_RUN


@pytest.mark.parametrize("text", ["hopeless drafter", "boasting free drafts", "poor drafter"])
def test_it_is_not_even_where_costs_are_unknown_at_first(text: str) -> None:
    drafts, drafter = TEXTS[text]
    run = simulate(World(drafts, stairs, 4, drafter, known=False), 6000)
    assert run.goodput(0, run.turn_of(1600)) >= PLAIN
    assert run.goodput() >= LONG_RUN


@pytest.mark.parametrize(
    ("text", "batch", "step", "least"),
    [
        (costly(always(0.45)), 1, stairs, 1.2),
        (costly(always(0.8)), 1, stairs, 1.7),
        (costly(always(0.6), skill=0.0), 1, flat, 1.4),
        (costly(always(0.8)), 4, stairs, 1.15),
        (costly(always(0.8)), 16, stairs, 1.05),
        (costly(always(0.7), decay=0.8), 16, flat, 1.35),
        (free(always(0.6)), 1, stairs, 1.35),
        (free(always(0.9)), 1, flat, 3.5),
        (free(always(0.9)), 4, stairs, 1.4),
        (free(always(0.9)), 16, stairs, 1.15),
    ],
)
def test_it_comes_near_the_best_number_of_drafts(
    text: Text, batch: int, step: Callable[[int, int], float], least: float
) -> None:
    drafter = "" if "free" in text.__qualname__ else EAGLE
    world = World(text, step, batch, drafter)
    goodput = simulate(world, 2500 * min(batch, 4), seed=2).goodput()
    assert goodput >= least, "what is to be had here at all"
    assert goodput >= BEST * best_fixed(world, 1000 * min(batch, 4), seed=2)[1]


def test_a_drafter_below_30_percent_is_switched_off_and_comes_back() -> None:
    """A good drafter turns useless after 2,000 tokens, and good again after 4,000 more."""
    text = costly(lambda own, run: 0.02 if 2000 <= run < 6000 else 0.7)
    run = simulate(World(text, stairs, 1, EAGLE), 9000)
    bad, good = run.turn_of(2000), run.turn_of(6000)
    worst, back = run.states[bad:good], run.states[good:]
    assert run.goodput(bad, good) >= LONG_RUN
    assert run.goodput(0, bad) > 1.3
    returned = run.turn_of(7500)
    assert back[returned - good] == "on"
    assert run.goodput(returned) > 1.3, "1,500 tokens later at the latest it drafts as before"
    assert set(worst) <= {"on", "off", "probing"}
    changes = sum(one != other for one, other in pairwise(worst))
    assert changes <= 20


def controller(text_costly: str = EAGLE) -> SpecController:
    sizes = ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (9, 1), (12, 1), (16, 1), (16, 16))
    return SpecController(8, StepCosts([StepSample(*size, stairs(*size)) for size in sizes]), text_costly)


def one(limit: int = 8, adaptive: bool = True, name: str = "r", drafter: str = EAGLE) -> Candidate:
    return Candidate(name, limit, 100, True, adaptive, drafter)


def drafted(count: int, proposer: str = EAGLE, confidence: float = 0.8) -> Draft:
    return Draft((7,) * count, (confidence,) * count, proposer if count else "")


def live(subject: SpecController, turns: int, accept: Callable[[int], int], limit: int = 8) -> list[int]:
    """Turns of one request with a drafter; how many drafts each was asked for. accept: accepted of so many."""
    asked = []
    for _ in range(turns):
        wishes = subject.plan([one(limit)], 0)
        sizes = subject.trim([one(limit)], [drafted(wishes[0])], 0)
        outcomes = [Outcome("r", EAGLE, sizes[0], accept(sizes[0]), (0.8,) * sizes[0])] if sizes[0] else []
        draft_s = 0.001 * wishes[0]
        subject.observe(outcomes, TurnTimes(draft_s, stairs(1 + sizes[0], 1), 1 + sizes[0], 1, True, 100))
        asked.append(wishes[0])
    return asked


def test_the_30_percent_rule_gives_its_reason() -> None:
    subject = controller()
    assert subject.proposers() == [(EAGLE, "on", "")]
    live(subject, 200, lambda size: size)
    for _ in range(400):  # a drafter that is drafted with whatever it gives: the switch alone can stop it
        subject.switch.observe(200, 2, 0)
    name, state, reason = subject.proposers()[0]
    assert (name, state) == (EAGLE, "off")
    assert "acceptance" in reason
    assert "below 30 %" in reason
    assert "looked at again in 128 steps" in reason
    assert sum(live(subject, 100, lambda size: size)) == 0
    live(subject, 600, lambda size: size)
    assert subject.proposers() == [(EAGLE, "on", "")]


def test_it_does_not_flap() -> None:
    """A drafter whose worth lies on the edge: drafting starts and stops a few times in a thousand turns, no more."""
    text = costly(always(0.35))
    run = simulate(World(text, stairs, 4, EAGLE), 6000)
    drafting = [count > 1 for count in run.drafted]
    changes = sum(now != then for now, then in pairwise(drafting))
    assert changes <= len(drafting) * 0.03


def test_probes_take_less_than_a_hundredth_of_the_time() -> None:
    text = costly(always(0.0))
    for batch in (1, 16):
        run = simulate(World(text, stairs, batch, EAGLE, noise=0.0, length=10_000), 2000 * min(batch, 4))
        late = len(run.tokens) // 2
        assert 0.988 <= run.goodput(late) <= 1.0


def test_a_request_that_is_not_adaptive_has_its_limit() -> None:
    subject = controller()
    for _ in range(300):
        assert subject.plan([one(5, adaptive=False)], 0) == [5]
        assert subject.trim([one(5, adaptive=False)], [drafted(5)], 0) == [5]
        subject.observe([Outcome("r", EAGLE, 5, 0, (0.8,) * 5)], TurnTimes(0.01, 0.02, 6, 1, True, 100))
    assert subject.proposers() == [(EAGLE, "on", "")], "forced drafts do not count against the drafter"
    assert subject.gain() is None


def test_nobody_gets_more_than_the_limit_or_the_step_holds() -> None:
    subject = controller()
    many = [one(8, False, f"r{index}") for index in range(60)]
    counts = subject.plan(many, 100)
    assert counts == [8] * 60
    counts = subject.trim(many, [drafted(8)] * 60, 100)
    assert all(0 <= count <= 8 for count in counts)
    assert sum(counts) + 60 + 100 == MAX_VERIFY_ROWS
    assert subject.trim([one(2)], [drafted(8, confidence=0.99)], 0)[0] <= 2
    assert subject.plan([], 3) == []
    assert subject.trim([], [], 3) == []


def test_no_limit_means_no_drafts() -> None:
    subject = controller()
    for _ in range(50):
        assert subject.plan([one(0)], 0) == [0]
        assert subject.trim([one(0)], [drafted(0)], 0) == [0]
        subject.observe([], TurnTimes(0.0, 0.011, 1, 1, True, 100))


def test_plateaus_are_used_to_their_end() -> None:
    """Four rows cost little more than three: where the third draft is worth its place, it is not left out."""
    subject = controller("")
    for _ in range(60):
        subject.trim([one(drafter="")], [drafted(8, "suffix", 0.75)], 0)
        subject.observe([Outcome("r", "suffix", 3, 2, (0.75,) * 3)], TurnTimes(0.0, stairs(4, 1), 4, 1, True, 100))
    assert subject.trim([one(drafter="")], [drafted(8, "suffix", 0.75)], 0) == [3]


def test_the_gain_is_measured() -> None:
    subject = controller()
    live(subject, 20, lambda size: size)
    assert subject.gain() is None
    live(subject, 400, lambda size: size, limit=3)
    gain = subject.gain()
    assert gain is not None
    true = 4 * stairs(1, 1) / (stairs(4, 1) + 0.003)
    assert gain == pytest.approx(true, rel=0.05)


def test_requests_that_ended_are_forgotten() -> None:
    subject = controller()
    live(subject, 10, lambda size: 0)
    subject.end("r")
    subject.end("unknown")
    assert not subject._requests
    assert not subject.acceptance._own


def test_prompts_that_run_along_do_not_teach_costs() -> None:
    subject = controller()
    before = subject.costs.line(1, 8)[:9]
    for _ in range(100):
        subject.plan([one()], 200)
        subject.trim([one()], [drafted(0)], 200)
        subject.observe([], TurnTimes(0.0, 0.5, 201, 2, False, 100))
    assert subject.costs.line(1, 8)[:9] == before
    assert subject.gain() is None


def test_the_ledger_stops_what_estimates_let_through() -> None:
    """Drafts are verified at a loss, whatever the reason: before 3 % of the time are lost only probes are left."""
    ledger, lost, total = Ledger(), 0.0, 0.0
    for _ in range(5000):
        took = 1.0 if ledger.cautious else 1.3
        ledger.turn(1.0, 1.0, took, took)
        lost, total = lost + took - 1.0, total + took
    assert lost / total < 0.02


def test_an_estimate_that_is_always_sure_is_caught_by_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: acceptance that is blind to what happens."""
    world = World(free(always(0.0), 0.9, 0.8), stairs, 1)
    monkeypatch.setattr("engine.spec.acceptance.Source.judge", lambda *_: None)
    assert simulate(world, 3000).goodput() >= PLAIN
    monkeypatch.setattr("engine.spec.ledger.MOST_LOSS", 100.0)
    assert simulate(world, 3000).goodput() < 0.9, "without the ledger it would lose much"
