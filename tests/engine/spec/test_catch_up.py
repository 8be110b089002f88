"""What a drafter has to read first is charged, is not read in vain, and costs no more than was promised."""

from __future__ import annotations

import pytest

from engine.core.speculation import Draft
from engine.spec.catch_up import HORIZON, SLACK, CatchUp
from engine.spec.controller import SpecController
from engine.spec.costs import StepCosts, StepSample
from engine.spec.ledger import INSTALMENTS, Ledger
from engine.spec.turn import Candidate, Outcome, TurnTimes
from tests.engine.spec.simulation import World, costly, simulate, stairs

STEP_S = 0.004
SAMPLES = [StepSample(1, 1, STEP_S), StepSample(8, 1, 1.1 * STEP_S), StepSample(16, 1, 1.2 * STEP_S)]


def candidate(context: int = 1000, cached: int = 0, left: int = 500) -> Candidate:
    return Candidate("a", 8, context, True, True, "eagle", cached, left)


def test_reading_that_brings_no_draft_is_charged() -> None:
    """A second prefill in the first tokens of an answer: turns ten times as long, and nothing verified."""
    controller = SpecController(8, StepCosts(SAMPLES), "eagle")
    asked = []
    for turn in range(200):
        wishes = controller.plan([candidate(8000 + turn)], 0)
        controller.trim([candidate(8000 + turn)], [Draft(proposer="eagle")], 0)
        rows = 512 if wishes[0] else 0
        controller.observe([], TurnTimes(0.04 if rows else 0.0, STEP_S, 1, 1, True, 8000, rows))
        asked.append(rows > 0)
    assert asked[0]
    assert sum(asked) <= 4
    assert controller.ledger.cautious


def test_a_prompt_is_not_read_for_a_few_tokens() -> None:
    reading = CatchUp()
    assert reading.is_worth_it(candidate(8000, left=20), 1.0, STEP_S)  # nobody knows yet what it costs
    reading.measured(500, 500 * STEP_S / 100)
    assert not reading.is_worth_it(candidate(8000, left=20), 1.0, STEP_S)
    assert reading.is_worth_it(candidate(8000, left=200), 1.0, STEP_S)
    assert not reading.is_worth_it(candidate(8000, left=200), 0.1, STEP_S)
    assert not reading.is_worth_it(candidate(100 * HORIZON, left=10**6), 1.0, STEP_S)
    assert reading.cost(candidate(8000, cached=8000 - SLACK)) == 0.0
    reading.ask([candidate(8000)])
    reading.ran(7900)
    assert reading.cost(candidate(8000 + SLACK)) == pytest.approx(STEP_S)
    reading.ask([candidate(8000)])
    reading.ran(100)
    assert reading.cost(candidate(8000 + SLACK)) == 0.0
    reading.end("a")
    assert reading.cost(candidate(8000)) > 0.0


def test_a_controller_asks_for_long_answers_alone() -> None:
    def wish(left: int) -> int:
        controller = SpecController(8, StepCosts(SAMPLES), "eagle")
        for turn in range(40):  # all of its drafts are right
            few = Candidate("known", 8, 100 + turn, True, True, "eagle", 100)
            count = controller.plan([few], 0)[0]
            drafts = [Draft((7,) * count, (0.9,) * count, "eagle")]
            verified = controller.trim([few], drafts, 0)[0]
            outcomes = [Outcome("known", "eagle", verified, verified, (0.9,) * verified)] if verified else []
            rows = 1 + verified
            controller.observe(outcomes, TurnTimes(0.1 * STEP_S, STEP_S, rows, 1, True, 100, 2 if count else 0))
        controller.plan([candidate(600)], 0)  # the first prompt tells what reading costs
        controller.trim([candidate(600)], [Draft((7,), (0.9,), "eagle")], 0)
        controller.observe([Outcome("a", "eagle", 1, 1, (0.9,))], TurnTimes(STEP_S * 6, STEP_S, 2, 1, True, 600, 600))
        controller.end("a")
        return controller.plan([candidate(8000, left=left)], 0)[0]

    assert wish(20) == 0
    assert wish(2000) > 0


def test_what_is_owed_is_paid_by_the_turns_to_come() -> None:
    ledger, free = Ledger(), Ledger()
    ledger.owe(4.0)
    ledger.owe(-3.0)
    for each in (ledger, free):
        each.turn(1.0, 1.0, 1.0, 1.0)
    assert not ledger.cautious
    for _ in range(round(3 * INSTALMENTS)):
        ledger.turn(1.0, 1.0, 1.0, 1.0)
        free.plain_turns(1, 1.0)
    assert ledger.cautious
    assert not free.cautious
    idle = Ledger()
    idle.owe(4.0)
    idle.plain_turns(100, 1.0)
    assert idle.cautious


@pytest.mark.parametrize("prompt", [200, 1000])
def test_a_drafter_that_is_no_good_does_not_read_every_prompt(prompt: int) -> None:
    world = World(costly(lambda own, run: 0.1), stairs, 1, "eagle", length=150, prompt=prompt)
    run = simulate(world, 6000)
    assert run.goodput() >= 0.97
    assert len(run.read) <= 12


def test_one_that_is_good_pays_for_its_reading() -> None:
    world = World(costly(lambda own, run: 0.8), stairs, 1, "eagle", length=400, prompt=1000)
    run = simulate(world, 8000)
    assert run.goodput() >= 1.3
