"""A message of Anthropic's API out of an answer's text: content blocks, and the events that bring them.

Owns the blocks' fields and the order of their events. Knows nothing of requests or of the wire. Invariant: one block is
open at a time, and a whole message is the sum of its events, as a client that reads a stream adds them up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.parsers.answer import AnswerParser
from app.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallDelta

Event = dict[str, Any]

CALL_PREFIX, ID_PREFIX = "call_", "toolu_"  # OpenAI's and Anthropic's way to begin the id of a call
_PARTIAL = TypeAdapter(dict[str, Any])


class MessageBlocks:
    """The events of one message's content as its text comes."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._num_blocks = 0
        self._open: tuple[type[Delta], int] | None = None  # what the open block is made of
        self.has_calls = False

    def feed(self, text: str) -> list[Event]:
        """What a piece of the text adds."""
        return self._events(self._parser.feed(text))

    def finish(self) -> list[Event]:
        """What the end of the text adds; it closes the last block."""
        return self._events(self._parser.finish()) + self._close()

    def _events(self, deltas: Sequence[Delta]) -> list[Event]:
        events: list[Event] = []
        for delta in deltas:
            belongs_to = type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0
            if self._open != belongs_to:
                events += self._close()
                self._open = belongs_to
                events.append(self._event("content_block_start", content_block=self._opening(delta)))
            change = _change(delta)
            if change is not None:
                events.append(self._event("content_block_delta", delta=change))
        return events

    def _close(self) -> list[Event]:
        if self._open is None:
            return []
        stop = self._event("content_block_stop")
        self._open = None
        self._num_blocks += 1
        return [stop]

    def _opening(self, delta: Delta) -> dict[str, Any]:
        match delta:
            case ContentDelta():
                return {"type": "text", "text": ""}
            case ReasoningDelta():
                return {"type": "thinking", "thinking": "", "signature": ""}
            case ToolCallDelta(id=call_id, name=name):
                self.has_calls = True
                block_id = f"{ID_PREFIX}{(call_id or '').removeprefix(CALL_PREFIX)}"
                return {"type": "tool_use", "id": block_id, "name": name, "input": {}}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "index": self._num_blocks, **fields}


def whole_content(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The blocks that these events bring."""
    blocks: list[dict[str, Any]] = []
    texts: list[list[str]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            texts.append([])
        elif event["type"] == "content_block_delta":
            texts[-1] += [value for name, value in event["delta"].items() if name != "type"]
    for block, pieces in zip(blocks, texts, strict=True):
        if block["type"] == "tool_use":
            block["input"] = called_input("".join(pieces))
        else:
            block[block["type"]] = "".join(pieces)
    return blocks


def called_input(arguments: str) -> dict[str, Any]:
    """A call's arguments as a value; of JSON that breaks off, what is complete in it, as their client reads it."""
    try:
        found: dict[str, Any] = json.loads(arguments or "{}", parse_int=_number, parse_float=_number)
    except json.JSONDecodeError:
        try:
            found = _PARTIAL.validate_json(arguments, experimental_allow_partial=True)
        except ValidationError:  # it holds half a surrogate pair or a number out of range: there is no value to it
            return {}
    return found


def _number(text: str) -> int | float:
    """A number of a JSON text; the largest there is for one beyond, which JSON could not say again."""
    if text.lstrip("-").isdecimal() and len(text) < 300:
        return int(text)
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _change(delta: Delta) -> dict[str, Any] | None:
    """None of a delta that only announces its block."""
    match delta:
        case ContentDelta(text=text):
            return {"type": "text_delta", "text": text}
        case ReasoningDelta(text=text):
            return {"type": "thinking_delta", "thinking": text}
        case ToolCallDelta(arguments=arguments):
            return {"type": "input_json_delta", "partial_json": arguments} if arguments else None
