"""An assistant's message in OpenAI's fields, out of an answer's text.

Owns the fields `content`, `reasoning_content` and `tool_calls`. Knows nothing of choices or chunks. Invariant: the
fields of the deltas joined, as a client does it, are those of the whole message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.parsers.answer import AnswerParser
from app.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallDelta


class MessageText:
    """One message as its text comes, or the whole of it."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self.has_calls = False

    def delta(self, text: str) -> dict[str, Any]:
        """What a piece of the text adds to the fields."""
        return self._fields(self._parser.feed(text))

    def rest(self) -> dict[str, Any]:
        """What the end of the text adds."""
        return self._fields(self._parser.finish())

    def whole(self, text: str) -> dict[str, Any]:
        """The fields of a message whose text this is."""
        deltas = self._parser.feed(text) + self._parser.finish()
        calls: list[dict[str, Any]] = []
        for delta in deltas:
            if isinstance(delta, ToolCallDelta) and delta.index == len(calls):
                calls.append(_call(delta))
            elif isinstance(delta, ToolCallDelta):
                calls[delta.index]["function"]["arguments"] += delta.arguments
        self.has_calls = bool(calls)
        content, reasoning = _text(deltas, ContentDelta), _text(deltas, ReasoningDelta)
        message: dict[str, Any] = {"content": content or (None if calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return message

    def _fields(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        calls = [{"index": each.index, **_call(each)} for each in deltas if isinstance(each, ToolCallDelta)]
        self.has_calls = self.has_calls or bool(calls)
        fields = {
            "reasoning_content": _text(deltas, ReasoningDelta),
            "content": _text(deltas, ContentDelta),
            "tool_calls": calls,
        }
        return {name: value for name, value in fields.items() if value}


def _text(deltas: Sequence[Delta], kind: type[ContentDelta] | type[ReasoningDelta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


def _call(delta: ToolCallDelta) -> dict[str, Any]:
    """A call, or more of it: the id and the name come once."""
    if delta.id is None:
        return {"function": {"arguments": delta.arguments}}
    return {"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": delta.arguments}}
