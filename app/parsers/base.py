"""The ground of all parsers of an answer: deltas, a reader of characters, the content around calls.

Owns how text comes in and deltas go out. Knows no form of call or thought. Invariant: a parser sees characters and the
end, never the chunks they came in, so an answer that is streamed and one that is not are parsed the same; text that is
no call or thought is content, none of it lost but white space at a call's edge.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

T = TypeVar("T")
Script = Generator[None, str | None, T]  # stops wherever it needs the next character, None for the end


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of one call: the first of an index has id and name, all have a piece of the arguments' JSON text."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


Delta = ContentDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class Tool:
    """A function on offer. parameters: the JSON schema of its arguments, an object's."""

    name: str
    parameters: Mapping[str, Any]


class UncallableTool(ValueError):
    """A tool whose calls a form cannot promise to be valid. The message says which and why."""


class Malformed(Exception):
    """What was begun as a call is none. The character that says so has not been taken."""


class CharacterReader:
    """Hands a script its characters, one at a time, and knows the next before it is taken."""

    def __init__(self) -> None:
        self._ahead: str | None = None
        self._has_ahead = False

    def peek(self) -> Script[str | None]:
        """The next character, None at the end; it stays the next."""
        if not self._has_ahead:
            self._ahead = yield
            self._has_ahead = True
        return self._ahead

    def take(self) -> Script[str]:
        """The next character. Raises Malformed at the end."""
        char = yield from self.peek()
        if char is None:
            raise Malformed
        self._has_ahead = False
        return char

    def expect(self, allowed: str) -> Script[str]:
        """The next character, which must be one of these. Raises Malformed."""
        char = yield from self.peek()
        if char is None or char not in allowed:
            raise Malformed
        return (yield from self.take())


class Parser(ABC):
    """A script fed from outside. Subclasses write `_script`, which reads from `_reader` and calls `_emit`."""

    def __init__(self) -> None:
        self._reader = CharacterReader()
        self._out: list[Delta] = []
        self._running = self._script()
        next(self._running)

    def feed(self, text: str) -> list[Delta]:
        """What is certain after this text."""
        for char in text:
            self._running.send(char)
        return self._taken()

    def finish(self) -> list[Delta]:
        """The rest, once there is no more text."""
        try:
            self._running.send(None)
        except StopIteration:
            return self._taken()
        raise AssertionError("a script ends with its text")

    @abstractmethod
    def _script(self) -> Script[None]:
        """How the text is read, from its first character to its end."""

    def _emit(self, delta: Delta) -> None:
        self._out.append(delta)

    def _taken(self) -> list[Delta]:
        taken, self._out = self._out, []
        return [_joined(list(neighbours)) for _, neighbours in groupby(taken, key=_belonging)]


def _belonging(delta: Delta) -> tuple[type[Delta], int]:
    return type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0


def _joined(deltas: list[Delta]) -> Delta:
    """Deltas of one thing as one."""
    first = deltas[0]
    if isinstance(first, ToolCallDelta):
        return replace(first, arguments="".join(each.arguments for each in deltas if isinstance(each, ToolCallDelta)))
    return replace(first, text="".join(each.text for each in deltas if not isinstance(each, ToolCallDelta)))


class ToolParser(Parser):
    """A parser of content and calls. names: the tools on offer; a call of another is no call.

    parallel: whether there may be several calls; if not, what looks like a second one is content. schemas: those of the
    tools' parameters, for forms whose arguments do not show their types.
    markers: spellings that a vocabulary may hold as special tokens, and that must then stay in the text.
    """

    markers: tuple[str, ...] = ()

    def __init__(
        self, names: Sequence[str], *, parallel: bool = True, schemas: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._names = frozenset(names)
        self._schemas = schemas or {}
        self._parallel = parallel
        self._num_calls = 0
        self._space = ""  # of content, dropped if a call follows
        self._at_call = False  # only white space since the last one
        super().__init__()

    @staticmethod
    @abstractmethod
    def call_format(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
        """xgrammar's structural tag for at least one call, and for no more than one unless parallel.

        Raises UncallableTool.
        """

    @staticmethod
    def template_id(call_id: str) -> str:
        """A call's id as the form's templates take it back."""
        return call_id

    def _content(self, text: str) -> None:
        text = self._space + text
        if self._at_call:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._at_call = False
            self._emit(ContentDelta(shown))

    def _end_content(self) -> None:
        if self._space:
            self._emit(ContentDelta(self._space))

    def _begin_call(self, name: str) -> int:
        """Announce a call; its index."""
        self._space, self._at_call = "", True
        index = self._num_calls
        self._num_calls += 1
        if not self._parallel:
            self._names = frozenset()
        self._emit(ToolCallDelta(index, "", id=f"call_{uuid.uuid4().hex}", name=name))
        return index

    def _text_until(self, *markers: str) -> Script[str]:
        """Content up to one of these markers, which is taken; "": up to the end."""
        held = ""
        while (yield from self._reader.peek()) is not None:
            held += yield from self._reader.take()
            if held in markers:
                return held
            while not any(marker.startswith(held) for marker in markers):
                self._content(held[0])
                held = held[1:]
        self._content(held)
        return ""

    def _word(self, word: str) -> Script[bool]:
        """Whether a word comes next, which is then taken; what had seemed to be its beginning is content."""
        seen = ""
        while seen != word and (yield from self._reader.peek()) == word[len(seen)]:
            seen += yield from self._reader.take()
        if seen != word:
            self._content(seen)
        return seen == word

    def _spaces(self) -> Script[str]:
        """The white space that comes next."""
        spaces = ""
        while (char := (yield from self._reader.peek())) is not None and char.isspace():
            spaces += yield from self._reader.take()
        return spaces

    def _word_of_letters(self, held: list[str]) -> Script[str]:
        """The letters, digits and the like that a tool's name may be made of; what is taken is also in held."""
        start = len(held)
        while (char := (yield from self._reader.peek())) is not None and (char.isalnum() or char in "_-."):
            held.append((yield from self._reader.take()))
        return "".join(held[start:])
