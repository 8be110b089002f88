"""From a body of Anthropic's Messages API to the same chat in OpenAI's fields.

Owns the translation. Knows nothing of how a chat is answered. Invariant: the chat says what the body says, in its
order; consecutive messages of one role are one turn, and what no template has a place for is refused or named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.dialects.anthropic_schemas import (
    ChosenFunction,
    ContentBlock,
    MessageParam,
    MessagesBody,
    PromptBody,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from app.dialects.openai_schemas import ChatCompletionBody, ChatMessage, JsonSchemaFormat, ResponseFormat
from app.dialects.tool_schemas import CalledFunction, CalledTool, NamedTool, ToolOnOffer
from app.engines import Engine
from app.errors import ApiError
from app.parsers.registry import reasoning_parser

BETWEEN_BLOCKS = "\n"  # blocks are texts of their own; a chat's message has one text
ERROR_PREFIX = "Error: "  # of a tool's result: no template has a place for is_error
THOUGHT_SWITCHES = ("enable_thinking", "thinking")  # the variables by which templates turn thoughts on and off
WANTED_THOUGHTS = {"enabled": True, "adaptive": True, "disabled": False}


def chat_of(body: PromptBody, engine: Engine) -> ChatCompletionBody:
    """The chat, for this engine's model. Raises ApiError."""
    turns = _turns(body.messages)
    prefilled = turns[-1].role == "assistant" and _is_prefill(turns[-1])
    if turns[-1].role == "assistant" and not prefilled:
        turns.pop()
    _check_schema(body, prefilled=prefilled)
    messages = _messages(turns, body.system)
    if not messages:
        raise ApiError(400, "messages: there is nothing to answer", param="messages", code="invalid_value")
    choice = body.tool_choice
    return ChatCompletionBody(
        model=engine.model_id,
        messages=messages,
        continue_final_message=prefilled,
        chat_template_kwargs=_variables(body, engine),
        tools=[ToolOnOffer(type="function", function=each) for each in body.tools or ()],
        tool_choice=_choice(body),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_format(body),
        **_sampling(body),
    )


def ignored_fields(body: PromptBody, chat: ChatCompletionBody, engine: Engine) -> list[str]:
    """What the body asks for and this chat does not give, sorted. Raises ApiError for what would change the answer."""
    return sorted(body.checked() | ({"thinking"} if _thoughts_differ(body, chat, engine) else set()))


# ---- messages -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Turn:
    """The blocks of consecutive messages of one role."""

    role: str
    blocks: list[ContentBlock] = field(default_factory=list)


def _turns(messages: Sequence[MessageParam]) -> list[_Turn]:
    turns: list[_Turn] = []
    for message in messages:
        if not turns or turns[-1].role != message.role:
            turns.append(_Turn(message.role))
        turns[-1].blocks += message.blocks
    return turns


def _is_prefill(last: _Turn) -> bool:
    """Whether the answer goes on from an assistant's turn, not just after an empty one. Raises ApiError."""
    if any(isinstance(block, ToolUseBlock) for block in last.blocks):
        detail = "messages: the last one holds tool_use, and no tool_result follows"
        raise ApiError(400, detail, param="messages", remedy="Run the tool and send its result", code="invalid_value")
    if _text(last.blocks):
        return True
    if any(isinstance(block, ThinkingBlock) for block in last.blocks):
        detail = "messages: the last one holds thoughts alone, which an answer cannot continue"
        raise ApiError(400, detail, param="messages", remedy="Leave it out", code="invalid_value")
    return False


def _messages(turns: Iterable[_Turn], system: str | Sequence[TextBlock] | None) -> list[ChatMessage]:
    text = _text([TextBlock(type="text", text=system)] if isinstance(system, str) else system or ())
    messages = [ChatMessage(role="system", content=text)] if text else []
    called: dict[str, str] = {}  # the tools' names by the ids of their calls
    for turn in turns:
        if turn.role == "assistant":
            messages.append(_assistant(turn.blocks))
            called |= {block.id: block.name for block in turn.blocks if isinstance(block, ToolUseBlock)}
        elif turn.role == "system":
            messages.append(ChatMessage(role="system", content=_text(turn.blocks)))
        else:
            messages += _user(turn.blocks, called)
    return messages


