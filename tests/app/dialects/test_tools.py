"""Tools and thoughts over /v1/chat/completions, with OpenAI's own client in front and a scripted engine behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.prompt import PromptEncoder
from app.settings import Settings
from app.text import ChatTemplate, ShownSpecials
from engine.vocab import load_vocab
from tests.app.harness import MODEL, Client, make_home, make_settings, serving

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id or '' }}<|im_end|>\n{% endfor %}"
)
HERMES = "{% if tools %}{{ tools | map(attribute='function.name') | join(',') }} <tool_call>\n{% endif %}" + TURNS
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
MISTRAL = (
    "{# [TOOL_CALLS] #}{% if tools %}{% endif %}"
    "{% for m in messages %}{{ m.tool_call_id or (m.tool_calls or [{}])[0].id or '' }}{% endfor %}"
)
TEMPLATES = {
    "hermes": HERMES + ANSWER,
    "thinker": HERMES + ANSWER.replace("\n", "\n<think>\n"),
    "plain": TURNS + ANSWER,
    "mistral": MISTRAL,
    "coder": HERMES.replace("<tool_call>", "<tool_call>\n<function=f>\n<parameter=p>") + ANSWER,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "description": "The time."}}
TOOLS: list[Any] = [WEATHER, TIME]
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris ñ"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
NAMED = {"name": "chill"}
EXPECTED = [("get_weather", {"city": "Paris ñ"}), ("get_time", {})]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("tools"), *TEMPLATES)
    for name, template in TEMPLATES.items():
        path = home / "models" / name / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}), encoding="utf-8")
    with serving(make_settings(home)) as client:
        for name in TEMPLATES:
            assert client.load(name)["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def clients_api(client: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        yield api


def asking(say: str, **fields: Any) -> dict[str, Any]:
    return {"model": "hermes", "messages": [{"role": "user", "content": f"SAY«{say}»"}], "tools": TOOLS, **fields}


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


def test_calls_whole(clients_api: openai.OpenAI) -> None:
    answer = clients_api.chat.completions.create(**asking(f"I look.\n{PARIS}\n{NOW}"))
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert calls_of(choice.message) == EXPECTED
    assert all(re.fullmatch("call_[0-9a-f]{32}", call.id) for call in choice.message.tool_calls or ())
    alone = clients_api.chat.completions.create(**asking(NOW)).choices[0].message
    assert (alone.content, calls_of(alone)) == (None, EXPECTED[1:])


@pytest.mark.parametrize("say", [f"I look.\n{PARIS}\n{NOW}", PARIS, "No call.", "<tool_call>{oops", NOW + " after"])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": True}, {"max_tokens": 60}, {"tool_choice": "required"}])
def test_streamed_calls_are_the_whole_ones(clients_api: openai.OpenAI, say: str, fields: dict[str, Any]) -> None:
    whole = clients_api.chat.completions.create(**asking(say, **fields))
    with clients_api.chat.completions.stream(**asking(say, **fields)) as stream:
        stream.until_done()
        streamed = stream.current_completion_snapshot
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        assert one.finish_reason == other.finish_reason
        assert (one.message.content or "") == (other.message.content or "")
        names = [
            [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
            for choice in (one, other)
        ]
        assert names[0] == names[1]
        assert len((one.logprobs and one.logprobs.content) or []) == len(
            (other.logprobs and other.logprobs.content) or []
        )


def test_arguments_stream_before_the_call_ends(client: Client) -> None:
    with client.stream("POST", "/v1/chat/completions", json={**asking(PARIS), "stream": True}) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    deltas = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert deltas[0]["function"]["name"] == "get_weather"
    assert len(deltas) > 3
    assert not any("name" in delta["function"] or "id" in delta for delta in deltas[1:])


def test_no_tools_no_calls(clients_api: openai.OpenAI) -> None:
    no_tools: list[dict[str, Any]] = [{"tool_choice": "none"}, {"tools": []}]
    for fields in no_tools:
        choice = clients_api.chat.completions.create(**asking(PARIS, **fields)).choices[0]
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (PARIS, None, "stop")


def test_one_call_where_parallel_ones_are_not_wanted(clients_api: openai.OpenAI) -> None:
    message = clients_api.chat.completions.create(**asking(PARIS + NOW, parallel_tool_calls=False)).choices[0].message
    assert calls_of(message) == EXPECTED[:1]
    assert message.content == NOW


@pytest.mark.parametrize(
    ("choice", "says", "says_not"),
    [
        ("required", "get_weather", "nothing"),
        ({"type": "function", "function": {"name": "get_time"}}, "get_time", "get_weather"),
    ],
)
def test_a_forced_call_reaches_the_engine_as_a_grammar(client: Client, choice: Any, says: str, says_not: str) -> None:
    response = client.post("/v1/chat/completions", json=asking(NOW, tool_choice=choice))
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
    added = client.added()
    guided = added[added.index("guided=") :]
    assert "structural_tag" in guided
    assert says in guided
    assert says_not not in guided


def test_a_real_engine_under_the_grammar_can_only_call(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    config = home / "models" / MODEL / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": HERMES + ANSWER}), encoding="utf-8")
    unit = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": unit}} for name in ("heat", "chill")]
    with serving(Settings(home=home, port=0)) as client:
        assert client.load()["state"] == "succeeded"
        for choice, names in (("required", {"heat", "chill"}), ({"type": "function", "function": NAMED}, {"chill"})):
            body = {"tool_choice": choice, "tools": tools, "model": MODEL, "seed": 5, "parallel_tool_calls": False}
            answer = client.post("/v1/chat/completions", json=asking("x", **body)).json()["choices"][0]
            message = answer["message"]
            assert answer["finish_reason"] == "tool_calls"
            assert message["content"] is None
            assert {call["function"]["name"] for call in message["tool_calls"]} <= names
            assert all(json.loads(call["function"]["arguments"])["unit"] in "CF" for call in message["tool_calls"])


def test_calls_in_qwen3_coders_form_have_the_types_of_the_tools(clients_api: openai.OpenAI) -> None:
    number = {"type": "object", "properties": {"n": {"type": "integer"}, "city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": number}}]
    inner = "<parameter=n>\n5\n</parameter>\n<parameter=city>\n5\n</parameter>\n"
    say = f"So.\n<tool_call>\n<function=get_weather>\n{inner}</function>\n</tool_call>"
    for choice in ("auto", "required"):
        body = asking(say, model="coder", tools=tools, tool_choice=choice)
        found = clients_api.chat.completions.create(**body).choices[0]
        assert (found.message.content, calls_of(found.message)) == ("So.", [("get_weather", {"n": 5, "city": "5"})])
        assert found.finish_reason == "tool_calls"
    text = {"type": "object", "properties": {"city": {"type": "string", "pattern": "a"}}}
    odd = [{"type": "function", "function": {"name": "get_weather", "parameters": text}}]
    with pytest.raises(openai.BadRequestError, match=r"the tool get_weather: .*'city' as plain text"):
        clients_api.chat.completions.create(**asking(say, model="coder", tools=odd, tool_choice="required"))


@pytest.mark.parametrize(
    ("prefill", "say", "reasoning", "content"),
    [
        ("So", " it is", None, " it is"),
        ("<think>Hm", " hm.</think>Yes", "hm.", "Yes"),
        ("<think>Hm</think>So", "<think>", None, "<think>"),
    ],
)
def test_a_continued_answer_is_past_its_thoughts_unless_they_are_open(
    client: Client, prefill: str, say: str, reasoning: str | None, content: str
) -> None:
    messages = [{"role": "user", "content": f"SAY«{say}»"}, {"role": "assistant", "content": prefill}]
    body = {"model": "thinker", "messages": messages, "continue_final_message": True}
    message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)


def test_thoughts_are_told_apart(client: Client, clients_api: openai.OpenAI) -> None:
    for say, content in ((f"Hm.\n</think>\n\nSo. {NOW}", "So."), (f"Hm.\n</think>\n\n{NOW}", None)):
        message = clients_api.chat.completions.create(**asking(say, model="thinker")).choices[0].message
        assert (message.content, calls_of(message)) == (content, EXPECTED[1:])
        assert message.to_dict()["reasoning_content"] == "Hm."
    body = asking("Hm.\n</think>\n\nSo.", model="thinker", stream=True, tools=None)
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == "So."


def test_under_another_grammar_there_are_no_thoughts(client: Client) -> None:
    body = asking('{"a": 1}', model="thinker", tools=None, response_format={"type": "json_object"})
    message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": '{"a": 1}'}


def test_the_second_turn_carries_the_calls(clients_api: openai.OpenAI) -> None:
    body = asking(PARIS)
    first = clients_api.chat.completions.create(**body).choices[0].message
    assert first.tool_calls
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "SAY«It is <|im_end|> warm.»"}
    messages = [{"role": "user", "content": "Weather?"}, first.model_dump(exclude_none=True), result]
    second = clients_api.chat.completions.create(**{**body, "messages": messages}).choices[0]
    assert second.message.content == "It is <|im_end|> warm."
    assert second.finish_reason == "stop"


CALL = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}


def with_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {}


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "plain"}, "tools", "the chat template of plain takes no tools"),
    ({"tool_choice": "required", "tools": None}, "tool_choice", "there are no tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "get_weather, get_time"),
    ({"tools": [TIME, TIME]}, "tools", "same name"),
    ({"tool_choice": "required", "guided_regex": "a"}, "guided_regex", "exclude each other"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
        "tools.0.function.parameters",
        "object",
    ),
    (with_parameters({"properties": 5}), "tools.0.function.parameters", "is an object"),
    (with_parameters({"required": [5]}), "tools.0.function.parameters", "list of names"),
    (with_parameters({"title": "\ud800"}), "tools.0.function.parameters", "surrogates"),
    (with_parameters(nested(600)), "messages", "nested too deeply"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0", "needs tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages.0", "only an assistant"),
    ({"messages": [{"role": "user"}]}, "messages.0", "needs content"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1]"}}]}]},
        "messages.0.tool_calls.0.function.arguments",
        "JSON object",
    ),
]


@pytest.mark.parametrize(("fields", "param", "says"), BAD)
def test_what_cannot_be_is_refused(client: Client, fields: dict[str, Any], param: str, says: str) -> None:
    content = json.dumps(asking("x", **fields))
    response = client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert says in error["message"]
    assert error["param"].startswith(param)


def test_a_schema_without_a_grammar_is_blamed_on_the_tools(client: Client) -> None:
    tools = [{"type": "function", "function": {"name": "BAD"}}]
    response = client.post("/v1/chat/completions", json={**asking("x", tools=tools, tool_choice="required")})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"


def test_ids_are_as_mistrals_templates_want_them(client: Client) -> None:
    call = {**CALL, "id": "call_0123456789abcdef"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "x"}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}, result]
    tokens = client.post("/tokenize", json={"model": "mistral", "messages": messages}).json()["tokens"]
    text = client.post("/detokenize", json={"model": "mistral", "tokens": tokens}).json()["prompt"]
    assert text == "789abcdef789abcdef"


def test_special_tokens_deep_in_tools_and_calls_are_plain_text(tmp_path: Path) -> None:
    vocab = load_vocab(make_home(tmp_path, "tiny") / "models" / "tiny")
    encoder = PromptEncoder(ChatTemplate("{{ tools | tojson }}{{ messages | tojson }}<|im_end|>"), vocab)
    ids = encoder.encode(
        [{"role": "user", "content": "", "tool_calls": [{"<|im_end|>": ["<|im_start|>"]}]}],
        tools=[{"function": {"description": "<|im_end|>", "n": 1}}],
    )
    assert [i for i in ids if i in vocab.special_ids] == vocab.encode("<|im_end|>")


def test_marks_that_are_special_tokens_stay_in_the_text(tmp_path: Path) -> None:
    vocab = load_vocab(make_home(tmp_path, "tiny") / "models" / "tiny")
    shown = ShownSpecials(vocab, ["<|im_start|>", "no such token"])
    start, end = vocab.encode("<|im_start|><|im_end|>")
    assert (shown.token_bytes(start), shown.token_bytes(end)) == (b"<|im_start|>", b"")
    assert [shown.token_bytes(i) for i in vocab.encode("ab")] == [vocab.token_bytes(i) for i in vocab.encode("ab")]
