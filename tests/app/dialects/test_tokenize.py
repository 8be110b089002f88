"""/tokenize and /detokenize."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.engine.tiny_checkpoint import CHAT_TEMPLATE

RICH = (
    "{% if tools %}<tool_call>{{ tools | tojson }}\n{% endif %}" + CHAT_TEMPLATE + "{% if enable_thinking is false %}"
    "<think></think>{% endif %}"
)
MESSAGES = [{"role": "user", "content": "héllo 🦊"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("tokenize"), MODEL, "rich")
    config = home / "models" / "rich" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": RICH}), encoding="utf-8")
    with serving(make_settings(home)) as client:
        assert client.load()["state"] == client.load("rich")["state"] == "succeeded"
        yield client


@pytest.mark.parametrize("text", ["hello", "¡hola, niño! 🦊🙂", " two  spaces\n", ""])
def test_there_and_back(client: Client, text: str) -> None:
    found = client.post("/tokenize", json={"model": MODEL, "prompt": text, "add_special_tokens": False}).json()
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == 512
    assert found["token_strs"] is None
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


def test_a_chat_is_tokenised_as_it_is_answered(client: Client) -> None:
    found = client.post("/tokenize", json={"messages": MESSAGES, "return_token_strs": True}).json()
    answer = client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 1}).json()
    assert found["count"] == answer["usage"]["prompt_tokens"] == len(found["token_strs"])
    shorter = client.post("/tokenize", json={"messages": MESSAGES, "add_generation_prompt": False}).json()
    assert shorter["tokens"] == found["tokens"][: shorter["count"]]
    assert shorter["count"] < found["count"]


def rendered(client: Client, model: str, **fields: Any) -> str:
    response = client.post("/tokenize", json={"model": model, "messages": MESSAGES, **fields})
    assert response.status_code == 200, response.text
    tokens = response.json()["tokens"]
    text: str = client.post("/detokenize", json={"model": model, "tokens": tokens}).json()["prompt"]
    return text


def test_tools_are_in_the_prompt_as_they_are_in_the_chats(client: Client) -> None:
    tools = [{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}]
    assert "get_time" in rendered(client, "rich", tools=tools)
    assert "get_time" not in rendered(client, "rich")
    body = {"model": "rich", "messages": MESSAGES, "tools": tools}
    answer = client.post("/v1/chat/completions", json={**body, "max_tokens": 1}).json()
    assert client.post("/tokenize", json=body).json()["count"] == answer["usage"]["prompt_tokens"]
    refused = client.post("/tokenize", json={"model": MODEL, "messages": MESSAGES, "tools": tools})
    assert refused.json()["error"]["code"] == "tools_not_supported"


def test_variables_reach_the_template_and_those_it_does_not_read_are_named(client: Client) -> None:
    variables = {"enable_thinking": False, "mood": "x"}
    assert rendered(client, "rich", chat_template_kwargs=variables).endswith("assistant\n<think></think>")
    assert rendered(client, "rich").endswith("assistant\n")
    body = {"model": "rich", "messages": MESSAGES, "chat_template_kwargs": variables, "max_tokens": 1}
    for path in ("/tokenize", "/v1/chat/completions"):
        response = client.post(path, json=body | ({} if path[1] == "v" else {"max_tokens": None}))
        ignored = response.headers["x-pizarra-ignored"].split(", ")
        assert [name for name in ignored if name != "max_tokens"] == ["chat_template_kwargs.mood"]


def test_the_last_message_can_be_continued(client: Client) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "It is "}]
    text = rendered(client, MODEL, messages=messages, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nIt is ")
    answer = client.post(
        "/v1/chat/completions", json={"messages": messages, "continue_final_message": True, "max_tokens": 3}
    ).json()
    count = client.post("/tokenize", json={"messages": messages, "continue_final_message": True}).json()["count"]
    assert answer["usage"]["prompt_tokens"] == count
    finished = rendered(client, MODEL, messages=messages)
    assert finished.endswith("It is <|im_end|>\n<|im_start|>assistant\n")


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "exclude each other",
        ),
        (
            {"continue_final_message": True, "messages": [{"role": "assistant", "content": "a", "tool_calls": [CALL]}]},
            "continue_final_message",
            "nothing can follow",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "the server sets this"),
        ({"chat_template_kwargs": {"a": "\ud800"}}, "chat_template_kwargs", "surrogates"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "a request may not bring one"),
    ],
)
def test_what_cannot_be_rendered_is_refused(client: Client, fields: dict[str, Any], param: str, says: str) -> None:
    for path in ("/tokenize", "/v1/chat/completions"):
        content = json.dumps({"messages": MESSAGES, **fields})
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(param)
        assert says in response.json()["error"]["message"]


def test_special_tokens_are_spelled(client: Client) -> None:
    found = client.post("/tokenize", json={"messages": MESSAGES, "return_token_strs": True}).json()
    text = client.post("/detokenize", json={"tokens": found["tokens"]}).json()["prompt"]
    assert "héllo 🦊" in text
    assert any(each.startswith("bytes:") for each in found["token_strs"])


def test_unknown_fields_are_named(client: Client) -> None:
    response = client.post("/tokenize", json={"prompt": "a", "zzz": 1})
    assert response.headers["x-pizarra-ignored"] == "zzz"


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("tokenize", {}, "either prompt or messages"),
        ("tokenize", {"prompt": "a", "messages": MESSAGES}, "either prompt or messages"),
        ("tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "chat template writes them"),
        ("tokenize", {"prompt": 5}, "string"),
        ("detokenize", {"tokens": [999]}, "vocabulary of 320"),
        ("detokenize", {"tokens": ["a"]}, "integer"),
        ("detokenize", {}, "required"),
    ],
)
def test_bad_bodies_get_openais_error(client: Client, path: str, body: dict[str, Any], says: str) -> None:
    response = client.post(f"/{path}", json=body)
    assert response.status_code == 400, response.text
    assert says in response.json()["error"]["message"]
    assert client.post(f"/{path}", json={**body, "model": "other"}).status_code in (400, 404)
