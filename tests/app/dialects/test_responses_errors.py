"""What /v1/responses refuses, names as ignored, and says when an answer fails or its client goes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.app.dialects.responses_asking import TIME, WEATHER, asking, serving_models, streamed
from tests.app.fake_text import TEXT
from tests.app.harness import Client, make_home, make_settings, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving_models(tmp_path_factory.mktemp("responses")) as client:
        yield client


@pytest.fixture(scope="module")
def api(client: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        yield api


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "at least one item"),
    ({"input": 5}, "input", "string"),
    ({"input": None}, "input", "string"),
    ({"input": [{"type": "web_search_call"}]}, "input.0", "'web_search_call' is not supported"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0", "input_image"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "user"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, "input", "no function_call"),
    (
        {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "[1]"}]},
        "input.0.arguments",
        "JSON object",
    ),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input", "at least 1"),
    ({"max_output_tokens": 0}, "max_output_tokens", "greater"),
    ({"max_output_tokens": 10**6}, "max_output_tokens", "max_output_tokens asks for 1000000"),
    ({"max_tokens": 5}, "max_tokens", "Here it is called max_output_tokens"),
    ({"top_logprobs": 3}, "top_logprobs", "needs include"),
    ({"background": True}, "background", "not supported"),
    ({"truncation": "auto"}, "truncation", "not supported"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "stored prompts"),
    ({"n": 2}, "n", "not supported"),
    ({"tools": [{"type": "web_search"}]}, "tools.0", "'web_search' is not supported"),
    ({"tools": [TIME, TIME], "model": "hermes"}, "tools", "same name"),
    ({"tools": [TIME], "model": "plain"}, "tools", "takes no tools"),
    ({"tools": [{**TIME, "parameters": {"a": float("nan")}}]}, "tools.0.parameters", "JSON"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "'file_search' is not supported"),
    ({"tool_choice": "sometimes"}, "tool_choice", "required"),
    ({"text": {"format": {"type": "xml"}}}, "text.format", "'xml' is not supported"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "required"),
    ({"text": {"format": {"type": "json_schema", "name": "BAD", "schema": {"title": "BAD"}}}}, "text.format", "BAD"),
    (
        {"text": {"format": {"type": "json_object"}}, "guided_regex": "a"},
        "guided_regex",
        "text.format and guided_regex",
    ),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
    ({"metadata": {"a": 5}}, "metadata.a", "string"),
    ({"stop": ""}, "stop", "at least 1"),
    ({"instructions": "x" * 2000}, "input", "context too long"),
]


@pytest.mark.parametrize(("fields", "param", "says"), BAD)
def test_what_cannot_be_is_refused(client: Client, fields: dict[str, Any], param: str, says: str) -> None:
    content = json.dumps({"model": "plain", "input": "x", **fields})
    response = client.post("/v1/responses", content=content, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]
    assert error["param"] == param


def test_what_means_nothing_here_is_named(client: Client) -> None:
    fields = {
        "reasoning": {"effort": "high"},
        "user": "me",
        "truncation": "disabled",
        "background": False,
        "service_tier": "flex",
        "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "tools": [{**WEATHER, "strict": True}],
        "top_logprobs": 0,
    }
    response = client.post("/v1/responses", json=asking("x", **fields))
    assert response.status_code == 200, response.text
    names = "include.reasoning.encrypted_content, reasoning, service_tier, text.verbosity, tools.strict, user"
    assert response.headers["x-pizarra-ignored"] == names
    assert response.json()["service_tier"] == "default"
    assert "x-pizarra-ignored" not in client.post("/v1/responses", json=asking("x")).headers


def test_a_failing_engine_whole_and_streamed(client: Client, api: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="asked to fail"):
        api.responses.create(model="plain", input="FAIL")
    events = streamed(client, {"model": "plain", "input": "FAIL"})
    assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
    assert events[-2]["code"] == "engine_error"
    failed = events[-1]["response"]
    assert (failed["status"], failed["store"], failed["error"]["code"]) == ("failed", False, "server_error")
    assert "asked to fail" in failed["error"]["message"]
    with api.responses.stream(model="plain", input="FAIL") as stream:
        assert [event.type for event in stream][-1] == "response.failed"


def test_an_answer_that_breaks_off_keeps_what_it_had(client: Client, tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path))) as other:
        assert other.load()["state"] == "succeeded"
        events = streamed(other, {"input": "CRASH"})
    assert events[-1]["type"] == "response.failed"
    message = events[-1]["response"]["output"][0]
    assert message["status"] == "incomplete"
    assert TEXT.startswith(message["content"][0]["text"])


def wait_aborted(client: Client, request_id: str) -> None:
    def finished() -> dict[str, Any] | None:
        row: dict[str, Any] = client.get("/api/requests?limit=1").json()["requests"][0]
        return row if row["id"] == request_id and row["state"] == "finished" else None

    assert client.until(finished)["finish_reason"] == "abort"
    client.logged(f"aborted {request_id}")


def newest_running(client: Client) -> str:
    def running() -> str | None:
        rows = client.get("/api/requests?limit=1").json()["requests"]
        return next((row["id"] for row in rows if row["state"] in ("queued", "running")), None)

    return str(client.until(running))


def test_a_streaming_client_that_goes_aborts_its_request(client: Client) -> None:
    body = {"model": "plain", "input": "SLOW ENDLESS", "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as response:
        lines = response.iter_lines()  # kept: a dropped iterator closes the connection
        next(line for line in lines if "output_text.delta" in line)
        request_id = newest_running(client)
    wait_aborted(client, request_id)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_before_the_first_token_aborts_its_request(client: Client, stream: bool) -> None:
    body = {"model": "plain", "input": "HANG", "stream": stream}

    def ask() -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{client.base_url}/v1/responses", json=body, timeout=0.6, trust_env=False)

    thread = threading.Thread(target=ask)
    thread.start()
    request_id = newest_running(client)
    thread.join()
    wait_aborted(client, request_id)


def test_cancelled_by_the_operator(client: Client) -> None:
    answers: list[dict[str, Any]] = []
    body = {"model": "plain", "input": "SLOW ENDLESS"}
    thread = threading.Thread(target=lambda: answers.append(client.post("/v1/responses", json=body).json()))
    thread.start()
    assert client.post(f"/api/requests/{newest_running(client)}/cancel").status_code == 202
    thread.join()
    assert (answers[0]["status"], answers[0]["store"], answers[0]["incomplete_details"]) == ("cancelled", False, None)


def test_a_stopping_server_says_so_in_the_stream(tmp_path: Path) -> None:
    found: list[list[dict[str, Any]]] = []
    with serving(make_settings(make_home(tmp_path))) as client:
        assert client.load()["state"] == "succeeded"

        def ask() -> None:
            with Client(base_url=client.base_url, timeout=20, trust_env=False) as other:
                found.append(streamed(other, {"input": "SLOW ENDLESS"}))

        thread = threading.Thread(target=ask)
        thread.start()
        newest_running(client)
    thread.join()
    assert [event["type"] for event in found[0]][-2:] == ["error", "response.failed"]
    assert found[0][-2]["code"] == "server_stopping"
