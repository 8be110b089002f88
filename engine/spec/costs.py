"""What steps and drafts cost: times measured at load, corrected by every step that runs.

Knows rows, requests and seconds; nothing of tokens or of who drafts. A step's time is modelled as
`speed * ((curve(rows) + per_request * (requests - 1)) * correction + per_token * context)`: the curve comes from the
load, the rest is learned. All costs that it hands out lack the speed, which follows what else the machine does: they
are seconds of a machine as it was at load, and decisions, which are ratios of them, do not flap with its neighbours.
Invariants: costs never fall with more rows; one slow step moves an estimate by little; costs are never 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

GUESSED_ROW = 0.1  # a row more costs so much of a step, until steps of several sizes were seen
GUESSED_PASS = 0.1  # a drafter's pass costs so much of a plain step, until one was seen
FAST, SLOW = 0.1, 0.01  # weights of a new step in the speed, and in the correction of its own size
DRAFT_FAST, DRAFT_SLOW = 0.02, 0.05  # the same of a drafter's run: the speed is known already
CALM = 0.003  # weight of a step in the speed that the context's slope is seen against
EVIDENCE = 4.0  # a size's correction counts half once it was seen so often
SETTLED = 8  # steps of a size until they speak of the machine's speed
REFRESH = 32  # steps between two looks at the corrections
CONTEXT_STEPS, CONTEXT_SPREAD = 500.0, 200.0  # memory of the context's slope, and the tokens that have to vary for it
ALIKE_STEPS = 10.0  # that follow each other and are slow or fast for one reason
CONTEXT_MOST = 0.5  # of a plain step: more is not put down to the context that was added since the load


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step measured at load: rows in all, of so many requests, with so many tokens of context in all."""

    num_rows: int
    num_requests: int
    step_s: float
    context: int = 0


class Correction:
    """Running estimates of log(measured / modelled): one for everything, and one for each cell on top of it.

    A cell's first time is left out: it may hold the recording of a step. Later ones are clipped at three times the
    usual deviation, so that the estimate behaves like a median.
    """

    __slots__ = ("cells", "counts", "fast", "overall", "seen", "slow", "spread", "usual")

    def __init__(self, fast: float, slow: float) -> None:
        """fast, slow: the least weights of what is new in the overall factor and in a cell's."""
        self.fast, self.slow = fast, slow
        self.overall = 0.0
        self.seen = 0
        self.spread = 0.1
        self.usual = 0.0  # correction of the cells that are met
        self.cells: dict[tuple[int, int], float] = {}
        self.counts: dict[tuple[int, int], int] = {}

    def observe(self, cell: tuple[int, int], measured: float, modelled: float) -> None:
        """measured, modelled: seconds; modelled without any correction."""
        count = self.counts.get(cell, -1) + 1
        self.counts[cell] = count
        if not count or measured <= 0.0:
            return
        known = self.cells.get(cell, 0.0)
        apart = math.log(measured / modelled) - self.overall - known
        if not self.seen:
            self.overall, self.seen = apart, 1
            return
        limit = 3.0 * self.spread
        clipped = min(max(apart, -limit), limit)
        self.spread = min(max(self.spread + 0.05 * (min(abs(apart), 1.0) - self.spread), 0.01), 0.3)
        if count >= SETTLED or self.seen < SETTLED:
            self.seen += 1
            self.overall += max(self.fast, 1.0 / (self.seen + 1)) * clipped
        self.cells[cell] = known = known + max(self.slow, 1.0 / (count + EVIDENCE)) * clipped
        self.usual += 0.02 * (known - self.usual)

    def settle(self) -> None:
        """What all cells share goes to the overall factor, so that it holds for unknown ones too."""
        shared = 0.3 * self.usual
        self.overall += shared
        self.usual -= shared
        for cell in self.cells:
            self.cells[cell] -= shared

    def factor(self, cell: tuple[int, int]) -> float:
        """By what a cell's times are multiplied, beside the overall factor; 1.0 for an unknown one."""
        count = self.counts.get(cell, 0)
        return math.exp(self.cells.get(cell, 0.0) * count / (count + EVIDENCE)) if count > 0 else 1.0


