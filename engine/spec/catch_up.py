"""What a drafter with a cache of its own has not read yet, and what reading it costs.

A drafter reads, before it drafts, what the target has computed while nobody drafted: the prompt, first of all. Knows
requests by name, and counts; nothing of how drafts are made. What a prefix was found of is taken for read: whoever left
it may have drafted. Invariant: estimates decide only whether a drafter is asked; what is charged was measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.spec.turn import Candidate

HORIZON = 256  # tokens: an answer is not thought to go on by more
WEIGHT = 0.3  # of a new measurement of a row's cost
SLACK = 16  # rows beyond the usual ones that are not told apart from them


class CatchUp:
    """The reading of one drafter."""

    __slots__ = ("_asked", "_read", "_row")

    def __init__(self) -> None:
        self._read: dict[str, int] = {}  # tokens of each running request that was asked for
        self._asked: list[Candidate] = []  # in this turn
        self._row = 0.0  # cost of a row, 0.0 until one was measured

    def cost(self, candidate: Candidate) -> float:
        """What the drafter costs for this request beyond a usual run; 0.0 where that is not known yet."""
        return self._row * max(self._missing(candidate) - SLACK, 0)

    def is_worth_it(self, candidate: Candidate, hoped: float, plain: float) -> bool:
        """Whether drafts can give that back. hoped: accepted drafts of a step. plain: the cost of a plain step of this
        request. Drafts that cost nothing else would save hoped / (1 + hoped) of the steps to come."""
        steps = min(candidate.left, HORIZON)
        return self.cost(candidate) < steps * plain * hoped / (1.0 + hoped)

    def ask(self, candidates: Iterable[Candidate]) -> None:
        """The drafter is asked for these in this turn."""
        self._asked = list(candidates)

    def ran(self, rows: int) -> None:
        """So many rows were read for those that were asked for, where least was missing first."""
        for candidate in sorted(self._asked, key=self._missing):
            part = min(self._missing(candidate), rows)
            self._read[candidate.request_id] = candidate.context - self._missing(candidate) + part
            rows -= part
        self._asked = []

    def measured(self, rows: int, cost: float) -> None:
        """So many rows beyond the usual ones were read, at this cost."""
        found = cost / rows
        self._row += (found - self._row) * (WEIGHT if self._row else 1.0)

    def _missing(self, candidate: Candidate) -> int:
        return candidate.context - self._read.get(candidate.request_id, candidate.cached)

    def end(self, request_id: str) -> None:
        """A request has ended. Unknown ones are ignored."""
        self._read.pop(request_id, None)
