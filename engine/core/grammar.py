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
