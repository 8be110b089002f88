"""The interface of proposers. Who implements it stands in `engine.spec.PROPOSERS`.

Knows requests, not tensors. Invariant: a proposer never changes a request; what it proposes costs time if it is wrong,
never a token: verification decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.core.request import Request
from engine.core.speculation import Draft


@dataclass(frozen=True, slots=True)
class DraftWish:
    """A request whose next token is due, and how many drafts it may have.

    num_drafts: at most, from anybody; at least 1. num_costly: at most from a drafter that computes on the device; 0
    where the controller finds that this does not pay. costly_hope: how many of these it expects to be accepted.
    """

    request: Request
    num_drafts: int
    num_costly: int
    costly_hope: float = 0.0


@dataclass(frozen=True, slots=True)
class DrafterRun:
    """What a drafter that computes on the device did when it was asked. num_rows: entries of its first pass, what it
    had to catch up with among them; 0: it did not run. draft_s: the time that it took."""

    num_rows: int = 0
    draft_s: float = 0.0


NO_RUN = DrafterRun()


class Proposer(Protocol):
    """Makes drafts."""

    name: str  # its key in PROPOSERS
    costly: str  # the proposer, this one or one within it, whose drafts take time on the device; empty: there is none
    free: str  # the one whose drafts do not; empty: there is none
    run: DrafterRun  # of the costly one in the last `propose`

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        """One draft for each wish, in order, of at most its num_drafts tokens; empty where it has nothing."""

    def end(self, request: Request) -> None:
        """A request has ended, for whatever reason: what is kept of it is decided now. Unknown ones are ignored."""

    def clear(self) -> None:
        """Drops what it learned from requests that have ended."""
