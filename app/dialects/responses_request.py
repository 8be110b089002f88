"""From a body of /v1/responses to the same request in the terms of /v1/chat/completions, and errors back.

Owns the translation of items to messages. Knows nothing of answers. Invariant: consecutive items of the assistant are
one message wherever one message could have been answered so: thoughts, then content, then calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.dialects.openai_schemas import (
    ChatCompletionBody,
    ChatMessage,
    JsonSchemaFormat,
    ResponseFormat,
    SamplingFields,
)
from app.dialects.responses_schemas import (
    AnyItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    MessageItem,
    NamedChoice,
    ReasoningItem,
    ResponsesBody,
    SchemaFormat,
)
from app.dialects.tool_schemas import CalledFunction, CalledTool, NamedFunction, NamedTool, ToolOnOffer
from app.errors import ApiError, validation_error

# what chat calls it -> what it is called here
PARAMS = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
WORDS = re.compile(r"\b(max_tokens|response_format)\b|^messages(?=[:.])")


def chat_body(body: ResponsesBody, history: Sequence[AnyItem]) -> ChatCompletionBody:
    """The same request to chat; `history`: the items that come before its own. Raises ApiError, in chat's terms."""
    tools = [ToolOnOffer(type="function", function=tool) for tool in body.tools or ()]
    try:
        return ChatCompletionBody(
            **{name: getattr(body, name) for name in SamplingFields.model_fields},
            messages=chat_messages([*history, *body.items], body.instructions),
            max_tokens=body.max_output_tokens,
            logprobs=body.wants_logprobs,
            top_logprobs=body.top_logprobs,
            response_format=_response_format(body),
            tools=tools or None,
            tool_choice=_tool_choice(body),
            parallel_tool_calls=body.parallel_tool_calls,
            chat_template_kwargs=body.chat_template_kwargs,
        )
    except ValidationError as error:  # of what chat alone checks
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        raise validation_error(RequestValidationError(faults)) from error


def in_responses_terms(error: ApiError) -> ApiError:
    """An error of chat with the names that the fields have here."""

    def renamed(text: str) -> str:
        return WORDS.sub(lambda found: PARAMS[found[0]], text)

    return ApiError(
        error.status,
        renamed(error.detail),
        param=None if error.param is None else PARAMS.get(error.param, error.param),
        remedy=None if error.remedy is None else renamed(error.remedy),
        code=error.code,
        retry_after_s=error.retry_after_s,
    )


@dataclass(slots=True)
class _Turn:
    """What the assistant said in one message."""

    thoughts: str | None = None
    content: str | None = None
    calls: list[CalledTool] = field(default_factory=list)

    def takes(self, item: MessageItem | ReasoningItem | FunctionCallItem) -> bool:
        """Whether the item can be a part of it. Content on both sides of a call is, as chat has it, one content."""
        if isinstance(item, ReasoningItem):
            return self.content is None and not self.calls
        return isinstance(item, FunctionCallItem) or self.content is None or bool(self.calls)

    def add(self, item: MessageItem | ReasoningItem | FunctionCallItem) -> None:
        if isinstance(item, ReasoningItem):
            self.thoughts = (self.thoughts or "") + item.text
        elif isinstance(item, MessageItem):
            self.content = (self.content or "") + item.text
        else:
            function = CalledFunction(name=item.name, arguments=item.arguments)
            self.calls.append(CalledTool(id=item.call_id, function=function))

    def message(self) -> ChatMessage:
        content = self.content if self.content is not None or self.calls else ""  # cut off while it thought
        return ChatMessage(
            role="assistant", content=content, reasoning_content=self.thoughts, tool_calls=self.calls or None
        )


def chat_messages(items: Sequence[AnyItem], instructions: str | None) -> list[ChatMessage]:
    """The items as chat's messages. Raises ApiError for the result of a call that nobody made."""
    messages = [] if instructions is None else [ChatMessage(role="system", content=instructions)]
    turn: _Turn | None = None
    call_ids: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCallOutputItem) or (isinstance(item, MessageItem) and item.role != "assistant"):
            messages += [] if turn is None else [turn.message()]
            turn = None
            messages.append(_others_message(item, call_ids))
            continue
        if isinstance(item, ReasoningItem) and not item.text:
            continue
        if turn is None or not turn.takes(item):
            messages += [] if turn is None else [turn.message()]
            turn = _Turn()
        turn.add(item)
        if isinstance(item, FunctionCallItem):
            call_ids.add(item.call_id)
    return messages + ([] if turn is None else [turn.message()])


def _others_message(item: MessageItem | FunctionCallOutputItem, call_ids: set[str]) -> ChatMessage:
    if isinstance(item, MessageItem):
        return ChatMessage(role=item.role, content=item.text)
    if item.call_id not in call_ids:
        detail = f"a function_call_output is for {item.call_id!r}, which is the call_id of no function_call before it"
        remedy = "Send the call as well, or the previous_response_id of the response that made it"
        raise ApiError(400, detail, param="input", remedy=remedy, code="invalid_value")
    return ChatMessage(role="tool", content=item.text, tool_call_id=item.call_id)


def _tool_choice(body: ResponsesBody) -> Literal["none", "auto", "required"] | NamedTool | None:
    if isinstance(body.tool_choice, NamedChoice):
        return NamedTool(type="function", function=NamedFunction(name=body.tool_choice.name))
    return body.tool_choice


def _response_format(body: ResponsesBody) -> ResponseFormat | None:
    asked = None if body.text is None else body.text.format
    if isinstance(asked, SchemaFormat):
        return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=asked.json_schema))
    return None if asked is None else ResponseFormat(type=asked.type)
