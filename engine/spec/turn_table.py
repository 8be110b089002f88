"""What turns took, by how many requests were in them and how much context: the figures that a verdict is made of.

Owns the windows of measured turns, their blocks, and the wish for a plain step where none was seen for long. Knows
nothing of tokens, proposers or decisions, and is not asked by the controller. Turns follow each other and are alike
for one reason, so spreads are taken between blocks of turns (batch means), never between single ones.
Invariants: only turns in which everybody decoded are here; the first turn of a size is left out, since it may hold the
recording of a step; a window forgets its oldest block, so that what stands here is of late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.speculation import CostBucket, DraftsCost
from engine.spec.costs import size_class

BLOCK, BLOCKS = 20, 50  # turns of a block, blocks of a window: the last 1,000 turns of a bucket
PLAIN_BLOCK, PLAIN_BLOCKS = 4, 50
ENOUGH_PLAIN = 12  # plain steps of a bucket, before it is content with few more
PLAIN_EVERY, FIRST_PLAIN_EVERY = 128, 16  # turns without a plain step after which one is wished for
MEMORY = 500  # turns that a mean by drafts is of, about
CONTEXT_EDGES = (0, 512, 2048, 8192, 32768)  # tokens of a request
SEND_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """A turn in which everybody decoded. drafted, accepted: tokens of all requests together. drafts_allowed: somebody
    could have had a draft. forced: somebody drafts whatever it costs, so that the turn says nothing of what pays."""

    t_s: float
    num_requests: int
    context: int
    step_s: float
    draft_s: float = 0.0
    drafted: int = 0
    accepted: int = 0
    drafts_allowed: bool = False
    forced: bool = False


class Window:
    """Means of several figures over blocks of turns, the oldest of which goes first."""

    def __init__(self, size: int, most: int) -> None:
        self._size = size
        self.blocks: deque[tuple[float, ...]] = deque(maxlen=most)
        self._open: list[tuple[float, ...]] = []

    def add(self, *figures: float) -> None:
        self._open.append(figures)
        if len(self._open) == self._size:
            self.blocks.append(tuple(sum(column) / self._size for column in zip(*self._open, strict=True)))
            self._open.clear()

    def clear(self) -> None:
        self.blocks.clear()
        self._open.clear()

    @property
    def turns(self) -> int:
        """In whole blocks: those that the figures are of."""
        return len(self.blocks) * self._size

    def column(self, index: int) -> list[float]:
        return [block[index] for block in self.blocks]


@dataclass(slots=True)
class _ByDrafts:
    """Running means of the turns with so many drafts of a request."""

    turns: int = 0
    step_s: float = 0.0
    accepted: float = 0.0

    def add(self, step_s: float, accepted: float) -> None:
        self.turns += 1
        weight = max(1.0 / self.turns, 1.0 / MEMORY)
        self.step_s += weight * (step_s - self.step_s)
        self.accepted += weight * (accepted - self.accepted)


@dataclass(slots=True)
class _Bucket:
    """The turns of one size and one context."""

    plain: Window = field(default_factory=lambda: Window(PLAIN_BLOCK, PLAIN_BLOCKS))
    plain_t_s: float = 0.0
    plain_seen: int = 0
    since_plain: int = 0
    drafting: Window = field(default_factory=lambda: Window(BLOCK, BLOCKS))
    t_s: float = 0.0
    by_drafts: dict[int, _ByDrafts] = field(default_factory=dict)

    def clear(self) -> None:
        """All but the plain steps."""
        self.drafting.clear()
        self.by_drafts.clear()


class TurnTable:
    """The measured turns of one engine."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], _Bucket] = {}
        self._met: set[tuple[int, int]] = set()  # (requests, rows) of which a turn was left out
        self._changed = False
        self._next_s = 0.0

    def observe(self, turn: MeasuredTurn) -> None:
        """A turn is over."""
        size = turn.num_requests, turn.num_requests + turn.drafted
        if size not in self._met:
            self._met.add(size)
            return
        bucket = self._buckets.setdefault(_key(turn.num_requests, turn.context), _Bucket())
        self._changed = True
        if turn.drafted:
            bucket.since_plain += 1
        else:
            bucket.plain.add(turn.step_s)
            bucket.plain_t_s = turn.t_s
            bucket.plain_seen += 1
            bucket.since_plain = 0
        if not turn.drafts_allowed or turn.forced:
            return
        accepted = turn.accepted / turn.num_requests
        bucket.drafting.add(accepted, turn.step_s + turn.draft_s, turn.draft_s, turn.drafted / turn.num_requests)
        bucket.t_s = turn.t_s
        drafts = math.ceil(turn.drafted / turn.num_requests)
        bucket.by_drafts.setdefault(drafts, _ByDrafts()).add(turn.step_s, accepted)

    def claim_plain(self, num_requests: int, context: int) -> bool:
        """Whether this turn has to go without drafts, to know what plain steps take: seldom, and only where none came
        by itself. Said once, whatever becomes of the turn: a prompt may yet join it."""
        bucket = self._buckets.get(_key(num_requests, context))
        if bucket is None:
            return False
        if bucket.since_plain < (PLAIN_EVERY if bucket.plain_seen >= ENOUGH_PLAIN else FIRST_PLAIN_EVERY):
            return False
        bucket.since_plain = 0
        return True

    def clear(self) -> None:
        """How drafts are made has changed: what they took before is of no use. Plain steps are what they were."""
        for bucket in self._buckets.values():
            bucket.clear()
        self._changed = True

    def take(self, now_s: float) -> list[CostBucket] | None:
        """The table, where it has changed and was not taken within the last seconds."""
        if not self._changed or now_s < self._next_s:
            return None
        self._changed, self._next_s = False, now_s + SEND_EVERY_S
        return self.report()

    def report(self) -> list[CostBucket]:
        """Every bucket, few requests and little context first."""
        return [_report(*key, bucket) for key, bucket in sorted(self._buckets.items())]