def _assistant(blocks: Sequence[ContentBlock]) -> ChatMessage:
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        CalledTool(id=block.id, function=CalledFunction(name=block.name, arguments=json.dumps(block.input)))
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return ChatMessage(
        role="assistant",
        content=_text(blocks),
        reasoning_content=BETWEEN_BLOCKS.join(thoughts) or None,
        tool_calls=calls or None,
    )


def _user(blocks: Sequence[ContentBlock], called: dict[str, str]) -> list[ChatMessage]:
    """A message for each result and for the text between them. Raises ApiError for a result of no call."""
    messages: list[ChatMessage] = []
    texts: list[ContentBlock] = []
    for block in blocks:
        if not isinstance(block, ToolResultBlock):
            texts.append(block)
            continue
        if block.tool_use_id not in called:
            detail = f"messages: no tool_use before has the id {block.tool_use_id!r} of a tool_result"
            raise ApiError(400, detail, param="messages", remedy="Send the call along", code="invalid_value")
        if texts:
            messages.append(ChatMessage(role="user", content=_text(texts)))
            texts = []
        content = block.content if isinstance(block.content, str) else _text(block.content or ())
        messages.append(
            ChatMessage(
                role="tool",
                content=f"{ERROR_PREFIX}{content}" if block.is_error else content,
                name=called[block.tool_use_id],
                tool_call_id=block.tool_use_id,
            )
        )
    if texts or not blocks:
        messages.append(ChatMessage(role="user", content=_text(texts)))
    return messages


def _text(blocks: Iterable[ContentBlock]) -> str:
    return BETWEEN_BLOCKS.join(block.text for block in blocks if isinstance(block, TextBlock))


# ---- options --------------------------------------------------------------------------------------------------------


def _check_schema(body: PromptBody, *, prefilled: bool) -> None:
    """Refuse beside a schema what an answer under it could not be. Raises ApiError."""
    if body.json_schema is None:
        return
    callable_tools = body.tools and (body.tool_choice is None or body.tool_choice.type != "none")
    other = "tools" if callable_tools else "a last message of the assistant's" if prefilled else None
    if other is not None:
        detail = f"output_config.format and {other} exclude each other: the whole answer is held to the schema"
        remedy = "Keep one of them" if prefilled else "Keep one of them, or set tool_choice to none"
        raise ApiError(400, detail, param="output_config.format", remedy=remedy, code="invalid_value")


def _choice(body: PromptBody) -> Any:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.name is not None:
        return NamedTool(type="function", function=ChosenFunction(name=choice.name))
    return "required" if choice.type == "any" else choice.type


def _format(body: PromptBody) -> ResponseFormat | None:
    if body.json_schema is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=body.json_schema))


def _sampling(body: PromptBody) -> dict[str, Any]:
    """What only a body that is to be answered has."""
    if not isinstance(body, MessagesBody):
        return {}
    same = ("max_tokens", "temperature", "top_p", "top_k", "seed", "cache_salt", "priority", "speculation", "trace")
    return {"stop": body.stop_sequences or None, **{name: getattr(body, name) for name in same}}


def _switches(engine: Engine) -> list[str]:
    known = engine.chat.template.variables if engine.chat is not None else frozenset[str]()
    return [name for name in THOUGHT_SWITCHES if name in known]


def _variables(body: PromptBody, engine: Engine) -> dict[str, Any] | None:
    wanted = None if body.thinking is None else WANTED_THOUGHTS.get(body.thinking.type)
    return None if wanted is None else dict.fromkeys(_switches(engine), wanted)


def _thoughts_differ(body: PromptBody, chat: ChatCompletionBody, engine: Engine) -> bool:
    """Whether the answer may hold thoughts that are not wanted, or hold none that are."""
    if body.thinking is None or body.thinking.type == "adaptive":  # the model's own choice, whatever it is
        return False
    past_thoughts = chat.response_format is not None or chat.continue_final_message
    can_think = reasoning_parser(engine.vocab.chat_template or "") is not None and not past_thoughts
    if body.thinking.type == "disabled":
        return can_think and not _switches(engine)
    return body.thinking.type == "between_tools" or not can_think
