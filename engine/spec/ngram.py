"""Prompt lookup: a request's last tokens stood in its own text before; what followed there is proposed.

After github.com/apoorvumang/prompt-lookup-decoding. The longest n-gram of [min_length, max_length] decides, at its most
recent place: a text that is being copied or repeated goes on where it last went on, and what was changed there is
changed again. One token alone is no evidence (at best one guess in three is right), and n-grams of up to eight, at
half as much cost again, gain 2 % on recorded copying and nothing in chat. The confidence grows with the whole match.
Keeps an index of each request's text, built a slice a step. Never imports torch.
Invariant: what is kept of a request is dropped when it ends; nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request
from engine.core.speculation import NO_DRAFT, Draft
from engine.spec.base import NO_RUN, DraftWish
from engine.spec.contexts import MAX_MATCH
from engine.spec.continuation import continuation, followers
from engine.spec.own_text import OwnTexts


class NgramProposer:
    """The plainest proposer: no counts, no memory of other requests."""

    name = free = "ngram"
    costly = ""
    run = NO_RUN

    def __init__(self, min_length: int = 2, max_length: int = 5) -> None:
        """min_length, max_length: of the n-grams that are looked up, in tokens. ValueError where they are no range."""
        if not 1 <= min_length <= max_length <= MAX_MATCH:
            raise ValueError(
                f"n-grams of {min_length} to {max_length} tokens: give 1 <= min_length <= max_length <= {MAX_MATCH}"
            )
        self._texts = OwnTexts(tuple(range(min_length, max_length + 1)))

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        """See `Proposer`. All of num_drafts, or nothing: how much of it is verified is the controller's choice."""
        self._texts.advance([wish.request for wish in wishes])
        return [self._draft(wish) for wish in wishes]

    def end(self, request: Request) -> None:
        """See `Proposer`."""
        self._texts.end(request)

    def clear(self) -> None:
        """See `Proposer`. It learns nothing from requests that have ended."""

    def _draft(self, wish: DraftWish) -> Draft:
        tokens = wish.request.token_ids
        match = self._texts.of(wish.request).find(tokens[-MAX_MATCH:], 1)
        if match is None:
            return NO_DRAFT
        runs = followers(tokens, match.places, wish.num_drafts)
        return continuation(runs, match.length, least=0.0).draft(self.name)
