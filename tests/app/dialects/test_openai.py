"""/v1 on a real socket with a real (fake) engine process behind it, and with OpenAI's own client in front."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.app.fake_text import MAX_MODEL_LEN, TEXT
from tests.app.harness import MODEL, Client, make_home, make_settings, serving

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("openai")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def events(client: Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; the last one must be [DONE] unless it is an error."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    if lines[-1] == "[DONE]":
        lines.pop()
    return [json.loads(line) for line in lines]


def chat(client: Client, content: str, **fields: Any) -> httpx.Response:
    return client.post(
        "/v1/chat/completions", json={**CHAT, "messages": [{"role": "user", "content": content}], **fields}
    )


def test_chat_whole(client: Client) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": TEXT}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["seed"] == 7
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    "fields",
    [{}, {"stop": "STOP"}, {"stop": [" wrote", "x"]}, {"stop": "🦊"}, {"max_tokens": 24}, {"stop": "no such thing"}],
)
@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", {"prompt": "hello"})])
def test_streamed_and_whole_are_the_same(
    client: Client, path: str, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    body = {"max_tokens": 100, **body, **fields}
    whole = client.post(f"/v1/{path}", json=body).json()
    pieces = events(client, f"/v1/{path}", {**body, "stream_options": {"include_usage": True}})
    choice = whole["choices"][0]
    texts = [c["delta"].get("content", "") if "delta" in c else c["text"] for p in pieces for c in p["choices"]]
    assert "".join(texts) == (choice["message"]["content"] if "message" in choice else choice["text"])
    assert [c["finish_reason"] for p in pieces for c in p["choices"]][-1] == choice["finish_reason"]
    assert pieces[-1]["usage"] == whole["usage"]
    assert pieces[-2]["seed"] == whole["seed"]
    assert len({piece["id"] for piece in pieces}) == 1


def test_a_stop_string_cuts_text_and_usage_and_ends_the_engines_work(client: Client) -> None:
    answer = chat(client, "ENDLESS", stop="STOP", max_tokens=400).json()
    assert answer["choices"][0]["message"]["content"] == TEXT[: TEXT.index("STOP")]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 60
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert row["num_output_tokens"] == answer["usage"]["completion_tokens"]
    assert row["seed"] == 7
    client.logged(f"aborted {row['id']} {row['num_output_tokens']} True")


def test_max_tokens_and_stop_tokens(client: Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "hello"}).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"
    first = client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 3}).json()["choices"][0]["text"]
    assert TEXT.startswith(first)
    comma = chat(client, "hello", stop_token_ids=[ord(",") - 30], ignore_eos=True, max_tokens=90)
    assert comma.status_code == 200


def test_a_cut_character_is_replaced_only_at_the_end(client: Client) -> None:
    texts = {client.post("/v1/completions", json={"prompt": "x", "max_tokens": n}).json()["choices"][0]["text"] for n in
             range(20, 50)}  # fmt: skip
    assert all("\ufffd" not in text[:-1] for text in texts)
    assert all(TEXT.startswith(text.rstrip("\ufffd")) for text in texts)


def wait_aborted(client: Client, request_id: str) -> None:
    client.until(lambda: f"aborted {request_id}" in client.engine_log())
    client.until(lambda: client.get("/api/requests?limit=1").json()["requests"][0]["state"] == "finished")
    assert client.get("/api/requests?limit=1").json()["requests"][0]["finish_reason"] == "abort"


def newest_running(client: Client) -> str:
    def running() -> str | None:
        row = client.get("/api/requests?limit=1").json()["requests"][0]
        return row["id"] if row["state"] in ("queued", "running") else None

    request_id = client.until(running)
    assert isinstance(request_id, str)
    return request_id


def test_a_streaming_client_that_goes_aborts_its_request(client: Client) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "SLOW ENDLESS"}], "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()  # kept: a dropped iterator closes the connection
        next(lines)
        request_id = newest_running(client)
    wait_aborted(client, request_id)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_before_the_first_token_aborts_its_request(client: Client, stream: bool) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "HANG"}], "stream": stream}

    def ask() -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{client.base_url}/v1/chat/completions", json=body, timeout=0.6, trust_env=False)

    thread = threading.Thread(target=ask)
    thread.start()
    request_id = newest_running(client)
    thread.join()
    wait_aborted(client, request_id)


def test_cancel_by_request_id(client: Client) -> None:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(chat(client, "SLOW ENDLESS")))
    thread.start()
    request_id = newest_running(client)
    assert client.post(f"/api/requests/{request_id}/cancel").status_code == 202
    thread.join()
    assert answers[0].json()["choices"][0]["finish_reason"] == "abort"
    assert client.post(f"/api/requests/{request_id}/cancel").status_code == 404


BAD_CHAT: list[tuple[dict[str, Any], str | None, str]] = [
    ({"temperature": "hot"}, "temperature", "number"),
    ({"temperature": -1}, "temperature", "greater"),
    ({"temperature": float("1e9")}, "temperature", "less"),
    ({"top_p": 0}, "top_p", "greater"),
    ({"top_p": True}, "top_p", "number"),
    ({"top_k": 2.5}, "top_k", "integer"),
    ({"min_p": 2}, "min_p", "less"),
    ({"seed": -1}, "seed", "greater"),
    ({"max_tokens": 0}, "max_tokens", "greater"),
    ({"max_tokens": "5"}, "max_tokens", "integer"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"stop": ""}, "stop", "at least 1"),
    ({"stop": [1]}, "stop", "string"),
    ({"stop_token_ids": [-1]}, "stop_token_ids.0", "greater"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "user"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None, "text"),
    ({"n": 0}, "n", "greater"),
    ({"n": 2, "best_of": 3}, "best_of", "best_of=3 with n=2"),
    ({"logprobs": 5}, "logprobs", "boolean"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less"),
    ({"prompt_logprobs": 2, "stream": True}, "prompt_logprobs", "cannot be streamed"),
    ({"suffix": "x"}, "suffix", "Filling in"),
    ({"tools": [{}]}, "tools.0", "required"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs the field"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "exclude each other"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "guided_regex"),
    ({"presence_penalty": 2.5}, "presence_penalty", "less"),
    ({"repetition_penalty": 0}, "repetition_penalty", "greater"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "no token id"),
    ({"logit_bias": {"": 1}}, "logit_bias", "no token id"),
    ({"logit_bias": {"999": 1}}, "logit_bias", "vocabulary of 320"),
    ({"stop_token_ids": [999]}, "stop_token_ids", "vocabulary of 320"),
    ({"bad_words": [""]}, "bad_words.0", "at least 1"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "at most max_tokens"),
    ({"cache_salt": ""}, "cache_salt", "at least 1"),
    ({"priority": 1.5}, "priority", "integer"),
    ({"model": 5}, "model", "string"),
]


@pytest.mark.parametrize(("fields", "param", "says"), BAD_CHAT)
def test_bad_fields_are_400_and_name_the_field(
    client: Client, fields: dict[str, Any], param: str | None, says: str
) -> None:
    response = client.post("/v1/chat/completions", json={**CHAT, **fields})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]
    if param is not None:
        assert error["param"].startswith(param)


def test_neutral_and_unknown_fields_are_accepted(client: Client) -> None:
    response = chat(client, "hi", n=1, logprobs=False, tools=[], presence_penalty=0, user="me", zzz=1, max_tokens=2)
    assert response.status_code == 200
    assert response.headers["x-pizarra-ignored"] == "user, zzz"
    assert "x-pizarra-ignored" not in chat(client, "hi", max_tokens=2).headers


def test_a_field_name_cannot_write_headers(client: Client) -> None:
    response = chat(client, "hi", max_tokens=1, **{"a\r\nx-evil: 1": 1, "é": 1, "z" * 5000: 1})
    assert response.status_code == 200
    assert "x-evil" not in response.headers
    assert response.headers["x-pizarra-ignored"].startswith("a??x-evil: 1, zzz")
    assert len(response.headers["x-pizarra-ignored"]) <= 1000


def test_context_too_long_gives_the_numbers(client: Client) -> None:
    response = client.post("/v1/completions", json={"prompt": [5] * 600})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "600" in error["message"]
    assert str(MAX_MODEL_LEN) in error["message"]
    response = client.post("/v1/completions", json={"prompt": [5] * 500, "max_tokens": 100})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b"", "JSON object"),
        (b'{"prompt": ""}', "empty"),
        (b'{"prompt": []}', "empty"),
        (b'{"prompt": [999]}', "vocabulary of 320"),
        (b'{"prompt": ["a", ""]}', "empty"),
        (b'{"prompt": ["a", "b", [1]]}', "prompt"),
        (b'{"prompt": [' + b'"a",' * 128 + b'"a"]}', "129 prompts"),
        (b'{"prompt": "a\\ud800"}', "surrogate"),
        (b"\xff\xfe", "JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": "a", "stop_token_ids": [1180591620717411303424]}', "stop_token_ids"),
        (b'{"prompt": "a", "stop": ["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}', "stop"),
    ],
)
def test_bad_bodies(client: Client, body: bytes, says: str) -> None:
    response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert says in response.json()["error"]["message"]


def test_unknown_model_and_route(client: Client) -> None:
    response = client.post("/v1/chat/completions", json={**CHAT, "model": "gpt-9"})
    assert response.status_code == 404
    assert "loaded: tiny" in response.json()["error"]["message"]
    assert client.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert client.get("/v1/models/gpt-9").status_code == 404


def test_an_error_row_is_an_error_whole_and_streamed(client: Client) -> None:
    response = chat(client, "FAIL")
    assert response.status_code == 500
    assert "asked to fail" in response.json()["error"]["message"]
    last = events(client, "/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "FAIL"}]})[-1]
    assert last["error"]["code"] == "engine_error"


def test_the_official_client(client: Client) -> None:
    api = openai.OpenAI(
        base_url=f"{client.base_url}/v1", api_key="none", http_client=openai.DefaultHttpxClient(trust_env=False)
    )
    assert [model.id for model in api.models.list()] == [MODEL]
    whole = api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], seed=3)
    assert whole.choices[0].message.content == TEXT
    stream = api.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert api.completions.create(model=MODEL, prompt="hi", max_tokens=100).choices[0].text == TEXT
    with pytest.raises(openai.NotFoundError, match="not loaded"):
        api.completions.create(model="other", prompt="hi")
    with pytest.raises(openai.BadRequestError, match="not supported yet"):
        api.completions.create(model=MODEL, prompt="hi", suffix="there")
    several = api.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], n=2, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in several.choices] == [0, 1]
    found = several.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert b"".join(bytes(each.bytes or []) for each in found.content).decode() == TEXT


@pytest.mark.parametrize("seed", [0, 2**53, 2**63, 2**64 - 1])
def test_every_seed_is_used_echoed_and_kept(client: Client, seed: int) -> None:
    assert chat(client, "hi", seed=seed, max_tokens=2).json()["seed"] == seed
    assert client.get("/api/requests?limit=1").json()["requests"][0]["seed"] == seed


def test_figures_of_a_request(client: Client) -> None:
    chat(client, "SLOW", max_tokens=10)
    row = client.get("/api/requests?limit=1&model=tiny").json()["requests"][0]
    assert row["state"] == "finished"
    assert row["source"] == "chat"
    assert 0 < row["ttft_s"] <= row["e2e_s"] < 5
    assert 0.02 < row["itl_p95_s"] < 1
    assert 5 < row["tokens_per_s"] < 50
    assert row["queue_s"] == pytest.approx(0.001)
    assert abs(row["created_at"] - time.time()) < 10
