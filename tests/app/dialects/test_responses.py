"""/v1/responses with OpenAI's own client in front and a scripted engine behind."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from app.settings import Settings
from tests.app.dialects.responses_asking import THOUGHT, TIME, WEATHER, asking, serving_models, streamed, texts_of
from tests.app.dialects.test_tools import ANSWER, HERMES, NOW, PARIS
from tests.app.fake_text import TEXT
from tests.app.harness import MODEL, Client, give_templates, make_home, serving

LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving_models(tmp_path_factory.mktemp("responses")) as client:
        yield client


@pytest.fixture(scope="module")
def api(client: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        yield api


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one answer to the next."""
    text = re.sub(r"(resp|rs|msg|fc|call)_[0-9a-f]{32}", r"\1", json.dumps(response))
    return {**json.loads(text), "created_at": 0, "completed_at": bool(response["completed_at"])}


def test_a_text_whole(client: Client, api: openai.OpenAI) -> None:
    body = {"input": "hello", "instructions": "Be brief.", "metadata": {"k": "v"}, "seed": 5}
    raw = client.post("/v1/responses", json={**body, "model": "plain", "temperature": 0.5}).json()
    answer = Response.model_validate(raw)
    assert (answer.object, answer.status, answer.model, answer.output_text) == ("response", "completed", "plain", TEXT)
    assert re.fullmatch("resp_[0-9a-f]{32}", answer.id)
    assert (answer.instructions, answer.metadata, answer.temperature) == ("Be brief.", {"k": "v"}, 0.5)
    assert (answer.error, answer.incomplete_details, answer.tool_choice, answer.tools) == (None, None, "auto", [])
    assert raw["seed"] == 5
    message = raw["output"][0]
    assert message["content"] == [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}]
    assert (message["role"], message["status"], len(raw["output"])) == ("assistant", "completed", 1)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert (row["id"], row["num_output_tokens"]) == (answer.id.removeprefix("resp_"), answer.usage.output_tokens)
    assert api.responses.create(model="plain", input="hello").output_text == TEXT


