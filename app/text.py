"""Text on its way in and out: chat templates, incremental detokenisation, stop strings.

Owns the three pure pieces between a conversation and token ids. Knows nothing of requests, engines or HTTP.
Invariant: whatever way the tokens are split into steps, the concatenated output is the same, no UTF-8 sequence is ever
split, and nothing is held back except an incomplete character or a proper prefix of a stop string.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.vocab import Vocab

CONTINUED = "\ufdd2 "  # behind the message that the answer continues; a template that trims takes the space
OWN_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "continue_final_message"}
)


class ChatTemplateError(ValueError):
    """The template is broken, or it refuses these messages. The text is the template's own where it gave one."""


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks the assistant's part for training: here only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja reads it from the class and declares it of the instance

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML characters, which a model never saw in training
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A model's chat template, compiled once and rendered in Jinja's sandbox."""

    def __init__(self, source: str, *, bos_token: str | None = None, eos_token: str | None = None) -> None:
        self.source = source
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            environment = _environment()
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template does not parse: line {error.lineno}: {error.message}"
            ) from error
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text for these messages, ready to be encoded with special tokens parsed and none added.

        continue_final_message: it ends where the last message's content does. variables: more of them, for the
        template to look at; `variables` of the template tells which it does.
        """
        given = [dict(message) for message in messages]
        if continue_final_message:
            given[-1]["content"] = f"{given[-1]['content']}{CONTINUED}"
        text = self._rendered(given, tools, add_generation_prompt, variables or {})
        return _up_to_the_mark(text) if continue_final_message else text

    def _rendered(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        own = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None,
            **self._special,
        }
        try:
            return self._template.render({**variables, **own})
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error.message}") from error
        except Exception as error:  # a template is a program, and can raise anything
            raise ChatTemplateError(f"the chat template cannot render these messages: {error}") from error


def _up_to_the_mark(text: str) -> str:
    """The prompt before the end of the last message, trimmed where the template trims messages."""
    mark = CONTINUED.rstrip()
    before, found, after = text.rpartition(mark)
    if not found:
        raise ChatTemplateError("the chat template does not show the last message's content: it cannot be continued")
    return before if after.startswith(CONTINUED.removeprefix(mark)) else before.rstrip()


class TokenBytes(Protocol):
    """What the detokenizer needs of a vocabulary."""

    def token_bytes(self, token_id: int) -> bytes: ...


class ShownSpecials:
    """A vocabulary in which some special tokens, which else are no text, are the text that they are spelled with."""

    def __init__(self, vocab: Vocab, spellings: Iterable[str]) -> None:
        encoded = {spelling: vocab.encode(spelling) for spelling in spellings}
        self._token_bytes = vocab.token_bytes
        self._shown = {
            ids[0]: spelling.encode()
            for spelling, ids in encoded.items()
            if len(ids) == 1 and ids[0] in vocab.special_ids
        }

    def token_bytes(self, token_id: int) -> bytes:
        return self._shown.get(token_id) or self._token_bytes(token_id)


class IncrementalDetokenizer:
    """Token ids to text as they come. Holds back only the bytes of an unfinished UTF-8 sequence."""

    def __init__(self, vocab: TokenBytes) -> None:
        self._token_bytes: Callable[[int], bytes] = vocab.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that is certain now."""
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def finish(self) -> str:
        """What was held back: U+FFFD for a sequence that never became whole, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopStringMatcher:
    """Finds the first stop string in text that comes in pieces.

    "First" is the one that ends first (of several that end together, the longest), since that alone does not depend on
    how the text was split. Text is held back only as far as its longest suffix that is a proper prefix of a stop
    string. `include`: the stop string that was found comes out as well.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that can be sent now. After a match (see `matched`) nothing more comes out."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return text[: end if self._include else start]
        keep = self._prefix_suffix_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text that was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _prefix_suffix_length(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            suffix = text[len(text) - length :]
            if any(length < len(stop) and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
