"""What the controller is told of a turn: who may have drafts, what became of them, and what it took. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request whose next token is due. limit: the most drafts it may have. context: its tokens. adaptive: False takes
    the limit whatever it costs. costly: the proposer among its own that takes time on the device, or empty. cached:
    tokens that were found in the prefix cache. left: the most tokens that it may still grow by."""

    request_id: str
    limit: int
    context: int
    greedy: bool
    adaptive: bool = True
    costly: str = ""
    cached: int = 0
    left: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """A draft that was verified. confidence: of its tokens, as the proposer gave it; of these the first num_drafted
    were judged."""

    request_id: str
    proposer: str
    num_drafted: int
    num_accepted: int
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """What a turn took. num_rows, num_requests: of the whole step. is_decode_only: every request in it had one row and
    its drafts. context: tokens of a request, on average. drafter_rows: that the costly drafter read in its first pass;
    0: it did not run."""

    draft_s: float
    step_s: float
    num_rows: int
    num_requests: int
    is_decode_only: bool
    context: int
    drafter_rows: int = 0