class StepCosts:
    """The cost of plain steps, of verifications and of a drafter's passes."""

    def __init__(self, samples: Sequence[StepSample] = ()) -> None:
        """samples: measured at load (`engine.runner.step_times`); none: rough guesses until steps have run."""
        self._points, self._per_request = _curve(samples)
        self._steps = Correction(FAST, SLOW)
        self._drafts = Correction(DRAFT_FAST, DRAFT_SLOW)
        self._calm = 0.0  # log of the speed in the long run
        self._lines: dict[int, list[float]] = {}
        self._draft_lines: dict[tuple[int, int], list[float]] = {}
        self._age = self._draft_age = 0
        self._context = _Slope()

    @property
    def speed(self) -> float:
        """Seconds that one unit of cost takes on this machine now."""
        return math.exp(self._steps.overall)

    def line(self, num_requests: int, num_rows: int) -> Sequence[float]:
        """The cost of a step by its rows: entry r is that of r rows, for r up to num_rows at least. Context left out.

        num_requests: of the whole step. The list is shared: not to be changed.
        """
        line = self._lines.get(num_requests)
        if line is None or len(line) <= num_rows:
            line = self._lines[num_requests] = self._line(num_requests, num_rows + 16)
        return line

    def context_cost(self, context: int) -> float:
        """What `context` tokens of all requests together add to a step; 0.0 where no such slope shows."""
        return self._context.slope * context

    def draft_line(self, num_requests: int, most: int) -> Sequence[float]:
        """The cost of a drafter's run for so many requests, by its passes: entry p is that of p passes, p <= most."""
        key = size_class(num_requests), most
        line = self._draft_lines.get(key)
        if line is None:
            guess, overall = self._guessed_draft(), math.exp(self._drafts.overall)
            line, factor = [0.0], self._nearest_draft_factor(key[0], most)
            for passes in range(1, most + 1):
                cell = key[0], passes
                factor = self._drafts.factor(cell) if cell in self._drafts.cells else factor
                line.append(max(guess * (passes + 0.5) * overall * factor, line[-1]))
            self._draft_lines[key] = line
        return line

    def observe_step(self, num_rows: int, num_requests: int, context: int, step_s: float) -> None:
        """A decode step has run. context: tokens of all its requests together."""
        modelled = self._modelled(num_requests, num_rows)
        cell = size_class(num_requests), num_rows
        speed = self.speed
        weight = CALM if self._age > SETTLED else 1.0
        self._calm += weight * (self._steps.overall - self._calm)
        self._context.observe(context, step_s / math.exp(self._calm) - modelled * self._steps.factor(cell), modelled)
        self._steps.observe(cell, max(step_s - self.context_cost(context) * speed, step_s * 0.5), modelled)
        self._age += 1
        if self._age % REFRESH == 0 or self._age in (2, 4, 8, 16):
            self._steps.settle()
            self._context.settle(self._points[0][1])
            self._lines.clear()

    def observe_draft(self, passes: int, num_requests: int, draft_s: float) -> None:
        """A drafter has run: so many passes, the first for so many requests."""
        modelled = self._guessed_draft() * (passes + 0.5)
        self._drafts.observe((size_class(num_requests), passes), draft_s / self.speed, modelled)
        self._draft_age += 1
        if self._draft_age % REFRESH == 0 or self._draft_age < SETTLED:
            self._draft_lines.clear()

    def _guessed_draft(self) -> float:
        return GUESSED_PASS * self._points[0][1]

    def _nearest_draft_factor(self, requests: int, most: int) -> float:
        seen = (passes for passes in range(1, most + 1) if (requests, passes) in self._drafts.cells)
        first = next(seen, None)
        return 1.0 if first is None else self._drafts.factor((requests, first))

    def _modelled(self, num_requests: int, num_rows: int) -> float:
        """The cost of a step before corrections."""
        return _interpolated(self._points, num_rows) + self._per_request * (num_requests - 1)

    def _line(self, num_requests: int, num_rows: int) -> list[float]:
        requests = size_class(num_requests)
        seen = sorted(rows for (size, rows) in self._steps.cells if size == requests)
        factors = [(rows, self._steps.factor((requests, rows))) for rows in seen]
        line = [
            self._modelled(num_requests, rows) * (_between(factors, rows) if factors else 1.0)
            for rows in range(num_rows + 1)
        ]
        line[0] = 0.0
        known, ceiling = set(seen), math.inf
        for rows in range(num_rows, 0, -1):  # what was not seen costs no more than what was, with more rows
            if rows in known:
                ceiling = min(ceiling, line[rows])
            else:
                line[rows] = min(line[rows], ceiling)
        return list(accumulate(line, max))


