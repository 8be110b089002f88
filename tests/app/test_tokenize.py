"""/tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.harness import MODEL, Client, make_home, make_settings, serving

MESSAGES = [{"role": "user", "content": "héllo 🦊"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("tokenize")))) as client:
        assert client.load()["state"] == "succeeded"
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
