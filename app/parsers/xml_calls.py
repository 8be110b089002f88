"""Calls written as tags, one for each argument: `<function=f><parameter=a>1</parameter></function>` (Qwen3-Coder).

Owns that form and the grammar of a call in it. Knows nothing of types beyond asking `typed_text`. Invariant: a call is
announced when its name is known and its arguments begin; an argument that can only be a string comes as it is written,
any other once it is whole; what breaks off after that is content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.parsers.base import Malformed, Script, Tool, ToolCallDelta, ToolParser, UncallableTool
from app.parsers.json_calls import schema, separated, tag
from app.parsers.pythonic import check_members
from app.parsers.typed_text import STRING, json_of, referred, types_of

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
NAME = r"[^<>\s]+"
TEXT_KEYS = frozenset({"type", "title", "description", "default", "examples", "deprecated", "$comment"})
JSON_TEXT = "[{"  # what begins a JSON text that may hold strings


class XmlCallParser(ToolParser):
    """`<tool_call>` and one function anywhere, once for each call; models leave the outer mark out at times."""

    markers = (BEGIN, END)

    @staticmethod
    def call_format(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
        tags = [tag(f"{BEGIN}\n{FUNCTION}{tool.name}>\n", _members(tool), f"{FUNCTION_END}\n{END}") for tool in tools]
        return separated(tags, "\n", parallel=parallel)

    def _script(self) -> Script[None]:
        while found := (yield from self._text_until(BEGIN, FUNCTION)):
            held = [found]
            try:
                if found == BEGIN:
                    yield from self._skip(held)
                    yield from self._one_of((FUNCTION,), held)
                yield from self._function(held)
            except Malformed:
                self._content("".join(held))
                continue
            self._content((yield from self._spaces()))
            yield from self._word(END)
        self._end_content()

    def _function(self, held: list[str]) -> Script[None]:
        """From the name to the end. held: told what is neither announced nor sent yet."""
        name = yield from self._up_to_bracket(held)
        if name not in self._names:
            raise Malformed
        yield from self._skip(held)
        mark = yield from self._one_of((PARAMETER, FUNCTION_END), held)
        index = self._begin_call(name)
        parameters = self._schemas.get(name, {})
        separator = "{"
        while mark == PARAMETER:
            key = yield from self._up_to_bracket(held)
            held.clear()
            self._emit(ToolCallDelta(index, f"{separator}{json.dumps(key, ensure_ascii=False)}: "))
            separator = ", "
            types = types_of(parameters.get("properties", {}).get(key), parameters)
            yield from (self._string(index) if types == STRING else self._value(index, types))
            yield from self._skip(held)
            mark = yield from self._one_of((PARAMETER, FUNCTION_END), held)
        held.clear()
        self._emit(ToolCallDelta(index, "}" if separator == ", " else "{}"))

    def _string(self, index: int) -> Script[None]:
        """A string's text, sent as it comes."""
        self._emit(ToolCallDelta(index, '"'))
        yield from self._line_break()
        held = ""
        while True:
            char = yield from self._reader.peek()
            if char is None:
                self._emit(ToolCallDelta(index, _escaped(held)))
                raise Malformed
            held += yield from self._reader.take()
            if held in (PARAMETER_END, f"\n{PARAMETER_END}"):
                self._emit(ToolCallDelta(index, '"'))
                return
            while not (PARAMETER_END.startswith(held) or f"\n{PARAMETER_END}".startswith(held)):
                self._emit(ToolCallDelta(index, _escaped(held[0])))
                held = held[1:]

    def _value(self, index: int, types: frozenset[str]) -> Script[None]:
        """A value of another type, sent when it is whole. A mark inside a JSON text's strings is part of them."""
        yield from self._line_break()
        text = ""
        begun = is_json = quoted = escaped = False
        try:
            while quoted or not text.endswith(PARAMETER_END):
                char = yield from self._reader.take()
                if not begun and not char.isspace():
                    begun, is_json = True, char in JSON_TEXT and "string" not in types
                text += char
                is_json = is_json and not (quoted and char == "\n")  # which no JSON string holds
                quoted = is_json and quoted ^ (char == '"' and not escaped)
                escaped = quoted and char == "\\" and not escaped
        except Malformed:
            self._emit(ToolCallDelta(index, text))
            raise
        self._emit(ToolCallDelta(index, json_of(text.removesuffix(PARAMETER_END).removesuffix("\n"), types)))

    def _line_break(self) -> Script[None]:
        """The one behind a mark, which is no part of the value."""
        if (yield from self._reader.peek()) == "\n":
            yield from self._reader.take()

    def _up_to_bracket(self, held: list[str]) -> Script[str]:
        start = len(held)
        while (char := (yield from self._reader.peek())) != ">":
            if char is None or char.isspace() or char == "<":
                raise Malformed
            held.append((yield from self._reader.take()))
        name = "".join(held[start:])
        held.append((yield from self._reader.take()))
        return name

    def _one_of(self, words: Sequence[str], held: list[str]) -> Script[str]:
        """The one of these words that comes next. Raises Malformed."""
        seen = ""
        while seen not in words:
            char = yield from self._reader.peek()
            if char is None or not any(word.startswith(seen + char) for word in words):
                raise Malformed
            seen += yield from self._reader.take()
            held.append(char)
        return seen

    def _skip(self, held: list[str]) -> Script[None]:
        held.append((yield from self._spaces()))


