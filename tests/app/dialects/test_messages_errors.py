"""/v1/messages where it goes wrong: refusals in Anthropic's shape, and clients that go."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from pydantic import SecretStr

from tests.app.dialects.test_messages import TOOLS, api_of, asking, serving_templates
from tests.app.fake_text import MAX_MODEL_LEN
from tests.app.harness import Client, make_home, make_settings, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving_templates(tmp_path_factory.mktemp("errors"), "hermes", "plain") as client:
        yield client


@pytest.fixture(scope="module")
def api(client: Client) -> Iterator[anthropic.Anthropic]:
    with api_of(client) as api:
        yield api


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: List should have at least 1"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0: a block of type 'image'"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "a block of type 'document'"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0: a block needs a type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text: Field required"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages.0.content.0.content.0: a block of type 'image'"),
    (
        {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
        "role user holds no thinking",
    ),
    ({"system": [IMAGE]}, "system.0: a block of type 'image'"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools.0: tools of type 'web_search_20250305'",
    ),
    ({"tools": [{"name": "a"}]}, "tools.0.input_schema: Field required"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name"),
    ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools.0.input_schema"),
    ({"tools": [*TOOLS, TOOLS[0]]}, "two tools have the same name"),
    ({"tools": TOOLS, "model": "plain"}, "takes no tools"),
    ({"tool_choice": {"type": "any"}}, "there are no tools"),
    ({"tool_choice": {"type": "tool"}}, "needs name"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice names 'x'"),
    ({"temperature": -1}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences.0"),
    ({"max_tokens": 0}, "max_tokens: Input should be greater"),
    ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"container": "c"}, "container is not supported"),
    ({"messages": [{"role": "user", "content": "long " * MAX_MODEL_LEN}]}, f"of hermes holds {MAX_MODEL_LEN}"),
]


@pytest.mark.parametrize(("fields", "says"), BAD)
def test_what_cannot_be_is_refused_by_its_name(api: anthropic.Anthropic, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=re.escape(says)) as refused:
        api.messages.create(**asking("x", extra_body=fields))
    assert refused.value.type == "invalid_request_error"
    assert str(refused.value.request_id).startswith("req_")


def test_errors_have_their_shape(client: Client, api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="loaded: hermes, plain") as unknown:
        api.messages.create(**asking("x", model="claude"))
    assert unknown.value.type == "not_found_error"
    for response in (
        client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}),
        client.post("/v1/messages/count_tokens", json={"messages": 5}),
        client.post("/v1/messages/batches", json={}),
        client.get("/v1/messages"),
    ):
        error = response.json()
        assert (error["type"], error["request_id"]) == ("error", response.headers["request-id"])
        assert error["error"]["type"] == ("not_found_error" if response.status_code == 404 else "invalid_request_error")
    with pytest.raises(anthropic.InternalServerError) as failed:
        api.messages.create(**asking("FAIL"))
    assert failed.value.type == "api_error"
    with pytest.raises(anthropic.APIStatusError, match="asked to fail") as streamed:
        list(api.messages.create(**asking("FAIL"), stream=True))
    assert streamed.value.type == "api_error"


def test_the_key_in_their_header(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path), api_key=SecretStr("right"))) as client:
        with pytest.raises(anthropic.AuthenticationError, match="x-api-key") as refused:
            api_of(client, "wrong").messages.create(**asking("x"))
        assert refused.value.type == "authentication_error"
        with pytest.raises(anthropic.ServiceUnavailableError, match="no model is loaded") as unloaded:
            api_of(client, "right").messages.create(**asking("x"))
        assert unloaded.value.type == "overloaded_error"


def test_a_full_queue_is_a_rate_limit(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path), max_waiting_requests=0)) as client:
        assert client.load(max_num_seqs=1)["state"] == "succeeded"
        with client.stream("POST", "/v1/messages", json=asking("SLOW ENDLESS", model="tiny", stream=True)) as response:
            lines = response.iter_lines()  # kept: a dropped iterator closes the connection
            next(lines)
            newest_running(client)
            with pytest.raises(anthropic.RateLimitError) as refused:
                api_of(client).messages.create(**asking("x", model="tiny"))
        assert refused.value.type == "rate_limit_error"
        assert int(refused.value.response.headers["retry-after"]) >= 1


# ---- clients that go ------------------------------------------------------------------------------------------------


def newest_running(client: Client) -> str:
    def running() -> str | None:
        row = client.get("/api/requests?limit=1").json()["requests"][0]
        return row["id"] if row["state"] in ("queued", "running") else None

    return str(client.until(running))


def wait_aborted(client: Client, request_id: str) -> None:
    client.until(lambda: f"aborted {request_id}" in client.engine_log())
    client.until(lambda: client.get("/api/requests?limit=1").json()["requests"][0]["finish_reason"] == "abort")


def test_a_streaming_client_that_goes_aborts_its_request(client: Client, api: anthropic.Anthropic) -> None:
    with api.messages.stream(**asking("SLOW ENDLESS")) as stream:
        next(iter(stream))
        request_id = newest_running(client)
    wait_aborted(client, request_id)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_before_the_first_token_aborts_its_request(client: Client, stream: bool) -> None:
    body = asking("HANG", stream=stream)

    def ask() -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{client.base_url}/v1/messages", json=body, timeout=1, trust_env=False)

    thread = threading.Thread(target=ask)
    thread.start()
    request_id = newest_running(client)
    thread.join()
    wait_aborted(client, request_id)


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_answer_is_an_error_and_no_end_of_its_own(
    client: Client, api: anthropic.Anthropic, stream: bool
) -> None:
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(anthropic.APIStatusError) as cancelled:
            list(api.messages.create(**asking("SLOW ENDLESS"), stream=stream))  # type: ignore[call-overload]
        told.append(str(cancelled.value))

    thread = threading.Thread(target=ask)
    thread.start()
    assert client.post(f"/api/requests/{newest_running(client)}/cancel").status_code == 202
    thread.join()
    assert "cancelled" in told[0]