def _key(num_requests: int, context: int) -> tuple[int, int]:
    return size_class(num_requests), sum(context >= edge for edge in CONTEXT_EDGES) - 1


def _report(size: int, context: int, bucket: _Bucket) -> CostBucket:
    plain, drafting = bucket.plain, bucket.drafting
    plain_s = plain.column(0)
    columns = [drafting.column(index) for index in range(4)]
    accepted, turn_s = columns[0], columns[1]
    means = [_mean(column) for column in columns]
    return CostBucket(
        requests_from=(1 << size >> 1) + 1 if size else 1,
        requests_to=1 << size,
        context_from=CONTEXT_EDGES[context],
        context_to=CONTEXT_EDGES[context + 1] if context + 1 < len(CONTEXT_EDGES) else 0,
        plain_steps=plain.turns,
        plain_blocks=len(plain.blocks),
        plain_s=_mean(plain_s),
        plain_variance=_covariance(plain_s, plain_s),
        plain_t_s=bucket.plain_t_s,
        steps=drafting.turns,
        blocks=len(drafting.blocks),
        accepted=means[0],
        drafted=means[3],
        step_s=means[1] - means[2],
        draft_s=means[2],
        accepted_variance=_covariance(accepted, accepted),
        time_variance=_covariance(turn_s, turn_s),
        covariance=_covariance(accepted, turn_s),
        t_s=bucket.t_s,
        by_drafts=[
            DraftsCost(drafts, each.turns, each.step_s, each.accepted)
            for drafts, each in sorted(bucket.by_drafts.items())
        ],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _covariance(ones: Sequence[float], others: Sequence[float]) -> float:
    """Of pairs, with n - 1; 0.0 for fewer than two."""
    if len(ones) < 2:
        return 0.0
    one, other = _mean(ones), _mean(others)
    return sum((x - one) * (y - other) for x, y in zip(ones, others, strict=True)) / (len(ones) - 1)
