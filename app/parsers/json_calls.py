"""The forms in which a call is a JSON object: Hermes and Qwen, Llama 3, Mistral.

Owns the marks around the objects. Knows nothing of JSON itself. Invariant: a call is announced when its name is known
and its arguments begin, and stays one; what breaks off before that is content, as is what breaks off after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.parsers.base import Malformed, Script, Tool, ToolCallDelta, ToolParser
from app.parsers.json_text import CallObject, JsonReader


class JsonCallParser(ToolParser):
    """What the three share: reading one object that is a call."""

    def _call(self, before: str, *, needs_arguments: bool = False) -> Script[bool]:
        """One object. Where it is no call, `before` and what was read are content: False."""
        held = [before]
        index = -1

        def begin(name: str) -> None:
            nonlocal index
            held.clear()
            index = self._begin_call(name)

        def send(arguments: str) -> None:
            self._emit(ToolCallDelta(index, arguments))

        call = CallObject(self._reader, self._names, begin, send, held.append)
        try:
            yield from call.read(needs_arguments=needs_arguments)
        except Malformed:
            self._content("".join(held))
            return False
        return True

    def _rest(self) -> Script[None]:
        """All that is left is content."""
        while (yield from self._reader.peek()) is not None:
            self._content((yield from self._reader.take()))
        self._end_content()


class HermesParser(JsonCallParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` anywhere, once for each call."""

    markers = ("<tool_call>", "</tool_call>")

    @staticmethod
    def call_format(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
        tags = [object_tag(tool, "arguments", '<tool_call>\n{"name": ', "\n</tool_call>") for tool in tools]
        return separated(tags, "\n", parallel=parallel)

    def _script(self) -> Script[None]:
        begin, end = self.markers
        while (yield from self._text_until(begin)):
            spaces = yield from self._spaces()
            if (yield from self._call(begin + spaces)):
                self._content((yield from self._spaces()))
                yield from self._word(end)
        self._end_content()


class LlamaParser(JsonCallParser):
    """`{"name": ..., "parameters": {...}}` as the whole answer, or behind `<|python_tag|>`; several between `;`."""

    markers = ("<|python_tag|>",)

    @staticmethod
    def call_format(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
        tags = [object_tag(tool, "parameters", '{"name": ', "") for tool in tools]
        return separated(tags, "; ", parallel=parallel)

    def _script(self) -> Script[None]:
        self._content((yield from self._spaces()))
        if (yield from self._reader.peek()) == "{" and not (yield from self._calls("", needs_arguments=True)):
            yield from self._rest()
            return
        while (yield from self._text_until(self.markers[0])):
            spaces = yield from self._spaces()
            yield from self._calls(self.markers[0] + spaces, needs_arguments=False)
        self._end_content()

    def _calls(self, before: str, *, needs_arguments: bool) -> Script[bool]:
        """Calls one after another. False: the first is none."""
        if not (yield from self._call(before, needs_arguments=needs_arguments)):
            return False
        while True:
            between = yield from self._spaces()
            if (yield from self._reader.peek()) == ";":
                between += (yield from self._reader.take()) + (yield from self._spaces())
            if not between or (yield from self._reader.peek()) != "{":
                self._content(between)
                return True
            if not (yield from self._call(between, needs_arguments=needs_arguments)):
                return True


class MistralParser(JsonCallParser):
    """`[TOOL_CALLS]` and then a list of objects, or a name, `[ARGS]` and the arguments, again for each call."""

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    @staticmethod
    def call_format(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
        calls = separated([object_tag(tool, "arguments", '{"name": ', "") for tool in tools], ", ", parallel=parallel)
        return tag("[TOOL_CALLS][", calls, "]")

    @staticmethod
    def template_id(call_id: str) -> str:
        """Nine letters or digits: the family's templates take no others."""
        return "".join(char for char in call_id if char.isascii() and char.isalnum())[-9:].rjust(9, "0")

    def _script(self) -> Script[None]:
        mark = self.markers[0]
        while (yield from self._text_until(mark)):
            spaces = yield from self._spaces()
            if (yield from self._reader.peek()) == "[":
                bracket = yield from self._reader.take()
                yield from self._list(mark + spaces + bracket)
            else:
                yield from self._named(mark + spaces)
        self._end_content()

    def _list(self, before: str) -> Script[None]:
        before += yield from self._spaces()
        while (yield from self._call(before)):
            between = yield from self._spaces()
            char = yield from self._reader.peek()
            if char == "]":
                yield from self._reader.take()
                return
            if char != ",":
                self._content(between)
                return
            before = between + (yield from self._reader.take()) + (yield from self._spaces())

    def _named(self, before: str) -> Script[None]:
        """A name, perhaps an id, and the arguments."""
        _, args_mark, id_mark = self.markers
        held = [before]
        try:
            name = yield from self._word_of_letters(held)
            mark = yield from self._bracketed(held)
            if mark == id_mark:
                yield from self._word_of_letters(held)
                mark = yield from self._bracketed(held)
            held.append((yield from self._spaces()))
            if name not in self._names or mark != args_mark or (yield from self._reader.peek()) != "{":
                raise Malformed
            held.clear()
            index = self._begin_call(name)
            yield from JsonReader(self._reader).object(lambda text: self._emit(ToolCallDelta(index, text)))
        except Malformed:
            self._content("".join(held))

    def _bracketed(self, held: list[str]) -> Script[str]:
        """A mark's spelling, from bracket to bracket."""
        start = len(held)
        held.append((yield from self._reader.expect("[")))
        yield from self._word_of_letters(held)
        held.append((yield from self._reader.expect("]")))
        return "".join(held[start:])


class MistralArgsParser(MistralParser):
    """The same for templates that write the newer form."""

    @staticmethod
    def call_format(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
        tags = [tag(f"[TOOL_CALLS]{tool.name}[ARGS]", schema(tool.parameters), "") for tool in tools]
        return separated(tags, "", parallel=parallel)


def schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a structural tag that is JSON under a schema."""
    return {"type": "json_schema", "json_schema": dict(parameters)}


def tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def object_tag(tool: Tool, arguments_key: str, before_name: str, after: str) -> dict[str, Any]:
    """A call that is an object with the name before the arguments."""
    name = json.dumps(tool.name, ensure_ascii=False)
    return tag(f'{before_name}{name}, "{arguments_key}": ', schema(tool.parameters), "}" + after)


def separated(tags: Sequence[dict[str, Any]], separator: str, *, parallel: bool) -> dict[str, Any]:
    """At least one of these."""
    choice = {"type": "tags_with_separator", "tags": list(tags), "separator": separator}
    return {**choice, "at_least_one": True, "stop_after_first": not parallel}
