"""Which parser an answer needs, told by the model's chat template.

Owns the names of parsers and the signs of each form in a template. Imports none before it is chosen. Invariant: a
template that shows no known form gets no parser: its answers are content, whatever they hold.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.parsers.base import ToolParser
    from app.parsers.reasoning import ReasoningParser

REASONING_PARSERS = {
    "think": "app.parsers.reasoning:ReasoningParser",
    "mistral": "app.parsers.reasoning:MistralReasoning",
    "command": "app.parsers.reasoning:CommandReasoning",
    "seed": "app.parsers.reasoning:SeedReasoning",
}
TOOL_PARSERS = {
    "hermes": "app.parsers.json_calls:HermesParser",
    "llama": "app.parsers.json_calls:LlamaParser",
    "mistral": "app.parsers.json_calls:MistralParser",
    "mistral_args": "app.parsers.json_calls:MistralArgsParser",
    "pythonic": "app.parsers.pythonic:PythonicParser",
    "xml": "app.parsers.xml_calls:XmlCallParser",
}
# the first that a template shows is taken
REASONING_SIGNS = (
    ("mistral", re.compile(r"\[/?THINK\]")),
    ("command", re.compile(r"<\|(START|END)_THINKING\|>")),
    ("seed", re.compile(r"</?seed:think>")),
    ("think", re.compile(r"</?think>")),
)
TOOL_SIGNS = (
    ("mistral_args", re.compile(r"\[TOOL_CALLS\].*\[ARGS\]", re.DOTALL)),
    ("mistral", re.compile(r"\[TOOL_CALLS\]")),
    ("xml", re.compile(r"<function=.*<parameter=", re.DOTALL)),
    ("hermes", re.compile(r"<tool_call>(?!\s*(\\n)?<function=)(?!.*<function=)", re.DOTALL)),
    ("pythonic", re.compile(r"<\|python_start\|>|\[\s*func(tion)?_?name1?\s*\(")),
    ("llama", re.compile(r"<\|python_tag\|>|\{\"name\": function name, \"parameters\"")),
)


def reasoning_parser(template: str) -> type[ReasoningParser] | None:
    """The parser of a template's thoughts, None where it has none."""
    name = _first(REASONING_SIGNS, template)
    return None if name is None else _load(REASONING_PARSERS[name])


def tool_parser(template: str) -> type[ToolParser] | None:
    """The parser of a template's tool calls, None where it takes no tools or writes calls in an unknown form."""
    if not re.search(r"\btools\b", template):
        return None
    name = _first(TOOL_SIGNS, template)
    return None if name is None else _load(TOOL_PARSERS[name])


def _first(signs: tuple[tuple[str, re.Pattern[str]], ...], template: str) -> str | None:
    return next((name for name, sign in signs if sign.search(template)), None)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
