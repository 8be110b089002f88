"""Reads answers through parsers, whole or in pieces, and sums up what came."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.parsers.answer import AnswerParser
from app.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallDelta, ToolParser
from app.parsers.reasoning import ReasoningParser

NAMES = ("get_weather", "add", "get-time")
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {"properties": {"city": {"type": "string"}}},
    "add": {"properties": {"a": {"type": "integer"}, "b": {"type": "array"}}},
}


@dataclass
class Answer:
    """What a client would have put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name, arguments


def joined(deltas: Iterable[Delta]) -> Answer:
    answer = Answer()
    ids = set[str]()
    for delta in deltas:
        match delta:
            case ContentDelta():
                assert delta.text
                answer.content += delta.text
            case ReasoningDelta():
                assert delta.text
                answer.reasoning += delta.text
            case ToolCallDelta():
                if delta.index == len(answer.calls):
                    assert delta.id is not None
                    assert re.fullmatch("call_[0-9a-f]{32}", delta.id)
                    assert delta.name is not None
                    assert delta.id not in ids
                    ids.add(delta.id)
                    answer.calls.append((delta.name, delta.arguments))
                else:
                    assert delta.id is None
                    assert delta.name is None
                    assert delta.index == len(answer.calls) - 1
                    name, arguments = answer.calls[delta.index]
                    answer.calls[delta.index] = (name, arguments + delta.arguments)
    return answer


def read(
    pieces: Sequence[str],
    tools: type[ToolParser] | None = None,
    reasoning: type[ReasoningParser] | None = None,
    *,
    opened: bool = False,
    names: Sequence[str] = NAMES,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
) -> Answer:
    parser = AnswerParser(
        None if reasoning is None else reasoning(opened=opened),
        None if tools is None else tools(names, schemas=schemas or SCHEMAS),
    )
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return joined(deltas + parser.finish())


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    """A text cut at these places."""
    places = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]
