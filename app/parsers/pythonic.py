"""Calls written as a Python list of calls: `[f(a=1), g(b="x")]`, the form of Llama 3.2 and Llama 4.

Owns that form and the turn from Python's literals to JSON. Knows nothing of tools but their names. Invariant: a call is
announced when it is whole, with arguments that are a JSON object.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.parsers.base import Malformed, Script, Tool, ToolCallDelta, ToolParser, UncallableTool
from app.parsers.json_calls import schema, separated, tag

SCHEMA_KEYS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
    | {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"}
)
CLOSING = {"(": ")", "[": "]", "{": "}"}


class PythonicParser(ToolParser):
    """A list of calls as the whole answer, or between `<|python_start|>` and `<|python_end|>`."""

    markers = ("<|python_start|>", "<|python_end|>")

    @staticmethod
    def call_format(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
        tags = [tag(f"{tool.name}(", _keywords(tool), ")") for tool in tools]
        return tag("[", separated(tags, ", ", parallel=parallel), "]")

    def _script(self) -> Script[None]:
        start, end = self.markers
        self._content((yield from self._spaces()))
        if (yield from self._reader.peek()) == "[":
            yield from self._list("")
        while (yield from self._text_until(start)):
            spaces = yield from self._spaces()
            if (yield from self._reader.peek()) != "[":
                self._content(start + spaces)
            elif (yield from self._list(start + spaces)):
                self._content((yield from self._spaces()))
                yield from self._word(end)
        self._end_content()

    def _list(self, before: str) -> Script[bool]:
        """The list from bracket to bracket. False: it broke off, and what was no call is content."""
        held = [before]
        try:
            held.append((yield from self._reader.expect("[")))
            while True:
                held.append((yield from self._spaces()))
                name, arguments = yield from self._call(held)
                held.clear()
                self._emit(ToolCallDelta(self._begin_call(name), arguments))
                held.append((yield from self._spaces()))
                held.append((yield from self._reader.expect(",]")))
                if held[-1] == "]":
                    return True
        except Malformed:
            self._content("".join(held))
            return False

    def _call(self, held: list[str]) -> Script[tuple[str, str]]:
        """One call: its name and its arguments as JSON. Raises Malformed."""
        name = yield from self._name(held, "(")
        if name not in self._names:
            raise Malformed
        arguments: dict[str, str] = {}
        held.append((yield from self._spaces()))
        while (yield from self._reader.peek()) != ")":
            key = yield from self._name(held, "=")
            if not key or key in arguments:
                raise Malformed
            arguments[key] = _json_of((yield from self._literal(held)))
            if (yield from self._reader.peek()) == ",":
                held.append((yield from self._reader.take()))
                held.append((yield from self._spaces()))
        held.append((yield from self._reader.take()))
        return name, "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in arguments.items()) + "}"

    def _name(self, held: list[str], end: str) -> Script[str]:
        """A name and the character behind it, which is taken as well."""
        name = yield from self._word_of_letters(held)
        held.append((yield from self._spaces()))
        held.append((yield from self._reader.expect(end)))
        return name

    def _literal(self, held: list[str]) -> Script[str]:
        """A value's text, up to the comma or bracket behind it."""
        start, open_brackets = len(held), list[str]()
        while True:
            char = yield from self._reader.peek()
            if char is None or (char in ")]}" and open_brackets and open_brackets[-1] != char):
                raise Malformed
            if char in ",)" and not open_brackets:
                return "".join(held[start:])
            held.append((yield from self._reader.take()))
            if char in CLOSING:
                open_brackets.append(CLOSING[char])
            elif char in ")]}":
                if not open_brackets:
                    raise Malformed
                open_brackets.pop()
            elif char in "'\"":
                yield from self._quoted(char, held)

    def _quoted(self, quote: str, held: list[str]) -> Script[None]:
        while True:
            char = yield from self._reader.take()
            held.append(char)
            if char == "\\":
                held.append((yield from self._reader.take()))
            elif char == quote:
                return


def _json_of(literal: str) -> str:
    """A value written in Python, or in JSON, as JSON. Raises Malformed."""
    text = literal.strip()
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        try:
            text = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
            text.encode()  # a lone surrogate has no place in an answer
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise Malformed from error
    return text


def _keywords(tool: Tool) -> dict[str, Any]:
    """Keyword arguments under a tool's schema: those required, in order, then any of the others."""
    parameters = tool.parameters
    check_members(tool, r"[\w.-]+")
    properties: Mapping[str, Any] = parameters.get("properties", {})
    required = list(dict.fromkeys(parameters.get("required", ())))
    optional = [name for name in properties if name not in required]
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}

    def keyword(name: str, before: str) -> dict[str, Any]:
        part = properties[name]
        return tag(f"{before}{name}=", schema({**part, **shared} if isinstance(part, dict) else part), "")

    def maybe(name: str) -> dict[str, Any]:
        return {"type": "optional", "content": keyword(name, ", ")}

    if required:
        begun = [keyword(name, ", " if number else "") for number, name in enumerate(required)]
        return _sequence([*begun, *map(maybe, optional)])
    first = [_sequence([keyword(name, ""), *map(maybe, optional[at + 1 :])]) for at, name in enumerate(optional)]
    return {"type": "or", "elements": [*first, {"type": "const_string", "value": ""}]}


def check_members(tool: Tool, name_pattern: str) -> None:
    """Refuse what arguments, each written apart under its own schema, cannot promise. Raises UncallableTool."""
    properties = tool.parameters.get("properties", {})
    other = next((key for key in tool.parameters if key not in SCHEMA_KEYS), None)
    unlisted = next((name for name in tool.parameters.get("required", ()) if name not in properties), None)
    unwritable = next((name for name in properties if not re.fullmatch(name_pattern, name)), None)
    if other is not None:
        raise UncallableTool(
            f"the tool {tool.name}: {other!r} beside 'properties' is not supported by this model's form"
        )
    if unlisted is not None:
        raise UncallableTool(f"the tool {tool.name}: {unlisted!r} is required, but it is not among the properties")
    if unwritable is not None:
        raise UncallableTool(f"the tool {tool.name}: {unwritable!r} cannot be a keyword in this model's form of a call")


def _sequence(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "sequence", "elements": elements}
