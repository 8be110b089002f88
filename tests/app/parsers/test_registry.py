"""The chat template's text tells which parsers its answers need."""

from __future__ import annotations

import pytest

from app.parsers.base import ToolParser
from app.parsers.json_calls import HermesParser, LlamaParser, MistralArgsParser, MistralParser
from app.parsers.pythonic import PythonicParser
from app.parsers.reasoning import MistralReasoning, ReasoningParser
from app.parsers.registry import REASONING_PARSERS, TOOL_PARSERS, reasoning_parser, tool_parser
from app.parsers.xml_calls import XmlCallParser

FORMS = [
    ("{% if tools %}return within <tool_call></tool_call> tags{% endif %}", HermesParser),
    ('{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}', LlamaParser),
    ("{% if tools %}[TOOL_CALLS][{{ call }}]{% endif %}", MistralParser),
    ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}{% endif %}", MistralArgsParser),
    ("{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}", PythonicParser),
    ("{% if tools %}<|python_start|>{% endif %}", PythonicParser),
    ("{% if tools %}<tool_call>\\n<function=name>\\n<parameter=p>\\nvalue{% endif %}", XmlCallParser),
    ("{% if tools %}<tool_call>\\n<function=name>{% endif %}", None),
    ("{{ messages[0].content }}", None),
    ("a user's <tool_call> in a template that takes none", None),
]


@pytest.mark.parametrize(("template", "parser"), FORMS)
def test_tool_forms(template: str, parser: type[ToolParser] | None) -> None:
    assert tool_parser(template) is parser


def test_thoughts() -> None:
    assert reasoning_parser("{{ content.split('</think>')[-1] }}") is ReasoningParser
    assert reasoning_parser("[THINK]{{ thoughts }}[/THINK]") is MistralReasoning
    assert reasoning_parser("{{ content }}") is None


def test_every_registered_parser_can_be_had() -> None:
    assert {tool_parser(template).__name__ for template, parser in FORMS if parser} == {  # type: ignore[union-attr]
        place.partition(":")[2] for place in TOOL_PARSERS.values()
    }
    marks = ("<think>", "[THINK]", "<|START_THINKING|>", "<seed:think>")
    assert {reasoning_parser(mark).__name__ for mark in marks} == {  # type: ignore[union-attr]
        place.partition(":")[2] for place in REASONING_PARSERS.values()
    }
