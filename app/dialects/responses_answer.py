"""One answer of /v1/responses, from its first event to its last.

Owns the response's own fields, the order and the numbers of its events, and what is kept of it. Knows nothing of HTTP.
Invariant: a whole answer is what the last event of a streamed one holds; what is kept is complete or was cut short by
its limit, never what failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from app.dialects.logprobs import TokenSpelling, chat_logprobs
from app.dialects.prepared import PreparedChat
from app.dialects.response_store import ResponseStore, StoredResponse
from app.dialects.responses_items import Event, OutputItems
from app.dialects.responses_request import in_responses_terms
from app.dialects.responses_schemas import ITEMS, AnyItem, ResponsesBody, SchemaFormat
from app.dialects.speculation_usage import with_speculation
from app.errors import ApiError, openai_body
from app.sample_text import TokenLogprob

STATUSES = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}  # by finish reason
ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponseAnswer:
    """The answer to one body. history: the items of the conversation before its own."""

    def __init__(
        self, body: ResponsesBody, chat: PreparedChat, history: Sequence[AnyItem], store: ResponseStore
    ) -> None:
        self._body = body
        self._generation = chat.generation
        self._spelling = TokenSpelling(chat.generation.engine.vocab)
        self._items = OutputItems(chat.plan.parser(), self._generation.id, self._shown if body.wants_logprobs else None)
        self._history = history
        self._store = store
        self._num_reasoning: int | None = None  # tokens, once the thoughts have ended
        self._num_events = 0
        self.id = f"resp_{self._generation.id}"

    async def whole(self) -> dict[str, Any]:
        """The response once it has ended. Raises ApiError."""
        response: dict[str, Any] = {}
        async with aclosing(self._unguarded_events()) as events:
            async for event in events:
                response = event.get("response", response)
        return response

    async def events(self) -> AsyncGenerator[Event]:
        """The events of the response. Where it fails, the last ones say why."""
        try:
            async with aclosing(self._unguarded_events()) as events:
                async for event in events:
                    yield event
        except ApiError as error:
            for event in self.failure(error):
                yield event

    def failure(self, error: ApiError) -> list[Event]:
        """The last events of a response that cannot go on."""
        told = openai_body(error)["error"]
        what = {"code": ERROR_CODES.get(error.status, "server_error"), "message": told["message"]}
        self._items.break_off()
        event = {"type": "error", **{name: told[name] for name in ("code", "message", "param")}}
        return self._numbered([event, _about(self._response("failed", error=what), "failed")])

    async def _unguarded_events(self) -> AsyncGenerator[Event]:
        """The same without those of a failure. Raises ApiError."""
        sample = self._generation.samples[0]
        num_tokens = 0
        try:
            async with aclosing(self._generation.pieces()) as pieces:
                begun = self._response("in_progress")
                for event in self._numbered([_about(begun, "created"), _about(begun, "in_progress")]):
                    yield event
                async for piece in pieces:
                    for event in self._numbered(self._items.feed(piece.text, piece.logprobs)):
                        yield event
                    if self._num_reasoning is None and self._items.has_answer:
                        self._num_reasoning = num_tokens if self._items.has_thoughts else 0
                    num_tokens = sample.num_tokens
        except ApiError as error:
            raise in_responses_terms(error) from error
        status = STATUSES.get(sample.finish_reason or "abort", "cancelled")
        for event in self._numbered(self._items.finish(cut=status != "completed")):
            yield event
        if self._num_reasoning is None:
            self._num_reasoning = sample.num_tokens if self._items.has_thoughts else 0
        ended = self._response(status)
        if ended["store"]:
            ended["store"] = self._keep(ended)
        yield self._numbered([_about(ended, "completed" if status == "completed" else "incomplete")])[0]

    def _response(self, status: str, error: dict[str, Any] | None = None) -> dict[str, Any]:
        """The response as it stands."""
        body, generation = self._body, self._generation
        sampling = generation.message.sampling
        ended = status != "in_progress"
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(generation.row.created_at),
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": generation.engine.model_id,
            "output": self._items.output() if ended else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},  # what of it was asked for is ignored
            "seed": generation.row.seed,
            "service_tier": "default",
            "store": body.kept and status not in ("failed", "cancelled"),
            "temperature": sampling.temperature,
            "text": {"format": _format(body)},
            "tool_choice": _choice(body),
            "tools": _tools(body),
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        row = self._generation.row
        num_input, num_output = row.num_prompt_tokens or 0, row.num_output_tokens or 0
        figures = {
            "input_tokens": num_input,
            "input_tokens_details": {"cached_tokens": row.num_cached_tokens or 0, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning or 0},
            "total_tokens": num_input + num_output,
        }
        return with_speculation(figures, [self._generation])

    def _keep(self, response: dict[str, Any]) -> bool:
        """Whether there was room. A call that was cut short is no part of what a conversation goes on from."""
        output = response["output"]
        carried = [item for item in output if (item["type"], item["status"]) != ("function_call", "incomplete")]
        items = [*self._history, *self._body.items, *ITEMS.validate_python(carried)]
        body = json.dumps(response, ensure_ascii=False).encode()
        return self._store.put(self.id, StoredResponse(body, ITEMS.dump_json(items)))

    def _numbered(self, events: Iterable[Event]) -> list[Event]:
        numbered = []
        for event in events:
            numbered.append({"type": event["type"], "sequence_number": self._num_events, **event})
            self._num_events += 1
        return numbered

    def _shown(self, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = chat_logprobs(tokens, self._spelling)["content"]
        return content


def _about(response: dict[str, Any], what: str) -> Event:
    return {"type": f"response.{what}", "response": response}


def _format(body: ResponsesBody) -> dict[str, Any]:
    asked = None if body.text is None else body.text.format
    if not isinstance(asked, SchemaFormat):
        return {"type": "text" if asked is None else asked.type}
    described = {"name": asked.name, "description": asked.description, "strict": asked.strict}
    return {"type": "json_schema", **described, "schema": asked.json_schema}


def _choice(body: ResponsesBody) -> str | dict[str, Any]:
    choice = body.tool_choice or "auto"
    return choice if isinstance(choice, str) else {"type": choice.type, "name": choice.name}


def _tools(body: ResponsesBody) -> list[dict[str, Any]]:
    names = ("type", "name", "description", "parameters", "strict")
    return [{name: getattr(tool, name) for name in names} for tool in body.tools or ()]
