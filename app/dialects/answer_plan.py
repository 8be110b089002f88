"""How one chat's answer is read, and what it is held to: from its tools and its model's template.

Owns the choice of parsers and the meaning of `tool_choice`. Knows nothing of their forms. Invariant: tools that the
model cannot be told of, or whose calls could not be read, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.dialects.openai_schemas import ChatCompletionBody, ChatFields, ChatMessage
from app.dialects.sampling import GrammarWish, grammar_wish
from app.dialects.tool_schemas import NamedTool
from app.engines import Engine
from app.errors import ApiError
from app.parsers.answer import AnswerParser
from app.parsers.base import Tool, ToolParser, UncallableTool
from app.parsers.call_grammar import call_grammar
from app.parsers.reasoning import ReasoningParser
from app.parsers.registry import reasoning_parser, tool_parser

UNCALLABLE_REMEDY = "Change its parameters, or leave the choice to the model (tool_choice auto)"
NUM_LAST_TOKENS = 16  # of a prompt: enough to hold the mark that opens thoughts


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Which parsers, if any, and the grammar, if any. opened: the prompt has begun the thoughts."""

    reasoning: type[ReasoningParser] | None
    opened: bool
    tools: type[ToolParser] | None
    names: tuple[str, ...]
    parallel: bool
    wish: GrammarWish | None
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the tools' parameters

    @property
    def shown_specials(self) -> tuple[str, ...]:
        """Spellings of special tokens that the parsers look for."""
        thoughts = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)
        return thoughts + (() if self.tools is None else self.tools.markers)

    def parser(self) -> AnswerParser:
        """A parser for one answer."""
        reasoning = None if self.reasoning is None else self.reasoning(opened=self.opened)
        tools = None if self.tools is None else self.tools(self.names, parallel=self.parallel, schemas=self.schemas)
        return AnswerParser(reasoning, tools)


def messages_for_template(messages: Sequence[ChatMessage], engine: Engine, body: ChatFields) -> list[dict[str, Any]]:
    """What the template gets of these messages. Raises ApiError for a last one that cannot be continued."""
    if body.continue_final_message and messages[-1].tool_calls:
        detail = "the last message holds tool_calls: nothing can follow in it"
        raise ApiError(400, detail, param="continue_final_message", code="invalid_value")
    parser = tool_parser(engine.vocab.chat_template or "")
    rendered = [message.for_template() for message in messages]
    if parser is not None:
        for message in rendered:
            for call in message.get("tool_calls", ()):
                call["id"] = parser.template_id(call["id"])
            if "tool_call_id" in message:
                message["tool_call_id"] = parser.template_id(message["tool_call_id"])
    return rendered


def tools_for_template(body: ChatFields, engine: Engine) -> list[dict[str, Any]] | None:
    """The tools that the model is told of. Raises ApiError."""
    names = [each.function.name for each in body.tools or ()]
    if len(set(names)) < len(names):
        raise ApiError(400, "two tools have the same name", param="tools", code="invalid_value")
    if not body.offered_tools:
        return None
    if engine.vocab.chat_template is not None and tool_parser(engine.vocab.chat_template) is None:
        raise ApiError(
            400,
            f"the chat template of {engine.model_id} takes no tools, or has them called in a form that is not known",
            param="tools",
            remedy="Leave tools out, or load a model that was trained to call them",
            code="tools_not_supported",
        )
    return [each.for_template() for each in body.offered_tools]


def unread_variables(body: ChatFields, engine: Engine) -> list[str]:
    """Those of chat_template_kwargs that the template never looks at, as x-pizarra-ignored names them."""
    known = engine.chat.template.variables if engine.chat is not None else frozenset()
    return [f"chat_template_kwargs.{name}" for name in sorted(body.chat_template_kwargs or ()) if name not in known]


def thoughts_plan(engine: Engine, prompt: Sequence[int], *, begun: bool = False) -> AnswerPlan:
    """The plan for an answer to this prompt where there are neither tools nor a grammar.

    begun: the prompt ends within the answer, which is past its thoughts then.
    """
    reasoning, opened = (None, False) if begun else _reasoning(engine, prompt)
    return AnswerPlan(reasoning, opened, None, (), True, None)


def _reasoning(engine: Engine, prompt: Sequence[int]) -> tuple[type[ReasoningParser] | None, bool]:
    """The parser of the model's thoughts, and whether the prompt has begun them."""
    reasoning = reasoning_parser(engine.vocab.chat_template or "")
    last = engine.vocab.decode(prompt[-NUM_LAST_TOKENS:], skip_special_tokens=False)
    return reasoning, reasoning is not None and reasoning.opened_by(last)


def answer_plan(body: ChatCompletionBody, engine: Engine, prompt: Sequence[int]) -> AnswerPlan:
    """The plan for an answer to this prompt. Raises ApiError."""
    template = engine.vocab.chat_template or ""
    wish = grammar_wish(body)
    reasoning, opened = _reasoning(engine, prompt)
    if wish is not None:
        reasoning, opened = None, False  # such a grammar has no room for thoughts
    if reasoning is not None and body.continue_final_message:
        opened = opened or reasoning.left_open_by(body.messages[-1].text)
        reasoning = reasoning if opened else None  # an answer that has begun is past its thoughts
    tools = [each.tool for each in body.offered_tools]
    parser = tool_parser(template) if tools else None
    parallel = body.parallel_tool_calls is not False
    forced = _forced(body, tools)
    if parser is not None and forced:
        if wish is not None:
            detail = f"tool_choice and {wish.field} exclude each other: a call is no such answer"
            raise ApiError(400, detail, param=wish.field, remedy="Keep one of them", code="invalid_value")
        try:
            guided = call_grammar(parser, forced, parallel=parallel, reasoning=reasoning, reasoning_opened=opened)
        except UncallableTool as error:
            raise ApiError(400, str(error), param="tools", remedy=UNCALLABLE_REMEDY, code="invalid_grammar") from error
        wish = GrammarWish("tools", guided)
    schemas = {tool.name: tool.parameters for tool in tools}
    return AnswerPlan(reasoning, opened, parser, tuple(schemas), parallel, wish, schemas)


def _forced(body: ChatCompletionBody, tools: Sequence[Tool]) -> list[Tool]:
    """Those of which one must be called."""
    if isinstance(body.tool_choice, NamedTool):
        return [tool for tool in tools if tool.name == body.tool_choice.function.name]
    return list(tools) if body.tool_choice == "required" else []


def check_choice(body: ChatCompletionBody) -> None:
    """Refuse a tool_choice that the tools do not allow. Raises ApiError."""
    names = [each.function.name for each in body.tools or ()]
    choice = body.tool_choice
    if not names and choice not in (None, "none", "auto"):
        detail = "tool_choice asks for a call, but there are no tools"
        raise ApiError(400, detail, param="tool_choice", remedy="Send tools along", code="invalid_value")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        detail = f"tool_choice names {choice.function.name!r}, but the tools are {', '.join(names)}"
        raise ApiError(400, detail, param="tool_choice", code="invalid_value")
