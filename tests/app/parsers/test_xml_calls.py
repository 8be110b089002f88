"""Qwen3-Coder's calls: arguments become JSON by the tool's schema, in any pieces, and the grammar keeps to both."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.parsers.base import Tool, ToolCallDelta, UncallableTool
from app.parsers.call_grammar import call_grammar
from app.parsers.typed_text import json_of, types_of
from app.parsers.xml_calls import XmlCallParser
from engine.sample.grammar import CompiledGrammar, GrammarCompiler, GrammarError
from tests.app.parsers.reading import Answer, pieces_of, read
from tests.app.parsers.test_call_grammar import END, NOTHING, VOCAB_SIZE, admits, compiler

__all__ = ["compiler"]  # a fixture

EDIT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "line": {"type": "integer", "minimum": 1},
        "share": {"type": "number"},
        "force": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/$defs/place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "mode": {"enum": ["new", "old"], "type": "string"},
        "size": {"type": ["integer", "null"]},
    },
    "required": ["path"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
}
SCHEMAS = {"edit": EDIT, "list": NOTHING}


def call(name: str, *arguments: tuple[str, str]) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def answer_to(text: str) -> Answer:
    return read([text], XmlCallParser, names=list(SCHEMAS), schemas=SCHEMAS)


def arguments_of(text: str) -> Any:
    [(_, arguments)] = answer_to(text).calls
    return json.loads(arguments)


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("path", "a.py", "a.py"),
        ("path", "12", "12"),
        ("path", "", ""),
        ("path", '\n "quoted\\" \t\nlines é🦊\n', '\n "quoted\\" \t\nlines é🦊\n'),
        ("path", "</param", "</param"),
        ("path", "a\n</parameter", "a\n</parameter"),
        ("line", "12", 12),
        ("line", " 12 ", 12),
        ("line", "twelve", "twelve"),
        ("share", "0.5", 0.5),
        ("share", "3", 3),
        ("share", "NaN", "NaN"),
        ("force", "true", True),
        ("force", "True", True),
        ("tags", '["a", "</parameter>"]', ["a", "</parameter>"]),
        ("tags", "['a', 'it\\'s']", ["a", "it's"]),
        ("tags", '["a"', '["a"'),
        ("where", '{"x": 1}', {"x": 1}),
        ("note", "null", None),
        ("note", "nothing", "nothing"),
        ("note", "12", "12"),
        ("mode", "new", "new"),
        ("size", "null", None),
        ("size", "4", 4),
        ("unlisted", "4", "4"),
    ],
)
def test_arguments_have_the_types_of_the_schema(key: str, written: str, value: Any) -> None:
    text = call("edit", (key, written))
    assert arguments_of(text) == {key: value}
    for cut in range(1, len(text)):
        assert read(pieces_of(text, [cut]), XmlCallParser, names=["edit"], schemas=SCHEMAS) == answer_to(text)


CASES = [
    (f"I look.\n{call('list')}\n{call('edit', ('path', 'a'), ('line', '2'))}\n", "I look.", 2),
    ("<function=edit><parameter=path>a</parameter></function> so", "so", 1),
    ("<tool_call><function=list></function>", "", 1),
    (call("rm", ("path", "/")), call("rm", ("path", "/")), 0),
    ('<tool_call>{"name": "edit"}</tool_call>', '<tool_call>{"name": "edit"}</tool_call>', 0),
    ("<tool_call>\n<function=edit>\nwell", "<tool_call>\n<function=edit>\nwell", 0),
    ("<function=ed it>", "<function=ed it>", 0),
    ("a < b <function", "a < b <function", 0),
]


@pytest.mark.parametrize(("text", "content", "num_calls"), CASES)
def test_what_is_no_call_is_content(text: str, content: str, num_calls: int) -> None:
    answer = answer_to(text)
    assert (answer.content, len(answer.calls)) == (content, num_calls)
    for cut in range(1, len(text)):
        assert read(pieces_of(text, [cut]), XmlCallParser, names=list(SCHEMAS), schemas=SCHEMAS) == answer


@pytest.mark.parametrize(
    "written", ["<parameter=path>\nhalf a t", "<parameter=line>\n1", "<parameter=path>a</parameter>"]
)
def test_what_breaks_off_is_not_lost(written: str) -> None:
    answer = answer_to(f"<tool_call><function=edit>{written}")
    [(_, arguments)] = answer.calls
    assert not answer.content
    assert arguments in ('{"path": "half a t', '{"line": 1', '{"path": "a"')


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<function=edit>", "<function=", "</function>", "<parameter=tags>", ">", "\n"),
    *("<parameter=path>", "</parameter>", "\n</parameter>\n", '["', '"]', "12", "x", " ", call("list")),
    call("edit", ("path", "p"), ("tags", '["</parameter>"]')),
]


@given(data=st.data(), parts=st.lists(st.sampled_from(FRAGMENTS), max_size=14))
def test_any_text_in_any_pieces_reads_the_same(data: st.DataObject, parts: list[str]) -> None:
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    whole = answer_to(text)
    assert read(pieces_of(text, cuts), XmlCallParser, names=list(SCHEMAS), schemas=SCHEMAS) == whole
    assert whole.calls or whole.content == text


@given(st.text(), st.text(), st.lists(st.text()), st.integers(), st.booleans())
def test_what_a_template_writes_is_read_back(path: str, note: str, tags: list[str], line: int, force: bool) -> None:
    """Strings as they are, the rest as JSON: so does Qwen3-Coder's template."""
    expected = {"path": path, "tags": tags, "line": line, "force": force}
    text = call("edit", *((key, each if isinstance(each, str) else json.dumps(each)) for key, each in expected.items()))
    if "</parameter>" not in path:
        assert arguments_of(text) == expected


