"""Suffix decoding where its match is strong, else the drafter, else what suffix decoding has.

A suffix draft costs nothing and a drafter's passes do, so the question is only which brings more tokens. *Strong* is a
suffix draft that expects at least as many accepted tokens as the controller expects of the drafter, from what it has
seen of it. Knows nothing of how either drafts; a draft bears the name of who made it. Never imports torch.
Invariant: the drafter is asked once a turn at most, only for requests that may have costly drafts, and for no more
tokens than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.core.request import Request
from engine.core.speculation import Draft
from engine.spec.base import NO_RUN, DraftWish, Proposer
from engine.spec.suffix import SuffixProposer


class HybridProposer:
    """Two proposers, and the choice between them for each request."""

    name = "hybrid"

    def __init__(self, suffix: SuffixProposer, drafter: Proposer) -> None:
        """drafter: one that computes on the device."""
        self.suffix = suffix
        self.drafter = drafter
        self.costly, self.free = drafter.costly, suffix.name
        self.run = NO_RUN

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        """See `Proposer`."""
        self.run = NO_RUN
        found = self.suffix.continuations(wishes)
        drafts = [one.draft(self.suffix.name) for one in found]
        weak = [
            index
            for index, (wish, one) in enumerate(zip(wishes, found, strict=True))
            if wish.num_costly > 0 and (not one.token_ids or one.expected < wish.costly_hope)
        ]
        if not weak:
            return drafts
        made = self.drafter.propose([_costly_part(wishes[index]) for index in weak])
        self.run = self.drafter.run
        for index, draft in zip(weak, made, strict=True):
            if draft.token_ids:
                drafts[index] = draft
        return drafts

    def end(self, request: Request) -> None:
        """See `Proposer`."""
        self.suffix.end(request)
        self.drafter.end(request)

    def clear(self) -> None:
        """See `Proposer`."""
        self.suffix.clear()
        self.drafter.clear()


def _costly_part(wish: DraftWish) -> DraftWish:
    """The wish as the drafter gets it."""
    return replace(wish, num_drafts=min(wish.num_drafts, wish.num_costly))
