"""What the scheduler knows of a grammar: which tokens may come, and how it moves on.

The state belongs to the request, not to the runner, so that preemption loses nothing, and moves by tokens that count
alone, never by drafts. Who implements it, `engine.sample.grammar` does, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class GrammarMatcher(Protocol):
    """Where one answer stands in its grammar."""

    def allowed(self) -> bytes:
        """The tokens that may come next, a bit per token id, lowest bit first. Not asked once complete."""

    def allowed_along(self, token_ids: Sequence[int]) -> list[bytes]:
        """The masks before each of these tokens and behind the last, as if they came; the state stays as it is.

        Ends at the first token that is not allowed or completes the answer: as many tokens as masks but one may come.
        """

    def accept(self, token_id: int) -> None:
        """Moves on by a token that was allowed."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow: the answer ends."""


def follow(matcher: GrammarMatcher, token_ids: Sequence[int]) -> str | None:
    """Moves on by the tokens of an answer that exists. What is wrong where it does not belong to the grammar."""
    for place, token_id in enumerate(token_ids):
        if matcher.is_complete:
            return f"the answer goes on with token {place} where the grammar is complete"
        if not matcher.allowed()[token_id // 8] >> token_id % 8 & 1:
            return f"token {place} of the answer is not one that the grammar allows there"
        matcher.accept(token_id)
    return "the grammar is complete: nothing can follow" if matcher.is_complete else None
