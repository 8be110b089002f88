"""A model's chat template, tried when the model is loaded and not by its first chat.

Owns the conversations that it is tried with and what is told of those it does not take. Knows nothing of requests.
Invariant: a template that would fail every chat is known, and named, once the model is loaded; the load itself goes on,
since raw completion needs no template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.parsers.registry import tool_parser
from app.prompt import PromptEncoder
from app.text import ChatTemplate, ChatTemplateError
from engine.config import EffectiveSetting
from engine.vocab import Vocab

NAME = "chat_template"
REMEDY = (
    "put the template of the model's authors into the model's folder, as chat_template.jinja or in "
    "tokenizer_config.json, and load the model again"
)
ONLY_COMPLETION = "only raw completion (/v1/completions) works"

SYSTEM = {"role": "system", "content": "Speak like a harbour pilot."}
USER = {"role": "user", "content": "Which wind fills the harbour?"}
ASSISTANT = {"role": "assistant", "content": "The north wind does."}
AGAIN = {"role": "user", "content": "And which empties it?"}
TOOL_NAME, CALL_ID = "read_gauge", "call_1"
TOOL = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Reads a wind gauge.",
        "parameters": {"type": "object", "properties": {"mast": {"type": "string"}}, "required": ["mast"]},
    },
}
CALL = {"type": "function", "function": {"name": TOOL_NAME, "arguments": {"mast": "pier seven"}}}
RESULT = {"role": "tool", "content": "twelve knots"}


@dataclass(frozen=True, slots=True)
class ChatSupport:
    """A model's way to chat. encoder: None where it has none, and `error` says why. settings: what falls short."""

    encoder: PromptEncoder | None
    error: str
    settings: tuple[EffectiveSetting, ...]


def chat_support(vocab: Vocab) -> ChatSupport:
    """The template, compiled and tried. Raises nothing: what is wrong with it is in what is returned."""
    if vocab.chat_template is None:
        return _without(f"the model has no chat template: {ONLY_COMPLETION}; to chat, {REMEDY}")
    try:
        template = ChatTemplate(vocab.chat_template, bos_token=vocab.bos_token, eos_token=vocab.eos_token)
        template.render([USER])
    except ChatTemplateError as error:
        return _without(f"{error}; {ONLY_COMPLETION}; to chat, {REMEDY}")
    settings = [
        _trial(template, "user", "user messages", [USER], [USER["content"]]),
        _trial(template, "turns", "conversations of several turns", [USER, ASSISTANT, AGAIN], [ASSISTANT["content"]]),
        _trial(template, "system", "system messages", [SYSTEM, USER], [SYSTEM["content"]]),
        _tool_trial(template),
    ]
    return ChatSupport(PromptEncoder(template, vocab), "", tuple(found for found in settings if found is not None))


def _without(error: str) -> ChatSupport:
    return ChatSupport(None, error, (EffectiveSetting(NAME, "the model's", "none", error),))


def _trial(
    template: ChatTemplate, name: str, what: str, messages: Sequence[Mapping[str, Any]], shown: Sequence[str]
) -> EffectiveSetting | None:
    """What became of a kind of conversation, None where the template takes it."""
    try:
        _try(template, messages, shown)
    except ChatTemplateError as error:
        return EffectiveSetting(f"{NAME}:{name}", what, "not taken", str(error))
    return None


def _tool_trial(template: ChatTemplate) -> EffectiveSetting | None:
    """The same for tools, where the template looks for them at all."""
    if "tools" not in template.variables:
        return None
    parser = tool_parser(template.source)
    if parser is None:
        reason = "the template takes tools, but has them called in a form that is not known here"
        return EffectiveSetting(f"{NAME}:tools", "tools", "refused", reason)
    call_id = parser.template_id(CALL_ID)
    call = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": call_id}]}
    result = {**RESULT, "tool_call_id": call_id}
    try:
        _try(template, [USER], [TOOL_NAME], tools=[TOOL])
        _try(template, [USER, call, result], ["pier seven", RESULT["content"]], tools=[TOOL])
    except ChatTemplateError as error:
        return EffectiveSetting(f"{NAME}:tools", "tools", "not taken", str(error))
    return None


def _try(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    shown: Sequence[str],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Renders, and looks for what must be in the prompt. Raises ChatTemplateError."""
    text = template.render(messages, tools=tools)
    lost = next((each for each in shown if each not in text), None)
    if lost is not None:
        roles = ", ".join(message["role"] for message in messages)
        raise ChatTemplateError(f"the chat template leaves out part of a conversation ({roles}): {lost!r}")
