"""The bodies of /v1's answers, whole and in chunks, for chat and for raw completion.

Owns their fields. Knows nothing of how they are sent. Invariant: the chunks of a choice joined are the whole choice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from fastapi import Response

from app.dialects.answer_plan import AnswerPlan
from app.dialects.logprobs import TokenSpelling, chat_logprobs, completion_logprobs, prompt_logprobs, prompt_tokens
from app.dialects.message_text import MessageText
from app.dialects.openai_schemas import ChatCompletionBody, CompletionBody
from app.generation import Generation
from app.sample_text import TokenLogprob

IGNORED_HEADER = "x-pizarra-ignored"
MAX_HEADER_LENGTH = 1000


class Shape(Protocol):
    """How one request's choices look. `waits_for_prompt`: an opening says what is known only with the first token."""

    prefix: str
    whole: str
    chunk: str
    waits_for_prompt: bool

    def choice(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> dict[str, Any]: ...

    def opening(self, index: int) -> dict[str, Any] | None: ...

    def delta(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None: ...

    def closing(self, index: int) -> dict[str, Any]: ...


class ChatShape:
    """Chat: messages, and deltas of them."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    waits_for_prompt = False

    def __init__(self, generation: Generation, body: ChatCompletionBody, plan: AnswerPlan) -> None:
        self._generation = generation
        self._messages = [MessageText(plan.parser()) for _ in generation.samples]
        self._with_logprobs = body.num_logprobs is not None
        self._prompt_logprobs = body.prompt_logprobs
        self._spelling = TokenSpelling(generation.engine.vocab)
        self._ids = TokenIds(generation, wanted=body.return_token_ids is True)

    def choice(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        message = {"role": "assistant", **self._messages[index].whole(text)}
        prompt = prompt_field(self._generation, self._prompt_logprobs, self._spelling)
        ids = self._ids.whole(index, tokens)
        logprobs = self._logprobs(tokens)
        return {"index": index, "message": message, "logprobs": logprobs, **self._end(index), **prompt, **ids}

    def opening(self, index: int) -> dict[str, Any]:
        return self._chunk(index, {"role": "assistant", "content": ""}) | self._ids.opening()

    def delta(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """None while what came is neither text nor a call yet."""
        delta = self._messages[index].delta(text)
        logprobs, ids = self._logprobs(tokens) if tokens else None, self._ids.delta(tokens)
        return self._chunk(index, delta, logprobs) | ids if delta or logprobs or ids else None

    def closing(self, index: int) -> dict[str, Any]:
        return {**self._chunk(index, self._messages[index].rest()), **self._end(index), **self._ids.closing(index)}

    def _end(self, index: int) -> dict[str, Any]:
        ending = _ending(self._generation, index)
        called = self._messages[index].has_calls and ending["finish_reason"] == "stop"
        return {"finish_reason": "tool_calls"} if called else ending

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(tokens, self._spelling) if self._with_logprobs else None


class TextShape:
    """Raw completion: text, behind the prompt where an echo is wanted."""

    prefix = "cmpl"
    whole = "text_completion"
    chunk = "text_completion"

    def __init__(self, generation: Generation, body: CompletionBody, prompt: str | None) -> None:
        """prompt: its text as it was given; None: made of the tokens that were."""
        self._generation = generation
        self._num_logprobs = body.logprobs
        self._prompt_logprobs = body.prompt_logprobs
        self._spelling = TokenSpelling(generation.engine.vocab)
        self._echo = ""
        if body.echo:
            spelled = b"".join(map(self._spelling.bytes_of, generation.message.prompt_token_ids))
            self._echo = spelled.decode(errors="replace") if prompt is None else prompt
        self.waits_for_prompt = body.echo and body.logprobs is not None
        self._ids = TokenIds(generation, wanted=body.return_token_ids is True)

    def choice(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        logprobs = self._logprobs(tokens)
        if logprobs is not None and (before := self._echo_logprobs()) is not None:
            logprobs = {name: before[name] + logprobs[name] for name in logprobs}
        body = {"index": index, "text": self._echo + text, "logprobs": logprobs}
        prompt = prompt_field(self._generation, self._prompt_logprobs, self._spelling)
        return {**body, **_ending(self._generation, index), **prompt, **self._ids.whole(index, tokens)}

    def opening(self, index: int) -> dict[str, Any] | None:
        ids = self._ids.opening()
        return self._chunk(index, self._echo, self._echo_logprobs()) | ids if self._echo or ids else None

    def delta(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._chunk(index, text, self._logprobs(tokens) if tokens else None) | self._ids.delta(tokens)

    def closing(self, index: int) -> dict[str, Any]:
        return {**self._chunk(index, ""), **_ending(self._generation, index), **self._ids.closing(index)}

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._num_logprobs is None:
            return None
        return completion_logprobs(tokens, self._spelling, shift=len(self._echo))

    def _echo_logprobs(self) -> dict[str, Any] | None:
        if not self.waits_for_prompt or self._num_logprobs is None:
            return None
        ids = self._generation.message.prompt_token_ids
        known = self._generation.prompt_logprobs
        tokens = prompt_tokens(ids, self._echo, known, self._num_logprobs, self._spelling)
        return completion_logprobs(tokens, self._spelling)


class TokenIds:
    """The fields of vLLM's `return_token_ids`: a choice's token ids, its prompt's, and what stopped it.

    The ids are those of the text: neither the end token nor what a stop string cut off. stop_reason: that string.
    """

    def __init__(self, generation: Generation, *, wanted: bool) -> None:
        self._generation = generation
        self._wanted = wanted

    def opening(self) -> dict[str, Any]:
        return {"prompt_token_ids": self._generation.message.prompt_token_ids} if self._wanted else {}

    def delta(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"token_ids": [each.token_id for each in tokens]} if self._wanted and tokens else {}

    def closing(self, index: int) -> dict[str, Any]:
        return {"stop_reason": self._generation.samples[index].matched_stop} if self._wanted else {}

    def whole(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        ids = {"token_ids": [each.token_id for each in tokens]} if self._wanted else {}
        return {**self.opening(), **ids, **self.closing(index)}


def prompt_field(generation: Generation, num_top: int | None, spelling: TokenSpelling) -> dict[str, Any]:
    """vLLM's field `prompt_logprobs`, where it was asked for."""
    if num_top is None or generation.prompt_logprobs is None:
        return {}
    ids = generation.message.prompt_token_ids
    return {"prompt_logprobs": prompt_logprobs(ids, generation.prompt_logprobs, num_top, spelling)}


def envelope(shape: Shape, generation: Generation, kind: str) -> dict[str, Any]:
    return {
        "id": f"{shape.prefix}-{generation.id}",
        "object": kind,
        "created": int(time.time()),
        "model": generation.engine.model_id,
    }


def usage(*generations: Generation) -> dict[str, Any]:
    """What the generations of one request took, together."""
    rows = [generation.row for generation in generations]
    prompt, output = sum(row.num_prompt_tokens or 0 for row in rows), sum(row.num_output_tokens or 0 for row in rows)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(row.num_cached_tokens or 0 for row in rows)},
    }


def note_ignored(response: Response, names: Sequence[str]) -> None:
    """Name the fields that meant nothing here, as far as a header holds them: printable ASCII, and not without end."""
    if names:
        text = ", ".join(names)[:MAX_HEADER_LENGTH]
        shown = "".join(character if " " <= character <= "~" else "?" for character in text)
        response.headers[IGNORED_HEADER] = shown


def _ending(generation: Generation, index: int) -> dict[str, Any]:
    return {"finish_reason": generation.samples[index].finish_reason or "abort"}