class _Slope:
    """The cost of a token of context, from what steps take beyond the model: a regression that forgets."""

    __slots__ = ("slope", "sums")

    def __init__(self) -> None:
        self.slope = 0.0
        self.sums = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # of 1, x, y, x * x, x * y, y * y

    def observe(self, context: int, rest: float, modelled: float) -> None:
        """context: tokens of a step. rest: what it cost beyond the model, whose own cost is `modelled`."""
        keep, x = 1.0 - 1.0 / CONTEXT_STEPS, float(context)
        y = min(max(rest, -modelled), modelled)  # one slow step must not bend the line
        n, sx, sy, sxx, sxy, syy = self.sums
        self.sums = (
            n * keep + 1.0,
            sx * keep + x,
            sy * keep + y,
            sxx * keep + x * x,
            sxy * keep + x * y,
            syy * keep + y * y,
        )

    def settle(self, plain: float) -> None:
        """Brings the slope up to what was seen; 0.0 where noise would do as an explanation."""
        n, sx, sy, sxx, sxy, syy = self.sums
        if n < CONTEXT_STEPS / 4:
            return
        mean, middle = sx / n, sy / n
        variance = sxx / n - mean * mean
        if variance < CONTEXT_SPREAD * CONTEXT_SPREAD:
            return
        slope = (sxy / n - mean * middle) / variance
        noise = max(syy / n - middle * middle - slope * slope * variance, 0.0)
        error = math.sqrt(noise / variance / n * ALIKE_STEPS)
        self.slope = min(slope, CONTEXT_MOST * plain / max(mean, 1.0)) if slope > 3.0 * error else 0.0


def size_class(count: int) -> int:
    """Requests whose steps are corrected together: 1, 2, 3 to 4, 5 to 8, ..."""
    return (count - 1).bit_length()


def _curve(samples: Sequence[StepSample]) -> tuple[list[tuple[int, float]], float]:
    """(rows, cost) points of steps of one request, rising, and the cost of a request more."""
    points: dict[int, float] = {}
    for sample in samples:
        if sample.num_requests == 1:
            points[sample.num_rows] = min(sample.step_s, points.get(sample.num_rows, math.inf))
    if not points:
        unit = min((sample.step_s / sample.num_requests for sample in samples), default=1.0)
        points = {1: unit, 11: unit * (1.0 + 10 * GUESSED_ROW)}
    curve, cheapest = [], math.inf
    for rows, cost in sorted(points.items(), reverse=True):
        cheapest = min(cheapest, max(cost, 1e-9))  # noise only ever adds: a dearer step with fewer rows was disturbed
        curve.append((rows, cheapest))
    curve.reverse()
    if len(curve) == 1:
        curve.append((curve[0][0] + 10, curve[0][1] * (1.0 + 10 * GUESSED_ROW)))
    others = sorted(
        (sample.step_s - _interpolated(curve, sample.num_rows)) / (sample.num_requests - 1)
        for sample in samples
        if sample.num_requests > 1
    )
    return curve, max(others[len(others) // 2], 0.0) if others else 0.0


def _interpolated(points: Sequence[tuple[int, float]], rows: int) -> float:
    """The curve's cost at any number of rows; beyond its end it rises as its second half does on the whole."""
    (first, cheapest), (last, dearest) = points[0], points[-1]
    if rows <= first:
        return cheapest
    if rows >= last:
        half = next(point for point in reversed(points[:-1]) if point[0] <= last // 2 or point is points[0])
        return dearest + (rows - last) * (dearest - half[1]) / (last - half[0])
    return _between(points, rows)


def _between(points: Sequence[tuple[int, float]], rows: int) -> float:
    """Linear between points; the ends' values beyond them."""
    index = bisect_left(points, (rows, -math.inf))
    if index == len(points):
        return points[-1][1]
    if index == 0 or points[index][0] == rows:
        return points[index][1]
    (low, one), (high, other) = points[index - 1], points[index]
    return one + (other - one) * (rows - low) / (high - low)