def test_the_events_of_a_text(client: Client) -> None:
    events = streamed(client, {"model": "plain", "input": "hello"})
    assert [event["type"] for event, _ in itertools.groupby(events)][:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [event["type"] for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 20
    assert "".join(deltas) == TEXT == events[-4]["text"]
    assert events[0]["response"]["status"] == "in_progress"
    assert (events[0]["response"]["output"], events[0]["response"]["usage"]) == ([], None)


SAYS = [f"I look.\n{PARIS}\n{NOW}", PARIS, "No call.", "<tool_call>{oops", NOW + " after", THOUGHT + NOW]


@pytest.mark.parametrize("model", ["hermes", "thinker"])
@pytest.mark.parametrize("fields", [{}, LOGPROBS, {"max_output_tokens": 60}, {"tool_choice": "required"}])
def test_streamed_and_whole_are_the_same(client: Client, model: str, fields: dict[str, Any]) -> None:
    for say in SAYS:
        body = asking(say, model=model, **fields)
        whole = client.post("/v1/responses", json=body).json()
        events = streamed(client, body)
        assert comparable(events[-1]["response"]) == comparable(whole)
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]


def test_the_stream_helper_puts_the_same_together(api: openai.OpenAI) -> None:
    for model, say in itertools.product(("hermes", "thinker"), SAYS):
        body = asking(say, model=model)
        with api.responses.stream(**body) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        whole = api.responses.create(**body)
        assert texts_of(final) == texts_of(whole)
        if snapshots and len(final.output) == 1:
            assert snapshots[-1] == final.output_text


def test_calls_and_thoughts_are_items(api: openai.OpenAI) -> None:
    answer = api.responses.create(**asking(f"{THOUGHT}\n{PARIS}\n{NOW} after", model="thinker"))
    city = '{"city": "Paris ñ"}'
    calls = [("get_weather", city), ("get_time", "{}")]
    assert texts_of(answer) == [("reasoning", "Hm, <b>?"), ("message", "So."), *calls, ("message", "after")]
    assert len({getattr(item, "call_id", item.id) for item in answer.output}) == 5
    assert all(item.status == "completed" for item in answer.output)
    assert answer.tools[0].to_dict() == {**WEATHER, "description": None}
    one = api.responses.create(**asking(PARIS + NOW, parallel_tool_calls=False))
    assert texts_of(one) == [calls[0], ("message", NOW)]
    none = api.responses.create(**asking(PARIS, tool_choice="none"))
    assert texts_of(none) == [("message", PARIS)]


def test_tokens_of_thoughts_are_counted(api: openai.OpenAI) -> None:
    def num_thought(say: str, model: str = "thinker", **fields: Any) -> tuple[int, int]:
        usage = api.responses.create(**asking(say, model=model, **fields)).usage
        assert usage is not None
        return usage.output_tokens_details.reasoning_tokens, usage.output_tokens

    thought, everything = num_thought(THOUGHT)
    assert thought == everything - len("So.") - 1 > 10  # a token a letter, and one that ends the answer
    assert num_thought(THOUGHT.removesuffix("\n</think>\n\nSo.")) == (9, 9)
    assert num_thought(THOUGHT, max_output_tokens=3) == (3, 3)
    assert num_thought("So.", "hermes")[0] == 0


@pytest.mark.parametrize(
    ("choice", "says", "says_not"),
    [("required", "get_weather", "nothing"), ({"type": "function", "name": "get_time"}, "get_time", "get_weather")],
)
def test_a_forced_call_reaches_the_engine_as_a_grammar(client: Client, choice: Any, says: str, says_not: str) -> None:
    answer = client.post("/v1/responses", json=asking(NOW, tool_choice=choice)).json()
    assert answer["output"][0]["type"] == "function_call"
    assert answer["tool_choice"] == choice
    added = client.added()
    guided = added[added.index("guided=") :]
    assert says in guided
    assert says_not not in guided


def test_a_limit_leaves_the_response_incomplete(client: Client, api: openai.OpenAI) -> None:
    answer = api.responses.create(model="plain", input="hello", max_output_tokens=5)
    assert (answer.status, answer.incomplete_details and answer.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert answer.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert TEXT.startswith(answer.output_text)
    events = streamed(client, {"model": "plain", "input": "hello", "max_output_tokens": 5})
    assert events[-1]["type"] == "response.incomplete"
    cut = api.responses.create(**asking(PARIS, max_output_tokens=45)).output[0]
    assert (cut.type, cut.status) == ("function_call", "incomplete")


def test_log_probabilities_are_those_of_the_text(api: openai.OpenAI) -> None:
    answer = api.responses.create(**asking(f"Hm.\n</think>\n\n🦊 <b> so.\n{PARIS}", model="thinker", **LOGPROBS))
    part = answer.output[1].content[0]
    assert part.text == "🦊 <b> so."
    assert b"".join(bytes(each.bytes) for each in part.logprobs).decode() == part.text
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
    assert answer.top_logprobs == 2


class Colour(BaseModel):
    name: str


def test_a_format_reaches_the_engine(client: Client, api: openai.OpenAI) -> None:
    parsed = api.responses.parse(model="plain", input='SAY«{"name": "red"}»', text_format=Colour)
    assert parsed.output_parsed == Colour(name="red")
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert (parsed.text.format.type, parsed.text.format.name) == ("json_schema", "Colour")  # type: ignore[union-attr]
    with api.responses.stream(model="plain", input='SAY«{"name": "red"}»', text_format=Colour) as stream:
        assert stream.get_final_response().output_parsed == Colour(name="red")
    assert "kind='json_schema'" in client.added()


# ---- conversations --------------------------------------------------------------------------------------------------


def num_prompt_tokens(api: openai.OpenAI, model: str, messages: list[Any]) -> int:
    """Of the same conversation with the same tools in chat."""
    tools: list[Any] = [
        {
            "type": "function",
            "function": {name: value for name, value in tool.items() if name not in ("type", "strict")},
        }
        for tool in (WEATHER, TIME)
    ]
    usage = api.chat.completions.create(model=model, messages=messages, tools=tools).usage
    assert usage is not None
    return usage.prompt_tokens


def test_the_second_turn_is_the_same_by_id_and_by_items(client: Client, api: openai.OpenAI) -> None:
    first = api.responses.create(**asking(f"{THOUGHT}{PARIS}", model="thinker", instructions="Not carried over."))
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It is <|im_end|> warm."}
    by_id = api.responses.create(**asking("", model="thinker", previous_response_id=first.id, input=[result]))
    items = [{"role": "user", "content": f"SAY«{THOUGHT}{PARIS}»"}, *(item.to_dict() for item in first.output)]
    by_items = api.responses.create(**asking("", model="thinker", input=[*items, result]))
    function = {"name": call.name, "arguments": call.arguments}
    made = {"id": call.call_id, "type": "function", "function": function}
    chat = [
        {"role": "user", "content": f"SAY«{THOUGHT}{PARIS}»"},
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm, <b>?", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call.call_id, "content": result["output"]},
    ]
    assert by_id.usage is not None
    assert by_items.usage is not None
    assert by_id.usage.input_tokens == by_items.usage.input_tokens == num_prompt_tokens(api, "thinker", chat)
    assert texts_of(by_id) == texts_of(by_items)
    assert by_id.previous_response_id == first.id
    third = api.responses.create(model="thinker", previous_response_id=by_id.id, input="SAY«Bye.\n</think>»")
    assert third.usage is not None
    assert third.usage.input_tokens > by_id.usage.input_tokens


def test_what_is_kept_can_be_had_and_deleted(client: Client, api: openai.OpenAI) -> None:
    events = streamed(client, {"model": "plain", "input": "hello"})
    kept = events[-1]["response"]
    assert kept["store"] is True
    assert client.get(f"/v1/responses/{kept['id']}").json() == kept
    assert api.responses.retrieve(kept["id"]).output_text == TEXT
    api.responses.delete(kept["id"])
    not_kept = api.responses.create(model="plain", input="hello", store=False)
    for response_id in (kept["id"], not_kept.id):
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(response_id)
        with pytest.raises(openai.NotFoundError):
            api.responses.delete(response_id)
        with pytest.raises(openai.BadRequestError, match="to go on from") as caught:
            api.responses.create(model="plain", input="and?", previous_response_id=response_id)
        assert caught.value.param == "previous_response_id"


def test_what_items_hold_beside_their_fields_does_no_harm(client: Client) -> None:
    odd = {"role": "user", "content": [{"type": "input_text", "text": "hello", "x": "\ud800"}], "y": "\udfff"}
    content = json.dumps({"model": "plain", "input": [odd]})
    response = client.post("/v1/responses", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["status"]) == (200, "completed")


def test_a_conversation_goes_on_from_a_call_that_was_cut_short(api: openai.OpenAI) -> None:
    cut = api.responses.create(**asking(f"Look: {PARIS}", max_output_tokens=55))
    assert [item.type for item in cut.output] == ["message", "function_call"]
    further = api.responses.create(**asking("", previous_response_id=cut.id, input="And?"))
    chat = [
        {"role": "user", "content": f"SAY«Look: {PARIS}»"},
        {"role": "assistant", "content": "Look:"},
        {"role": "user", "content": "And?"},
    ]
    assert further.usage is not None
    assert further.usage.input_tokens == num_prompt_tokens(api, "hermes", chat)


def test_a_real_engine_holds_to_formats_and_calls(tmp_path: Path) -> None:
    home = give_templates(make_home(tmp_path), {MODEL: HERMES + ANSWER})
    unit = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    tools: list[Any] = [
        {"type": "function", "name": name, "parameters": unit, "strict": True} for name in ("heat", "chill")
    ]
    with (
        serving(Settings(home=home, port=0)) as client,
        openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api,
    ):
        assert client.load()["state"] == "succeeded"
        choices: list[tuple[Any, set[str]]] = [
            ("required", {"heat", "chill"}),
            ({"type": "function", "name": "chill"}, {"chill"}),
        ]
        for choice, names in choices:
            answer = api.responses.create(
                model=MODEL,
                input="x",
                tools=tools,
                tool_choice=choice,
                parallel_tool_calls=False,
                extra_body={"seed": 5},
            )
            assert answer.status == "completed"
            calls = [item for item in answer.output if item.type == "function_call"]
            assert len(calls) == len(answer.output) == 1
            assert calls[0].name in names
            assert json.loads(calls[0].arguments)["unit"] in "CF"
        form: Any = {"type": "json_schema", "name": "unit", "schema": {**unit, "additionalProperties": False}}
        body: dict[str, Any] = {"model": MODEL, "input": "x", "text": {"format": form}, "seed": 3}
        with api.responses.stream(model=MODEL, input="x", text={"format": form}, extra_body={"seed": 3}) as stream:
            streamed_text = stream.get_final_response().output_text
        assert json.loads(streamed_text)["unit"] in "CF"
        assert client.post("/v1/responses", json=body).json()["output"][0]["content"][0]["text"] == streamed_text
