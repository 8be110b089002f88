"""An answer's text to deltas: thoughts first, then content and calls.

Owns the join of the two parsers. Knows nothing of their forms. Invariant: without either, the text is the content.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.parsers.base import ContentDelta, Delta, ToolParser
from app.parsers.reasoning import ReasoningParser


class AnswerParser:
    """The parsers that an answer needs, as one."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning, self._tools = reasoning, tools

    def feed(self, text: str) -> list[Delta]:
        """What is certain after this text."""
        return self._with_calls([ContentDelta(text)] if self._reasoning is None else self._reasoning.feed(text))

    def finish(self) -> list[Delta]:
        """The rest, once there is no more text."""
        last = [] if self._reasoning is None else self._reasoning.finish()
        return self._with_calls(last) + ([] if self._tools is None else self._tools.finish())

    def _with_calls(self, deltas: Iterable[Delta]) -> list[Delta]:
        found: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, ContentDelta) and self._tools is not None:
                found += self._tools.feed(delta.text)
            elif not isinstance(delta, ContentDelta) or delta.text:
                found.append(delta)
        return found
