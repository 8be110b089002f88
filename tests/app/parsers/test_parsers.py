"""Every form of call and thought is read, whole or in pieces; what is none comes out as the text it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.parsers.base import ToolCallDelta, ToolParser
from app.parsers.json_calls import HermesParser, LlamaParser, MistralArgsParser, MistralParser
from app.parsers.pythonic import PythonicParser
from app.parsers.reasoning import CommandReasoning, MistralReasoning, ReasoningParser, SeedReasoning
from tests.app.parsers.reading import Answer, pieces_of, read

PARIS = ("get_weather", '{"city": "Paris"}')
SUM = ("add", '{"a": 1, "b": [2, {"c": null}]}')
HERMES_PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES_SUM = '<tool_call>{"arguments": {"a": 1, "b": [2, {"c": null}]}, "name": "add"}</tool_call>'
LLAMA_PARIS = '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}'
LLAMA_SUM = '{"name": "add", "parameters": {"a": 1, "b": [2, {"c": null}]}}'

Case = tuple[type[ToolParser], str, Answer]
CALLS: list[Case] = [
    (HermesParser, HERMES_PARIS, Answer(calls=[PARIS])),
    (HermesParser, f"I look. \n{HERMES_PARIS}\n{HERMES_SUM}\n", Answer("I look.", calls=[PARIS, SUM])),
    (HermesParser, f"{HERMES_PARIS}\n\nDone < all", Answer("Done < all", calls=[PARIS])),
    (HermesParser, '<tool_call>{"name": "add"}</tool_call>', Answer(calls=[("add", "{}")])),
    (HermesParser, '<tool_call>{"name": "add", "arguments": {}}', Answer(calls=[("add", "{}")])),
    (
        HermesParser,
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        HermesParser,
        '<tool_call>{"name": "add", "arguments": {"a": "</tool_call>"}}</tool_call>',
        Answer(calls=[("add", '{"a": "</tool_call>"}')]),
    ),
    (LlamaParser, LLAMA_PARIS, Answer(calls=[PARIS])),
    (LlamaParser, f"\n{LLAMA_PARIS}; {LLAMA_SUM}\n", Answer(calls=[PARIS, SUM])),
    (LlamaParser, f"Well: <|python_tag|>{LLAMA_SUM}", Answer("Well:", calls=[SUM])),
    (
        MistralParser,
        (
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abc123def"}, '
            '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": null}]}}]'
        ),
        Answer(calls=[PARIS, SUM]),
    ),
    (
        MistralArgsParser,
        (
            'So.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
            '[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{"a": 1, "b": [2, {"c": null}]}'
        ),
        Answer("So.", calls=[PARIS, SUM]),
    ),
    (PythonicParser, '[get_weather(city="Paris")]', Answer(calls=[PARIS])),
    (
        PythonicParser,
        "<|python_start|>[add(a = 1, b=[2, {'c': None}],), get-time(zone='it\\'s, (\"UTC\")', ok=true)]<|python_end|>",
        Answer(calls=[SUM, ("get-time", '{"zone": "it\'s, (\\"UTC\\")", "ok": true}')]),
    ),
    (PythonicParser, "[get-time()] so", Answer("so", calls=[("get-time", "{}")])),
]
NO_CALLS: list[tuple[type[ToolParser], str]] = [
    (HermesParser, '<tool_call>{"name": "delete_all", "arguments": {}}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "add", "city": "Paris"}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "add", "name": "add"}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "add", "arguments": 7}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "add", "arguments": "[1]"}</tool_call>'),
    (HermesParser, "<tool_call>add(1, 2)</tool_call>  "),
    (HermesParser, '<tool_call>{"na'),
    (HermesParser, "a <tool_cal"),
    (LlamaParser, '{"name": "add", "age": 3}'),
    (LlamaParser, '{"name": "add"}'),
    (LlamaParser, f"Here: {LLAMA_SUM}"),
    (LlamaParser, "<|python_tag|>print(1)"),
    (MistralParser, "[TOOL_CALLS] [1, 2]"),
    (MistralParser, '[TOOL_CALLS]delete_all[ARGS]{"a": 1}'),
    (MistralParser, "[TOOL_CALLS]add[ARGS]none"),
    (PythonicParser, "[1, 2, 3]"),
    (PythonicParser, "[add(1, 2)]"),
    (PythonicParser, "[add(a=)]"),
    (PythonicParser, "[add(a=open('x'))]"),
    (PythonicParser, "[add(a={1})]"),
    (PythonicParser, "[add(a=1]"),
    (PythonicParser, "[add(a='1"),
    (PythonicParser, "[add(a=1, a=2)]"),
]


@pytest.mark.parametrize(("parser", "text", "expected"), CALLS)
def test_calls_are_read(parser: type[ToolParser], text: str, expected: Answer) -> None:
    assert read([text], parser) == expected
    for _, arguments in expected.calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(("parser", "text"), NO_CALLS)
def test_what_is_no_call_is_content(parser: type[ToolParser], text: str) -> None:
    assert read([text], parser) == Answer(text)


@pytest.mark.parametrize(("parser", "text"), [(case[0], case[1]) for case in CALLS] + NO_CALLS)
def test_every_split_reads_the_same(parser: type[ToolParser], text: str) -> None:
    whole = read([text], parser)
    assert read(list(text), parser) == whole
    for cut in range(1, len(text)):
        assert read(pieces_of(text, [cut]), parser) == whole


PARSERS = [HermesParser, LlamaParser, MistralParser, PythonicParser]
FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<|python_start|>",
        "[",
        "]",
        "{",
        "}",
    ),
    *(HERMES_PARIS, LLAMA_SUM, '"name": ', '"add"', '"arguments": {"a": 1', "add(a=1)", ", ", "; ", "\n", " ", "x"),
]


@given(data=st.data(), parser=st.sampled_from(PARSERS), parts=st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_any_text_in_any_pieces_reads_the_same(data: st.DataObject, parser: type[ToolParser], parts: list[str]) -> None:
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    whole = read([text], parser)
    assert read(pieces_of(text, cuts), parser) == whole
    if not whole.calls:
        assert whole.content == text


@given(st.text(), st.sampled_from(PARSERS))
def test_text_without_calls_is_untouched(text: str, parser: type[ToolParser]) -> None:
    assert read(list(text), parser) == Answer(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(arguments=st.dictionaries(st.sampled_from("abc"), JSON_VALUES), ascii_only=st.booleans())
def test_any_arguments_survive(arguments: dict[str, object], ascii_only: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    for parser, answer in (
        (HermesParser, f'<tool_call>\n{{"name": "add", "arguments": {text}}}\n</tool_call>'),
        (LlamaParser, f'{{"name": "add", "parameters": {text}}}'),
        (MistralParser, f'[TOOL_CALLS][{{"name": "add", "arguments": {text}}}]'),
        (MistralArgsParser, f"[TOOL_CALLS]add[ARGS]{text}"),
    ):
        assert read([answer], parser) == Answer(calls=[("add", text)])
    keywords = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    [(name, read_back)] = read([f"[add({keywords})]"], PythonicParser).calls
    assert name == "add"
    assert json.loads(read_back) == arguments


def test_arguments_come_as_they_are_written() -> None:
    parser = HermesParser(["add"])
    assert parser.feed('<tool_call>{"name": "add", "arguments": ') == []
    [first] = parser.feed('{"a"')
    assert isinstance(first, ToolCallDelta)
    assert (first.index, first.name, first.arguments) == (0, "add", '{"a"')
    assert parser.feed(": 12") == [ToolCallDelta(0, ": 12")]
    assert parser.feed("}} ") == [ToolCallDelta(0, "}")]
    assert parser.feed("</tool_call>") == parser.finish() == []


def test_what_breaks_off_in_the_arguments_is_not_lost() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": oops} and so on'
    assert read([text], HermesParser) == Answer("oops} and so on", calls=[("add", '{"a": ')])


def test_deep_nesting_ends_the_call_not_the_server() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": ' + "[" * 5000
    answer = read([text], HermesParser)
    assert len(answer.content) + len(answer.calls[0][1]) == 5000 + len('{"a": ')
    for text in ("[add(a=" + "[" * 5000, "[add(a=" + "[" * 5000 + "]" * 5000 + ")]"):
        assert read([text], PythonicParser) == Answer(text)


THOUGHTS = [
    ("<think>\nHm. </think>\n\nYes.", False, Answer("Yes.", "Hm.")),
    ("Hm <b>. </think>\n\nYes.", True, Answer("Yes.", "Hm <b>.")),
    ("<think>cut sho</th", False, Answer("", "cut sho</th")),
    ("Yes <think>no</think>", False, Answer("Yes <think>no</think>")),
    (" <thin", False, Answer(" <thin")),
    ("<think></think>", False, Answer()),
    (f"<think>{HERMES_PARIS}</think>\n{HERMES_SUM}", False, Answer("", HERMES_PARIS, [SUM])),
]


@pytest.mark.parametrize(("text", "opened", "expected"), THOUGHTS)
def test_thoughts_are_told_from_the_answer(text: str, opened: bool, expected: Answer) -> None:
    for cut in range(len(text) + 1):
        assert read(pieces_of(text, [cut]), HermesParser, ReasoningParser, opened=opened) == expected
    assert read(list(text), HermesParser, ReasoningParser, opened=opened) == expected


@pytest.mark.parametrize("parser", [ReasoningParser, MistralReasoning, CommandReasoning, SeedReasoning])
def test_every_kind_of_thoughts(parser: type[ReasoningParser]) -> None:
    assert read([f"{parser.begin}a{parser.end}b"], None, parser) == Answer("b", "a")
    assert parser.opened_by(f"user\nassistant {parser.begin}\n")
    assert not parser.opened_by(f"{parser.begin}\n\n{parser.end}\n\n")


def test_without_parsers_the_text_is_the_content() -> None:
    assert read(["<think>a</think>", "", HERMES_PARIS]) == Answer("<think>a</think>" + HERMES_PARIS)
