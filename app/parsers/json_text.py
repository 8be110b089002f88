"""JSON read one character at a time, and the JSON object that is a call.

Owns strictness: what passes here is what `json.loads` takes. Knows nothing of the marks around a call. Invariant: every
character taken has been written to the sink; a fault raises Malformed before its character is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from app.parsers.base import CharacterReader, Malformed, Script

MAX_DEPTH = 64  # of values within values
WORD = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORD_CHARACTERS = "+-.0123456789eEaflnrstu"
SPACE = " \t\n\r"
ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("id", "type")

Sink = Callable[[str], None]


class JsonReader:
    """Reads JSON values off a character reader."""

    def __init__(self, reader: CharacterReader) -> None:
        self._reader = reader

    def value(self, sink: Sink, depth: int = 0) -> Script[None]:
        """Any value. One that is a number ends before the character after it."""
        char = yield from self._reader.peek()
        if char is None or depth > MAX_DEPTH:
            raise Malformed
        if char == "{":
            yield from self.object(sink, depth)
        elif char == "[":
            yield from self._array(sink, depth)
        elif char == '"':
            yield from self.string(sink)
        else:
            yield from self._word(sink)

    def string(self, sink: Sink) -> Script[None]:
        sink((yield from self._reader.expect('"')))
        while True:
            char = yield from self._reader.peek()
            if char is None or char < " ":
                raise Malformed
            sink((yield from self._reader.take()))
            if char == '"':
                return
            if char == "\\":
                escaped = yield from self._reader.expect('"\\/bfnrtu')
                sink(escaped)
                for _ in range(4 if escaped == "u" else 0):
                    sink((yield from self._reader.expect("0123456789abcdefABCDEF")))

    def object(self, sink: Sink, depth: int = 0) -> Script[None]:
        sink((yield from self._reader.expect("{")))
        yield from self.space(sink)
        if (yield from self._reader.peek()) != "}":
            while True:
                yield from self.string(sink)
                yield from self.symbol(":", sink)
                yield from self.value(sink, depth + 1)
                if (yield from self.symbol(",}", sink)) == "}":
                    return
        sink((yield from self._reader.take()))

    def symbol(self, allowed: str, sink: Sink) -> Script[str]:
        """One of these between white space; behind the one that ends something no white space is looked for."""
        yield from self.space(sink)
        char = yield from self._reader.expect(allowed)
        sink(char)
        if char in ":,":
            yield from self.space(sink)
        return char

    def space(self, sink: Sink) -> Script[None]:
        while (char := (yield from self._reader.peek())) is not None and char in SPACE:
            sink((yield from self._reader.take()))

    def _array(self, sink: Sink, depth: int) -> Script[None]:
        sink((yield from self._reader.expect("[")))
        yield from self.space(sink)
        if (yield from self._reader.peek()) != "]":
            while True:
                yield from self.value(sink, depth + 1)
                if (yield from self.symbol(",]", sink)) == "]":
                    return
        sink((yield from self._reader.take()))

    def _word(self, sink: Sink) -> Script[None]:
        word = ""
        while (char := (yield from self._reader.peek())) is not None and char in WORD_CHARACTERS:
            word += yield from self._reader.take()
            sink(char)
        if not WORD.fullmatch(word):
            raise Malformed


class CallObject:
    """A call as one JSON object: a tool's name and its arguments, in either order.

    names: what may be called. begin: told the name when the call is certain to be one. arguments: their text as it
    comes. held: told the rest of the object's text, and that of arguments that come before the name.
    """

    def __init__(
        self,
        reader: CharacterReader,
        names: Collection[str],
        begin: Callable[[str], None],
        arguments: Sink,
        held: Sink,
    ) -> None:
        self._reader, self._json = reader, JsonReader(reader)
        self._names, self._begin, self._send, self._held = names, begin, arguments, held
        self._name: str | None = None
        self._arguments: str | None = None  # once they have been read

    def read(self, *, needs_arguments: bool) -> Script[None]:
        """The object, from brace to brace. Raises Malformed."""
        seen: set[str] = set()
        yield from self._json.symbol("{", self._held)
        yield from self._json.space(self._held)
        while True:
            key = yield from self._string()
            kind = "arguments" if key in ARGUMENT_KEYS else key
            if kind in seen or kind not in ("name", "arguments", *OTHER_KEYS):
                raise Malformed
            seen.add(kind)
            yield from self._json.symbol(":", self._held)
            yield from self._member(kind)
            yield from self._json.space(self._held)
            if (yield from self._reader.peek()) == "}":
                break
            yield from self._json.symbol(",", self._held)
        if self._name is None or (needs_arguments and self._arguments is None):
            raise Malformed
        self._held((yield from self._reader.take()))
        if self._arguments is None:
            self._begin(self._name)
            self._send("{}")

    def _member(self, kind: str) -> Script[None]:
        if kind == "arguments":
            yield from self._read_arguments()
        elif kind == "name":
            name = yield from self._string()
            if name not in self._names:
                raise Malformed
            self._name = name
            if self._arguments is not None:
                self._begin(name)
                self._send(self._arguments)
        else:
            yield from self._string()

    def _read_arguments(self) -> Script[None]:
        """An object, or a string that holds one; sent as they come where the name is known."""
        if (yield from self._reader.peek()) != "{":
            self._arguments = _object_text((yield from self._string()))
            if self._name is not None:
                self._begin(self._name)
                self._send(self._arguments)
        elif self._name is not None:
            self._begin(self._name)
            yield from self._json.object(self._send)
            self._arguments = ""
        else:
            text: list[str] = []

            def keep(char: str) -> None:
                text.append(char)
                self._held(char)

            yield from self._json.object(keep)
            self._arguments = "".join(text)

    def _string(self) -> Script[str]:
        text: list[str] = []

        def keep(char: str) -> None:
            text.append(char)
            self._held(char)

        yield from self._json.string(keep)
        return str(json.loads("".join(text)))


def _object_text(text: str) -> str:
    """The text, which must be that of a JSON object."""
    try:
        value: Any = json.loads(text)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise Malformed from error
    if not isinstance(value, dict):
        raise Malformed
    return text
