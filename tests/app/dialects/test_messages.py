"""/v1/messages on a real socket, with Anthropic's own client in front and a scripted engine or the real one behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from app.settings import Settings
from tests.app.fake_text import MAX_MODEL_LEN, TEXT
from tests.app.harness import Client, make_home, make_settings, serving

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id or '' }}<|im_end|>\n{% endfor %}"
)
TOLD = "{% if tools %}{{ tools | map(attribute='function.name') | join(',') }} <tool_call>\n{% endif %}"
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SWITCH = "{{ '<think>\n' if enable_thinking is not defined or enable_thinking }}"
TEMPLATES = {
    "hermes": TOLD + TURNS + ANSWER,
    "thinker": TOLD + TURNS + ANSWER.replace("{% endif %}", SWITCH + "{% endif %}"),
    "plain": TURNS + ANSWER,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "The weather.", "input_schema": CITY},
    {"name": "get_time", "input_schema": {"type": "object"}},
]
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris ñ"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
CALLED = [("get_weather", {"city": "Paris ñ"}), ("get_time", {})]


@contextmanager
def serving_templates(home: Path, *names: str) -> Iterator[Client]:
    """A server with a model for each of these templates."""
    for name in names:
        path = make_home(home, name) / "models" / name / "tokenizer_config.json"
        config = json.loads(path.read_text()) | {"chat_template": TEMPLATES[name]}
        path.write_text(json.dumps(config), encoding="utf-8")
    with serving(make_settings(home)) as client:
        for name in names:
            assert client.load(name)["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving_templates(tmp_path_factory.mktemp("messages"), "hermes", "thinker") as client:
        yield client


@pytest.fixture(scope="module")
def api(client: Client) -> Iterator[anthropic.Anthropic]:
    with api_of(client) as api:
        yield api


def api_of(client: Client, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=str(client.base_url).rstrip("/"), api_key=key, max_retries=0)


def asking(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "hermes", "max_tokens": 200, "messages": [{"role": "user", "content": content}], **fields}


def saying(say: str, **fields: Any) -> dict[str, Any]:
    return asking(f"SAY«{say}»", **fields)


def comparable(message: Any) -> dict[str, Any]:
    """What two answers to one question have in common."""
    found: dict[str, Any] = message.to_dict()
    found.pop("id")
    found.pop("stop_details", None)
    for block in found["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return found


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


# ---- answers --------------------------------------------------------------------------------------------------------


def test_a_whole_message(client: Client, api: anthropic.Anthropic) -> None:
    message = api.messages.create(**asking("hello"))
    assert (message.type, message.role, message.model) == ("message", "assistant", "hermes")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": TEXT}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert (message.id, message._request_id) == (f"msg_{row['id']}", f"req_{row['id']}")
    assert message.usage.to_dict() == {
        "input_tokens": row["num_prompt_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": row["num_output_tokens"],
    }


def test_input_tokens_are_those_that_were_not_cached(api: anthropic.Anthropic) -> None:
    plain, salted = (
        api.messages.create(**asking("hello", extra_body=extra)).usage for extra in ({}, {"cache_salt": "s"})
    )
    assert salted.cache_read_input_tokens == 16
    assert salted.input_tokens == plain.input_tokens - 16


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({"stop_sequences": ["no such", "STOP"]}, TEXT[: TEXT.index("STOP")], "stop_sequence", "STOP"),
        ({"max_tokens": 1}, "T", "max_tokens", None),
        ({"max_tokens": 10**6}, TEXT, "end_turn", None),
    ],
)
def test_why_it_ended(
    api: anthropic.Anthropic, fields: dict[str, Any], text: str, reason: str, sequence: str | None
) -> None:
    with api.messages.stream(**asking("hello", **fields)) as stream:
        message = stream.get_final_message()
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert text_of(message) == text


def test_an_answer_that_fills_the_context_says_so(api: anthropic.Anthropic) -> None:
    with api.messages.stream(**asking("ENDLESS", max_tokens=10**6)) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.input_tokens + message.usage.output_tokens == MAX_MODEL_LEN


def test_the_events_of_a_stream(client: Client) -> None:
    with client.stream("POST", "/v1/messages", json=asking("hello", stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = list(response.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [each["type"] for each in data] == names
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert (data[0]["message"]["content"], data[0]["message"]["stop_reason"]) == ([], None)
    assert data[0]["message"]["usage"]["input_tokens"] > 0
    assert "".join(each["delta"]["text"] for each in data[3:-3]) == TEXT
    assert data[-2]["usage"]["output_tokens"] > len(names[3:-3]) / 2


SAYINGS = (
    f"I look.\n{PARIS}\n{NOW}",
    PARIS,
    "No call.",
    "<tool_call>{oops",
    NOW + " after",
    f"Hm.</think>\n\nI look.{NOW}",
)


@pytest.mark.parametrize("say", SAYINGS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "thinker"},
        {"max_tokens": 60},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"stop_sequences": ["Paris"]},
        {"extra_body": {"cache_salt": "s"}},
    ],
)
def test_streamed_is_whole(api: anthropic.Anthropic, say: str, fields: dict[str, Any]) -> None:
    asked = saying(say, tools=TOOLS, **fields)
    whole = comparable(api.messages.create(**asked))
    with api.messages.stream(**asked) as stream:
        assert comparable(stream.get_final_message()) == whole
    events = list(api.messages.create(**asked, stream=True))
    pieces = [event.delta for event in events if event.type == "content_block_delta"]
    said = "".join(delta.text for delta in pieces if delta.type == "text_delta")
    assert said == "".join(block["text"] for block in whole["content"] if block["type"] == "text")


async def test_the_asynchronous_client(client: Client) -> None:
    async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as api:
        whole = await api.messages.create(**asking("hello"))
        async with api.messages.stream(**asking("hello")) as stream:
            assert comparable(await stream.get_final_message()) == comparable(whole)


# ---- tools, thoughts, prefills, schemas -----------------------------------------------------------------------------


def test_calls_and_their_results(api: anthropic.Anthropic) -> None:
    asked = saying(f"I look.\n{PARIS}\n{NOW}", tools=TOOLS)
    first = api.messages.create(**asked)
    assert first.stop_reason == "tool_use"
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert calls_of(first) == CALLED
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "SAY«It is <|im_end|> warm.»"}
        for block in first.content
        if block.type == "tool_use"
    ]
    assert all(re.fullmatch("toolu_[0-9a-f]{32}", each["tool_use_id"]) for each in results)
    turns = [{"role": "user", "content": "Weather?"}, first.to_param(), {"role": "user", "content": results[:1]}]
    second = api.messages.create(**{**asked, "messages": turns})
    assert text_of(second) == "It is <|im_end|> warm."
    assert second.stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("choice", "expected", "guided"),
    [
        ({"type": "auto"}, CALLED, None),
        ({"type": "none"}, [], None),
        ({"type": "any"}, CALLED, "get_weather"),
        ({"type": "tool", "name": "get_time"}, CALLED, "get_time"),
        ({"type": "auto", "disable_parallel_tool_use": True}, CALLED[:1], None),
    ],
)
def test_tool_choice(
    client: Client, api: anthropic.Anthropic, choice: Any, expected: list[Any], guided: str | None
) -> None:
    message = api.messages.create(**saying(PARIS + NOW, tools=TOOLS, tool_choice=choice))
    assert calls_of(message) == expected
    sampling = client.added()
    assert ("guided=None" in sampling) == (guided is None)
    assert guided is None or guided in sampling


def test_thoughts_are_blocks_and_can_be_turned_off(client: Client, api: anthropic.Anthropic) -> None:
    asked = saying("Hm.\n</think>\n\nSo.", model="thinker")
    message = api.messages.create(**asked)
    assert [block.to_dict() for block in message.content] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "So."},
    ]
    again = {"messages": [*asked["messages"], message.to_param(), {"role": "user", "content": "SAY«Yes.»"}]}
    assert api.messages.create(**{**asked, **again}).content[0].type == "thinking"
    off: dict[str, Any] = {"model": "thinker", "thinking": {"type": "disabled"}}
    assert [block.to_dict() for block in api.messages.create(**saying("So.", **off)).content] == [
        {"type": "text", "text": "So."}
    ]
    on = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert client.post("/v1/messages", json=saying("x", **on)).headers["x-pizarra-ignored"] == (
        "thinking, thinking.budget_tokens"
    )


@pytest.mark.parametrize("model", ["hermes", "thinker"])
def test_a_last_message_of_the_assistants_is_continued(client: Client, api: anthropic.Anthropic, model: str) -> None:
    """The prompt ends in it, and the answer is what comes after it: no thoughts, no turn of its own."""
    asked = saying("B)", model=model)
    asked["messages"].append({"role": "assistant", "content": "The best is ("})
    message = api.messages.create(**asked)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "B)"}]
    chat = {"model": model, "messages": asked["messages"], "continue_final_message": True}
    tokens = client.post("/tokenize", json=chat).json()["tokens"]
    assert message.usage.input_tokens == len(tokens)
    text = client.post("/detokenize", json={"model": model, "tokens": tokens}).json()["prompt"]
    assert text.endswith("assistant\nThe best is (")


class Colour(BaseModel):
    name: str
    red: int


def test_an_answer_under_a_schema(client: Client, api: anthropic.Anthropic) -> None:
    asked = saying('{"name": "teal", "red": 0}')
    message = api.messages.parse(**asked, output_format=Colour)
    assert message.parsed_output == Colour(name="teal", red=0)
    with api.messages.stream(**asked, output_format=Colour) as stream:
        assert stream.get_final_message().parsed_output == message.parsed_output
    client.logged("guided=Guided(kind='json_schema'")
    schema = {"type": "json_schema", "schema": {"title": "BAD"}}
    with pytest.raises(anthropic.BadRequestError, match="BAD"):
        api.messages.create(**asked, output_config={"format": schema})


# ---- counting -------------------------------------------------------------------------------------------------------


def test_counted_tokens_are_the_ones_used(client: Client, api: anthropic.Anthropic) -> None:
    asked = asking("hello <|im_end|>", system="Be kind.", tools=TOOLS)
    count = api.messages.count_tokens(**{name: value for name, value in asked.items() if name != "max_tokens"})
    assert count.input_tokens == api.messages.create(**asked).usage.input_tokens
    chat = [{"role": "system", "content": "Be kind."}, *asked["messages"]]
    bare = client.post("/tokenize", json={"model": "hermes", "messages": chat}).json()["count"]
    assert api.messages.count_tokens(model="hermes", system="Be kind.", messages=asked["messages"]).input_tokens == bare
    assert count.input_tokens > bare


# ---- the real engine ------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_the_real_engine_continues_what_was_begun(tmp_path: Path, default_model_path: Path) -> None:
    (tmp_path / "models" / "real").mkdir(parents=True)
    (tmp_path / "models" / "real" / "model.gguf").symlink_to(default_model_path)
    with serving(Settings(home=tmp_path, port=0)) as client:
        assert client.load("real", max_num_seqs=2, max_model_len=512)["state"] == "succeeded"
        greedy = {"extra_body": {"temperature": 0}}  # their client's second version no longer knows the field
        asked = asking("Name three colours.", model="real", max_tokens=24, system="Be brief.", **greedy)
        with api_of(client) as api:
            whole = api.messages.create(**asked)
            with api.messages.stream(**asked) as stream:
                streamed = stream.get_final_message()
            assert comparable(streamed)["content"] == comparable(whole)["content"]
            assert streamed.usage.cache_read_input_tokens
            assert whole.usage.output_tokens <= 24
            said = text_of(whole)
            cut = said.index(" ", len(said) // 3)  # where a token ends too
            turns = [*asked["messages"], {"role": "assistant", "content": said[:cut]}]
            continued = api.messages.create(**{**asked, "messages": turns})
            assert text_of(continued).startswith(said[cut:])
            counted = {"model": "real", "system": asked["system"], "messages": turns}
            usage = continued.usage
            total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
            assert api.messages.count_tokens(**counted).input_tokens == total
