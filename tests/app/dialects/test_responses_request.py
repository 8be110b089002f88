"""Items become the messages that a chat with the same turns would have had."""

from __future__ import annotations

from typing import Any

import pytest

from app.dialects.responses_request import chat_body, chat_messages, in_responses_terms
from app.dialects.responses_schemas import ITEMS, ResponsesBody
from app.errors import ApiError

USER = {"role": "user", "content": "Hi"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SUMMED = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "encrypted_content": "x"}
SEALED = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OTHER = {**CALL, "call_id": "c2"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]}


def said(content: str | None, calls: tuple[str, ...] = (), thoughts: str | None = None) -> dict[str, Any]:
    function = {"name": "f", "arguments": {"a": 1}}
    made = [{"id": call_id, "type": "function", "function": function} for call_id in calls]
    message: dict[str, Any] = {"role": "assistant", "content": content or ""}
    if thoughts is not None:
        message["reasoning_content"] = thoughts
    return {**message, "tool_calls": made} if made else message


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([SAID], [said("So.")]),
        ([SAID, SAID], [said("So."), said("So.")]),
        ([THOUGHT, SAID, CALL, OTHER], [said("So.", ("c1", "c2"), "Hm.")]),
        ([THOUGHT, CALL], [said(None, ("c1",), "Hm.")]),
        ([CALL, SAID], [said("So.", ("c1",))]),
        ([SAID, CALL, SAID], [said("So.So.", ("c1",))]),
        ([THOUGHT], [said("", (), "Hm.")]),
        ([SAID, THOUGHT, SAID], [said("So."), said("So.", (), "Hm.")]),
        ([SUMMED, SEALED, SAID], [said("So.", (), "Hm")]),
        (
            [CALL, RESULT, SAID],
            [said(None, ("c1",)), {"role": "tool", "content": "1", "tool_call_id": "c1"}, said("So.")],
        ),
        ([{**USER, "role": "developer"}, SAID], [{"role": "system", "content": "Hi"}, said("So.")]),
    ],
)
def test_items_and_their_messages(items: list[Any], messages: list[Any]) -> None:
    found = chat_messages(ITEMS.validate_python([USER, *items, USER]), "Be brief.")
    user = {"role": "user", "content": "Hi"}
    assert [message.for_template() for message in found] == [
        {"role": "system", "content": "Be brief."},
        user,
        *messages,
        user,
    ]


def test_what_is_stored_reads_back_the_same() -> None:
    items = ITEMS.validate_python([USER, THOUGHT, SUMMED, SAID, CALL, RESULT])
    assert chat_messages(ITEMS.validate_json(ITEMS.dump_json(items)), None) == chat_messages(items, None)


def test_the_result_of_a_later_call_is_refused() -> None:
    with pytest.raises(ApiError, match="no function_call before it"):
        chat_messages(ITEMS.validate_python([USER, RESULT, CALL]), None)


def test_every_shared_field_arrives() -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["x"], "min_tokens": 2,
        "presence_penalty": 1.0, "logit_bias": {"1": 2.0}, "cache_salt": "s", "priority": -1, "guided_regex": "a",
        "ignore_eos": True, "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    body = ResponsesBody.model_validate(
        {"input": "x", "max_output_tokens": 9, "include": ["message.output_text.logprobs"], "top_logprobs": 3, **fields}
    )
    chat = chat_body(body, [])
    assert {name: getattr(chat, name) for name in fields} == fields
    assert (chat.max_tokens, chat.num_logprobs) == (9, 3)


def test_errors_name_the_fields_of_this_call() -> None:
    error = ApiError(400, "max_tokens is too large", param="max_tokens", remedy="Lower max_tokens", code="c")
    found = in_responses_terms(error)
    assert (found.detail, found.param) == ("max_output_tokens is too large", "max_output_tokens")
    assert (found.remedy, found.code, found.status) == ("Lower max_output_tokens", "c", 400)
    with pytest.raises(ApiError) as caught:
        chat_body(ResponsesBody.model_validate({"input": "x", "chat_template_kwargs": {"messages": 1}}), [])
    assert caught.value.param == "chat_template_kwargs"
