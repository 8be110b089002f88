"""What the grammar of a forced call admits, its parser reads, with arguments that validate; it admits nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from app.parsers.base import Tool, ToolParser, UncallableTool
from app.parsers.call_grammar import call_grammar
from app.parsers.json_calls import HermesParser, LlamaParser, MistralArgsParser, MistralParser
from app.parsers.pythonic import PythonicParser
from app.parsers.reasoning import ReasoningParser
from engine.core.sampling_params import Guided
from engine.sample.grammar import GrammarCompiler, GrammarError
from tests.app.parsers.reading import Answer, read

VOCAB_SIZE, END = 256, 0  # a token for each byte
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["days", "city"],
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
NOTHING = {"type": "object", "properties": {}}
LOOSE = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [None, 1.5]}}}
TOOLS = [Tool("get_weather", WEATHER), Tool("get_time", NOTHING), Tool("set", LOOSE)]
NAMES = [tool.name for tool in TOOLS]
PARSERS = [HermesParser, LlamaParser, MistralParser, MistralArgsParser, PythonicParser]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: [b"", *(bytes([byte]) for byte in range(1, 256))], VOCAB_SIZE, [END])


def sampled(compiler: GrammarCompiler, guided: Guided, seed: int, limit: int = 3000) -> str:
    """A text drawn from the grammar, ended as soon as it may end half of the time."""
    draw = random.Random(seed)
    matcher = compiler.compile(guided).matcher()
    text = bytearray()
    while not matcher.is_complete and len(text) < limit:
        mask = matcher.allowed()
        tokens = [token for token in range(VOCAB_SIZE) if mask[token // 8] >> token % 8 & 1]
        printable = [token for token in tokens if 33 <= token < 127 or token in (END, 10)] or tokens
        token = END if END in tokens and draw.random() < 0.5 else draw.choice(printable)
        matcher.accept(token)
        text += bytes([token]) if token != END else b""
    return text.decode(errors="replace")


def admits(compiler: GrammarCompiler, guided: Guided, text: str) -> bool:
    matcher = compiler.compile(guided).matcher()
    try:
        for byte in text.encode():
            matcher.accept(byte)
        matcher.accept(END)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("parallel", [False, True])
def test_what_is_admitted_is_read_as_valid_calls(
    compiler: GrammarCompiler, parser: type[ToolParser], parallel: bool
) -> None:
    guided = call_grammar(parser, TOOLS, parallel=parallel)
    counts, names = set[int](), set[str]()
    for seed in range(40):
        answer = read([sampled(compiler, guided, seed)], parser, names=NAMES)
        assert not answer.content.strip()
        counts.add(len(answer.calls))
        for name, arguments in answer.calls:
            names.add(name)
            schema: Any = next(tool.parameters for tool in TOOLS if tool.name == name)
            jsonschema_rs.validate(schema, json.loads(arguments))
    assert names == set(NAMES)
    assert (max(counts) > 1) == parallel
    assert min(counts) == 1


PARIS = Answer(calls=[("get_weather", '{"days": 2, "city": "Paris"}')])


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (HermesParser, '<tool_call>\n{"name": "get_weather", "arguments": {"days": 2, "city": "Paris"}}\n</tool_call>'),
        (LlamaParser, '{"name": "get_weather", "parameters": {"days": 2, "city": "Paris"}}'),
        (MistralParser, '[TOOL_CALLS][{"name": "get_weather", "arguments": {"days": 2, "city": "Paris"}}]'),
        (MistralArgsParser, '[TOOL_CALLS]get_weather[ARGS]{"days": 2, "city": "Paris"}'),
        (PythonicParser, '[get_weather(days=2, city="Paris")]'),
    ],
)
def test_the_models_own_way_of_writing_is_admitted(
    compiler: GrammarCompiler, parser: type[ToolParser], text: str
) -> None:
    guided = call_grammar(parser, TOOLS, parallel=False)
    fields = '"days": 2, "city": "Paris"'
    assert read([text], parser, names=NAMES) == PARIS
    ordered = text.replace(fields, '"city": "Paris", "days": 2')  # in JSON the properties' own order
    assert admits(compiler, guided, ordered)
    assert not admits(compiler, guided, ordered.replace("2", "12"))
    assert not admits(compiler, guided, ordered.replace("get_weather", "get_whether"))
    assert not admits(compiler, guided, ordered + " Done.")
    assert not admits(compiler, guided, "Paris is nice.")


def test_thoughts_may_come_first(compiler: GrammarCompiler) -> None:
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    for opened, text in ((False, call), (False, f"<think>\nHm.</think>\n\n{call}"), (True, f"Hm.</think>\n\n{call}")):
        guided = call_grammar(HermesParser, TOOLS, parallel=False, reasoning=ReasoningParser, reasoning_opened=opened)
        assert admits(compiler, guided, text)
        assert read([text], HermesParser, ReasoningParser, opened=opened, names=NAMES).calls == [("get_time", "{}")]
    assert not admits(compiler, guided, call)


@pytest.mark.parametrize("parser", PARSERS)
def test_a_schema_that_cannot_be_promised_is_refused_with_its_tool(
    compiler: GrammarCompiler, parser: type[ToolParser]
) -> None:
    tools = [*TOOLS, Tool("odd", {"type": "object", "properties": {"x": {"not": {"type": "null"}}}, "required": ["x"]})]
    with pytest.raises(GrammarError, match=r"structural_tag: behind .*(odd|x=).*'not' is not supported"):
        compiler.compile(call_grammar(parser, tools, parallel=False))


@pytest.mark.parametrize("text", ["{", "[" * 3000, '{"type": "structural_tag", "format": {"type": "nonsense"}}'])
def test_a_tag_that_is_none_is_refused(compiler: GrammarCompiler, text: str) -> None:
    with pytest.raises(GrammarError, match="structural_tag: "):
        compiler.compile(Guided("structural_tag", text))


def test_a_call_needs_a_tool() -> None:
    with pytest.raises(ValueError, match="needs a tool"):
        call_grammar(HermesParser, [], parallel=False)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"minProperties": 1}, "'minProperties' beside"),
        ({"required": ["y"]}, "'y' is required"),
        ({"properties": {"a b": {}}}, "'a b' cannot be a keyword"),
    ],
)
def test_keywords_that_cannot_be_promised_are_refused(schema: dict[str, Any], says: str) -> None:
    tool = Tool("odd", {"type": "object", "properties": {"x": {"type": "null"}}} | schema)
    with pytest.raises(UncallableTool, match=f"the tool odd: {says}"):
        call_grammar(PythonicParser, [tool], parallel=False)