def _escaped(text: str) -> str:
    """A part of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _members(tool: Tool) -> dict[str, Any]:
    """The arguments under a tool's schema: those required, in order, then any of the others."""
    check_members(tool, NAME)
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = list(dict.fromkeys(tool.parameters.get("required", ())))
    members = [_member(tool, name) for name in required]
    members += [{"type": "optional", "content": _member(tool, name)} for name in properties if name not in required]
    return {"type": "sequence", "elements": members} if members else {"type": "const_string", "value": ""}


def _member(tool: Tool, name: str) -> dict[str, Any]:
    part = tool.parameters["properties"][name]
    begin, end = f"{PARAMETER}{name}>\n", f"\n{PARAMETER_END}\n"
    if "string" in types_of(part, tool.parameters):
        texts = [text for leaf in _leaves(part, tool.parameters) for text in _texts(leaf, tool, name)]
        return tag(begin, texts[0] if len(texts) == 1 else {"type": "or", "elements": texts}, end)
    shared = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return tag(begin, schema({**part, **shared}), end)


def _leaves(part: Any, root: Mapping[str, Any]) -> list[Any]:
    """The schemas of which any may hold."""
    part = referred(part, root)
    if isinstance(part, Mapping) and isinstance(part.get("anyOf"), list) and not part.keys() - TEXT_KEYS - {"anyOf"}:
        return [leaf for each in part["anyOf"] for leaf in _leaves(each, root)]
    if isinstance(part, Mapping) and isinstance(part.get("type"), list):
        return [{**part, "type": each} for each in part["type"]]
    return [part]


def _texts(leaf: Any, tool: Tool, name: str) -> list[dict[str, Any]]:
    """The forms of text that a schema admits. Raises UncallableTool for what text cannot promise."""
    if isinstance(leaf, Mapping):
        kinds = leaf.keys() - TEXT_KEYS
        values = leaf["enum"] if kinds == {"enum"} else [leaf["const"]] if kinds == {"const"} else None
        if values and all(isinstance(each, str) and PARAMETER_END not in each for each in values):
            return [{"type": "const_string", "value": each} for each in values]
        if not kinds and leaf.get("type") == "null":
            return [{"type": "const_string", "value": "null"}]
        if not kinds and leaf.get("type", "string") == "string":
            return [{"type": "any_text", "excludes": [PARAMETER_END]}]
    raise UncallableTool(
        f"the tool {tool.name}: this model's form writes {name!r} as plain text, of which no more can be promised than "
        "that it is any string, null, or one of a list of strings"
    )
