"""The two pure halves of /v1/messages: from its body to a chat, and from an answer's text to blocks and events."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from app.dialects.anthropic_blocks import MessageBlocks, called_input, whole_content
from app.dialects.anthropic_chat import chat_of, ignored_fields
from app.dialects.anthropic_schemas import MessagesBody
from app.engines import Engine
from app.errors import ApiError
from app.parsers.answer import AnswerParser
from app.parsers.json_calls import HermesParser
from app.parsers.reasoning import ReasoningParser
from app.text import ChatTemplate

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "ñ"}}


def engine(template: str = "{{ messages }}") -> Engine:
    """What the translation looks at of an engine."""
    chat = SimpleNamespace(template=ChatTemplate(template))
    return cast(Engine, SimpleNamespace(model_id="m", chat=chat, vocab=SimpleNamespace(chat_template=template)))


def body(*messages: Any, **fields: Any) -> MessagesBody:
    return MessagesBody.model_validate({"max_tokens": 5, "messages": list(messages), **fields})


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def result(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def in_chat(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    return [message.for_template() for message in chat_of(body(*messages, **fields), engine()).messages]


def ignored(asked: MessagesBody, template: str) -> list[str]:
    return ignored_fields(asked, chat_of(asked, engine(template)), engine(template))


# ---- to a chat ------------------------------------------------------------------------------------------------------


def test_consecutive_messages_of_a_role_are_one_turn() -> None:
    assert in_chat(user("a"), user(text("b"), text("c")), assistant("d"), assistant("e"), user("f")) == [
        {"role": "user", "content": "a\nb\nc"},
        {"role": "assistant", "content": "d\ne"},
        {"role": "user", "content": "f"},
    ]


@pytest.mark.parametrize(
    "system", ["Be kind.", [text("Be"), {**text("kind."), "cache_control": {"type": "ephemeral"}}]]
)
def test_the_system_prompt_comes_first(system: Any) -> None:
    joined = "Be kind." if isinstance(system, str) else "Be\nkind."
    assert in_chat(user("a"), system=system)[0] == {"role": "system", "content": joined}
    assert in_chat(user("a"), system="") == [{"role": "user", "content": "a"}]
    later = {"role": "system", "content": "Now in French."}
    assert [message["role"] for message in in_chat(user("a"), later, user("b"))] == ["user", "system", "user"]


def test_calls_thoughts_and_results_keep_their_order() -> None:
    thoughts = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "redacted_thinking", "data": "y"}]
    second = {**USE, "id": "toolu_2"}
    results = [result("toolu_1", content=[text("1"), text("2")]), result("toolu_2", content="no", is_error=True)]
    chat = in_chat(user("a"), assistant(*thoughts, text("I look."), USE, second), user(*results, text("So?")))
    call = {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": {"at": "ñ"}}}
    assert chat[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [call, {**call, "id": "toolu_2"}],
    }
    assert chat[2:] == [
        {"role": "tool", "content": "1\n2", "name": "look", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": "Error: no", "name": "look", "tool_call_id": "toolu_2"},
        {"role": "user", "content": "So?"},
    ]


def test_a_result_may_be_empty_and_text_may_come_before_it() -> None:
    chat = in_chat(user("a"), assistant(USE), user(text("b"), result("toolu_1")))
    assert [message["content"] for message in chat] == ["a", "", "b", ""]


def test_a_last_message_of_the_assistants_is_continued_and_an_empty_one_is_left_out() -> None:
    assert chat_of(body(user("a"), assistant("The best is (")), engine()).continue_final_message
    assert not chat_of(body(user("a")), engine()).continue_final_message
    for empty in (assistant(""), {"role": "assistant", "content": []}):
        chat = chat_of(body(user("a"), empty), engine())
        assert ([message.role for message in chat.messages], chat.continue_final_message) == (["user"], False)


def test_options_are_those_of_a_chat() -> None:
    chat = chat_of(
        body(
            user("a"),
            max_tokens=9,
            stop_sequences=["x"],
            temperature=0.5,
            top_p=0.9,
            top_k=4,
            seed=3,
            tools=[TOOL],
            tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        ),
        engine(),
    )
    assert (chat.max_tokens, chat.stop_strings, chat.temperature, chat.top_p, chat.top_k) == (9, ["x"], 0.5, 0.9, 4)
    assert (chat.seed, chat.parallel_tool_calls) == (3, False)
    assert [each.for_template()["function"]["description"] for each in chat.tools or ()] == ["Looks."]
    assert chat.tool_choice.model_dump() == {"type": "function", "function": {"name": "look"}}  # type: ignore[union-attr]
    kinds: list[Any] = ["auto", "any", "none"]
    choices = [chat_of(body(user("a"), tool_choice={"type": kind}), engine()).tool_choice for kind in kinds]
    assert choices == ["auto", "required", "none"]


@pytest.mark.parametrize("place", ["output_format", "output_config"])
def test_a_schema_is_a_response_format(place: str) -> None:
    wish = {"type": "json_schema", "schema": {"type": "object"}}
    chat = chat_of(body(user("a"), **{place: wish if place == "output_format" else {"format": wish}}), engine())
    assert chat.response_format is not None
    assert chat.response_format.model_dump(by_alias=True) == {
        "type": "json_schema",
        "json_schema": {"schema": {"type": "object"}},
    }


THINKS = "{{ messages }}<think>"


@pytest.mark.parametrize(
    ("template", "kind", "variables", "told"),
    [
        (THINKS + "{{ enable_thinking }}", "disabled", {"enable_thinking": False}, False),
        (THINKS + "{{ enable_thinking }}", "enabled", {"enable_thinking": True}, False),
        (THINKS + "{{ thinking }}", "adaptive", {"thinking": True}, False),
        (THINKS, "disabled", {}, True),
        (THINKS, "enabled", {}, False),
        (THINKS, "between_tools", None, True),
        ("{{ messages }}", "enabled", {}, True),
        ("{{ messages }}", "adaptive", {}, False),
        ("{{ messages }}", "disabled", {}, False),
    ],
)
def test_thinking_is_done_where_it_can_be_and_else_told(
    template: str, kind: str, variables: dict[str, bool] | None, told: bool
) -> None:
    asked = body(user("a"), thinking={"type": kind})
    assert chat_of(asked, engine(template)).chat_template_kwargs == variables
    assert ("thinking" in ignored(asked, template)) == told


def test_no_thoughts_come_within_an_answer_that_has_begun() -> None:
    begun = body(user("a"), assistant("b"), thinking={"type": "enabled"})
    assert ignored(begun, THINKS) == ["thinking"]


def test_what_means_nothing_is_told_and_what_would_change_the_answer_is_refused() -> None:
    asked = body(
        {"role": "user", "content": [{**text("a"), "cache_control": {"type": "ephemeral"}, "citations": None}]},
        metadata={"user_id": "x"},
        service_tier="auto",
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[{**TOOL, "strict": True}],
        output_config={"effort": "low"},
        mcp_servers=[],
    )
    assert ignored(asked, THINKS) == [
        "messages.content.cache_control",
        "metadata",
        "output_config.effort",
        "service_tier",
        "thinking.budget_tokens",
        "tools.strict",
    ]
    for name in ("container", "mcp_servers"):
        with pytest.raises(ApiError, match=name):
            ignored(body(user("a"), **{name: ["x"]}), "")


SCHEMA = {"output_config": {"format": {"type": "json_schema", "schema": {}}}}


@pytest.mark.parametrize(
    ("messages", "fields", "says"),
    [
        ([user("a"), assistant(USE)], {}, "no tool_result follows"),
        ([user("a"), assistant({"type": "thinking", "thinking": "x"})], {}, "thoughts alone"),
        ([user(result("toolu_9"))], {}, "'toolu_9'"),
        ([assistant("")], {}, "nothing to answer"),
        ([user("a")], {**SCHEMA, "tools": [TOOL]}, "tools exclude each other"),
        ([user("a"), assistant("b")], SCHEMA, "last message"),
    ],
)
def test_a_chat_that_cannot_be_is_refused(messages: list[Any], fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ApiError, match=says):
        chat_of(body(*messages, **fields), engine())


def test_tools_that_may_not_be_called_go_with_a_schema() -> None:
    chat = chat_of(body(user("a"), **SCHEMA, tools=[TOOL], tool_choice={"type": "none"}), engine())
    assert chat.response_format is not None


def test_their_types_optional_fields_may_be_null() -> None:
    schema = {"type": "object", "properties": None, "required": None}
    chat = chat_of(body(user("a"), tools=[{"name": "n" * 128, "input_schema": schema}]), engine())
    assert [each.tool.parameters for each in chat.tools or ()] == [{"type": "object"}]
    with pytest.raises(ValidationError, match="pattern"):
        body(user("a"), tools=[{"name": "n" * 129, "input_schema": schema}])


# ---- from an answer -------------------------------------------------------------------------------------------------

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
FRAGMENTS = (
    "<think>Hm. ñ🦊</think>\n\n",
    "I look.\n",
    " ",
    '<tool_call>{"name": "look", "arguments": {"at": "ñ \\" 🦊", "n": [1, -2.5e3, null, {"x": true}]}}</tool_call>',
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
    '<tool_call>{"name": "look"}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {"a": 1, oops',
    '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
    "<tool_call>",
    "</tool_call>",
    "So.",
)


def blocks_of(chunks: list[str]) -> list[dict[str, Any]]:
    """The events of an answer that comes in these chunks."""
    blocks = MessageBlocks(AnswerParser(ReasoningParser(opened=False), HermesParser(["look"])))
    return [event for chunk in chunks for event in blocks.feed(chunk)] + blocks.finish()


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that Anthropic's client makes of these events."""
    start = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    usage = {"input_tokens": 1, "output_tokens": 0}
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in [{"type": "message_start", "message": {**start, "usage": usage}}, *events]:
        typed = EVENT.validate_python(event)
        snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    return [block.to_dict() for block in snapshot.content]


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6), st.data())
def test_streamed_in_any_chunks_is_the_whole_message(fragments: list[str], data: st.DataObject) -> None:
    answer = "".join(fragments)
    answer = answer[: data.draw(st.integers(0, len(answer)), label="cut by max_tokens")]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8), label="chunks"))
    chunks = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    whole = whole_content(blocks_of([answer]))
    events = blocks_of(chunks)
    assert without_ids(added_up(events)) == without_ids(whole)
    assert without_ids(whole_content(events)) == without_ids(whole)
    assert all(block.get("id", "toolu_").startswith("toolu_") for block in whole)


def test_blocks_open_and_close_one_after_the_other() -> None:
    events = blocks_of(["<think>Hm.</think>I look.", FRAGMENTS[4], FRAGMENTS[4], "So."])
    shape = [(event["index"], event["type"].removeprefix("content_block_")) for event in events]
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use", "tool_use", "text"]
    for index in range(5):
        kinds = [kind for place, kind in shape if place == index]
        assert (kinds[0], kinds[-1]) == ("start", "stop")
        assert set(kinds[1:-1]) == {"delta"}
    assert shape == sorted(shape, key=lambda each: each[0])


def test_arguments_that_json_cannot_say_again_are_answered_all_the_same() -> None:
    assert called_input('{"a": 1e999, "b": -' + "9" * 400 + "}") == {
        "a": 1.7976931348623157e308,
        "b": -1.7976931348623157e308,
    }
    assert called_input("") == {}
    assert called_input('{"a": "\\ud800"') == {}
    json.dumps(called_input('{"a": "\\ud800", "b": 12345678901234567890123}'))
