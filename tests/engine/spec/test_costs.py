"""Costs: they start from what the load measured, follow what steps take, and do not follow single slow ones."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from engine.spec.costs import StepCosts, StepSample
from tests.engine.spec.simulation import REQUEST, STAIRS, STEP_S, Noise, stairs

ROWS = (1, 2, 3, 4, 5, 8, 9, 12, 16)


def measured(rows: tuple[int, ...] = ROWS) -> list[StepSample]:
    return [StepSample(count, 1, stairs(count, 1)) for count in rows] + [StepSample(16, 16, stairs(16, 16))]


def relative(costs: StepCosts, rows: int, requests: int = 1) -> float:
    line = costs.line(requests, rows)
    return line[rows] / line[requests]


def test_a_measured_curve_is_given_back_with_its_stairs() -> None:
    costs = StepCosts(measured())
    assert [costs.line(1, 16)[rows] / STEP_S for rows in ROWS] == pytest.approx([cost for _, cost in STAIRS])
    assert costs.line(1, 16)[6] == pytest.approx(stairs(6, 1))
    assert costs.line(4, 8)[8] == pytest.approx(STEP_S * (1.81 + 3 * REQUEST))


@pytest.mark.parametrize("rows", [(1,), (1, 4), ROWS])
def test_rows_beyond_the_measured_ones_cost_more(rows: tuple[int, ...]) -> None:
    line = StepCosts(measured(rows)).line(1, 200)
    assert all(one <= other for one, other in pairwise(line))
    assert line[200] > line[100] > line[rows[-1]] > 0.0


def test_a_disturbed_measurement_with_fewer_rows_counts_no_more_than_one_with_more() -> None:
    costs = StepCosts([StepSample(1, 1, 0.010), StepSample(2, 1, 0.030), StepSample(4, 1, 0.012)])
    assert costs.line(1, 4)[2] == pytest.approx(0.012)


def test_without_measurements_steps_teach_the_curve() -> None:
    costs = StepCosts()
    rng = random.Random(3)
    for _ in range(2000):
        rows = rng.choice((1, 2, 4, 8))
        costs.observe_step(rows, 1, 100, stairs(rows, 1))
    for rows in (2, 4, 8):
        assert relative(costs, rows) == pytest.approx(stairs(rows, 1) / STEP_S, rel=0.03)
    assert costs.speed * costs.line(1, 1)[1] == pytest.approx(STEP_S, rel=0.05)


def test_a_wrong_measurement_is_corrected_through_noise() -> None:
    wrong = [StepSample(one.num_rows, 1, one.step_s * (1.4 if one.num_rows == 4 else 1.0)) for one in measured()[:-1]]
    costs = StepCosts(wrong)
    rng = random.Random(5)
    noise = Noise(rng, 0.05)
    for _ in range(3000):
        rows = rng.choice((1, 2, 4))
        costs.observe_step(rows, 1, 100, stairs(rows, 1) * noise.next())
    assert relative(costs, 4) == pytest.approx(1.25, rel=0.05)
    assert relative(costs, 3) <= relative(costs, 4), "what was not seen costs no more than what was, with more rows"


def test_slow_steps_now_and_then_do_not_move_the_curve() -> None:
    costs, rng = StepCosts(measured()), random.Random(7)
    for turn in range(1000):
        rows = 4 if turn % 10 == 0 else 1
        slow = 8.0 if rng.random() < 0.03 else 1.0
        costs.observe_step(rows, 1, 100, stairs(rows, 1) * slow)
    assert relative(costs, 4) == pytest.approx(1.25, rel=0.03)
    assert costs.speed == pytest.approx(1.0, rel=0.05)


def test_a_size_that_is_new_is_not_judged_by_the_step_that_records_it() -> None:
    costs = StepCosts(measured())
    for _ in range(50):
        costs.observe_step(1, 1, 100, stairs(1, 1))
    costs.observe_step(4, 1, 100, 20 * stairs(4, 1))
    for _ in range(32):
        costs.observe_step(1, 1, 100, stairs(1, 1))
    assert relative(costs, 4) == pytest.approx(1.25, rel=0.01)


def test_a_slower_machine_changes_the_speed_and_not_the_proportions() -> None:
    costs = StepCosts(measured())
    for _ in range(300):
        costs.observe_step(2, 1, 100, stairs(2, 1))
    before = relative(costs, 2)
    for _ in range(300):
        costs.observe_step(2, 1, 100, 1.6 * stairs(2, 1))
    assert costs.speed * costs.line(1, 2)[2] == pytest.approx(1.6 * stairs(2, 1), rel=0.03)
    assert relative(costs, 2) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("slope", [0.0, 4e-4 * STEP_S])
def test_the_cost_of_context_is_found_where_there_is_one(slope: float) -> None:
    costs, rng = StepCosts(measured()), random.Random(9)
    noise = Noise(rng, 0.05)
    for turn in range(3000):
        context = 100 + (turn * 3) % 1900
        costs.observe_step(1, 1, context, (stairs(1, 1) + slope * context) * noise.next())
    assert costs.context_cost(1000) == pytest.approx(1000 * slope, rel=0.3, abs=0.03 * STEP_S)


def test_a_drafters_cost_is_learned_by_passes_and_requests() -> None:
    costs, noise = StepCosts(measured()), Noise(random.Random(2), 0.05)

    def true(passes: int, requests: int) -> float:
        return STEP_S * (0.05 + 0.2 * passes) * (1.0 + 0.1 * (requests - 1))

    for turn in range(600):
        costs.observe_step(1, 1, 100, stairs(1, 1) * noise.next())
        passes, requests = 1 + turn % 3, 1 if turn % 2 else 16
        costs.observe_draft(passes, requests, true(passes, requests) * noise.next())
    for requests in (1, 16):
        line = costs.draft_line(requests, 8)
        assert line[0] == 0.0
        for passes in (1, 2, 3):
            share = line[passes] / costs.line(1, 1)[1]
            assert share == pytest.approx(true(passes, requests) / STEP_S, rel=0.1)
        assert line[8] > line[3], "more passes than were seen"


def test_costs_are_numbers_whatever_the_clock_says() -> None:
    costs = StepCosts([StepSample(1, 1, 0.0), StepSample(4, 1, 0.0)])
    for step_s in (0.0, -1.0, 1e9, 1e-12):
        costs.observe_step(1, 1, 0, step_s)
        costs.observe_draft(1, 1, step_s)
    assert all(math.isfinite(cost) and cost > 0.0 for cost in costs.line(1, 20)[1:])
    assert math.isfinite(costs.draft_line(1, 4)[4])