def test_a_string_comes_as_it_is_written() -> None:
    parser = XmlCallParser(["edit"], schemas=SCHEMAS)
    assert parser.feed("<tool_call>\n<function=edit>\n<parameter=pa") == [first := parser_start(parser)]
    assert first.name == "edit"
    assert parser.feed("th>\nsome") == [ToolCallDelta(0, '{"path": "some')]
    assert parser.feed('\n"text') == [ToolCallDelta(0, '\\n\\"text')]
    assert parser.feed("\n</para") == []
    assert parser.feed("meter>\n</function>") == [ToolCallDelta(0, '"}')]
    assert parser.finish() == []


def parser_start(parser: XmlCallParser) -> Any:
    """Equal to the delta that announces a call, whatever its id."""

    class Announcement:
        name = "edit"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, ToolCallDelta) and (other.index, other.name, other.arguments) == (0, "edit", "")

    return Announcement()


def test_types_are_looked_up() -> None:
    root = {"$defs": {"a/b": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert types_of({"$ref": "#/$defs/a~1b"}, root) == {"integer"}
    assert types_of({"anyOf": [{"const": 1}, {"type": "null"}]}, root) == {"integer", "number", "null"}
    assert types_of({"properties": {}}, root) == {"object"}
    for nothing in ({}, True, None, {"$ref": "#/$defs/loop"}, {"$ref": "elsewhere"}):
        assert types_of(nothing, root) == {"string"}
    assert json_of("Infinity", frozenset({"number"})) == '"Infinity"'


# ---- forced calls ---------------------------------------------------------------------------------------------------


def sampled(grammar: CompiledGrammar, seed: int) -> str:
    """A text drawn from the grammar, in which a string ends now and then."""
    draw = random.Random(seed)
    matcher = grammar.matcher()
    text, wanted = bytearray(), b""
    while not matcher.is_complete:
        wanted = wanted or (b"\n</parameter>\n" if draw.random() < 0.2 else b"")
        mask = matcher.allowed()
        tokens = [token for token in range(VOCAB_SIZE) if mask[token // 8] >> token % 8 & 1]
        printable = [token for token in tokens if 33 <= token < 127 or token in (END, 10)] or tokens
        if wanted and wanted[0] in tokens:
            token, wanted = wanted[0], wanted[1:]
        else:
            token, wanted = END if END in tokens and draw.random() < 0.5 else draw.choice(printable), b""
        matcher.accept(token)
        text += bytes([token]) if token != END else b""
    return text.decode(errors="replace")


def test_what_the_grammar_admits_is_read_as_valid_calls(compiler: GrammarCompiler) -> None:
    tools = [Tool("edit", EDIT), Tool("list", NOTHING)]
    keys = set[str]()
    for parallel in (False, True):
        grammar = compiler.compile(call_grammar(XmlCallParser, tools, parallel=parallel))
        counts, names = set[int](), set[str]()
        for seed in range(50):
            answer = answer_to(sampled(grammar, seed))
            assert not answer.content.strip()
            counts.add(len(answer.calls))
            for name, arguments in answer.calls:
                names.add(name)
                keys |= json.loads(arguments).keys()
                jsonschema_rs.validate(SCHEMAS[name], json.loads(arguments))
        assert names == set(SCHEMAS)
        assert (max(counts) > 1) == parallel
    assert keys == EDIT["properties"].keys()


def test_the_models_own_way_of_writing_is_admitted(compiler: GrammarCompiler) -> None:
    guided = call_grammar(XmlCallParser, [Tool("edit", EDIT), Tool("list", NOTHING)], parallel=False)
    text = call("edit", ("path", 'a "b"\n</x>'), ("line", "3"), ("note", "null"), ("mode", "old"))
    assert admits(compiler, guided, text)
    assert admits(compiler, guided, call("list"))
    assert not admits(compiler, guided, text.replace("old", "odd"))
    assert not admits(compiler, guided, text.replace("\n3\n", "\nthree\n"))
    assert not admits(compiler, guided, call("edit", ("line", "3")))
    assert not admits(compiler, guided, text + " Done.")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"x": {"type": "string", "pattern": "a+"}}}, "'x' as plain text"),
        ({"properties": {"x": {"type": ["string", "integer"]}}}, "'x' as plain text"),
        ({"properties": {"x": {"enum": ["a</parameter>"]}}}, "'x' as plain text"),
        ({"properties": {"a>b": {}}}, "'a>b' cannot be a keyword"),
        ({"properties": {}, "required": ["y"]}, "'y' is required"),
    ],
)
def test_what_cannot_be_promised_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(UncallableTool, match=f"the tool odd: .*{says}"):
        call_grammar(XmlCallParser, [Tool("odd", {"type": "object", **schema})], parallel=False)


def test_a_schema_that_cannot_be_promised_is_refused_with_its_tool(compiler: GrammarCompiler) -> None:
    odd = Tool("odd", {"type": "object", "properties": {"x": {"type": "integer", "not": {"const": 1}}}})
    with pytest.raises(GrammarError, match=r"structural_tag: behind '<parameter=x>\\n'.*'not' is not supported"):
        compiler.compile(call_grammar(XmlCallParser, [odd], parallel=False))
