"""Raw completions over HTTP: the body that is sent, the stream that is read, and what a refusal becomes."""

from __future__ import annotations

import json

import httpx
import pytest

from ui.completion import CompletionFields, first_model, stream_completion

FIELDS = CompletionFields(prompt="a", max_tokens=3, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


def _client(handler: httpx.MockTransport) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=handler, base_url="http://here")


def test_the_body_leaves_out_what_is_the_servers_to_choose() -> None:
    body = FIELDS.body("m")
    assert "seed" not in body
    assert "stop" not in body
    assert body["temperature"] == 0.0
    assert body["stream_options"] == {"include_usage": True}


def test_the_body_carries_seed_zero_and_stop_strings() -> None:
    fields = CompletionFields("a", 3, 1.0, 1.0, 0, 0.0, seed=0, stop=("\n\n", "END"))
    assert fields.body("m")["seed"] == 0
    assert list(fields.body("m")["stop"]) == ["\n\n", "END"]


async def test_a_stream_grows_and_ends_with_usage() -> None:
    events = [
        {"choices": [{"text": "x", "finish_reason": None}]},
        {"choices": [{"text": "yé", "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}, "seed": 7},
    ]
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(200, text=lines)

    async with _client(httpx.MockTransport(answer)) as client:
        texts = [(c.text, c.finish_reason) async for c in stream_completion(client, "m", FIELDS)]
        last = [completion async for completion in stream_completion(client, "m", FIELDS)][-1]
    assert texts == [("x", None), ("xyé", "length"), ("xyé", "length")]
    assert (last.usage, last.seed, last.error) == ({"prompt_tokens": 1, "completion_tokens": 2}, 7, None)
    assert json.loads(sent[0])["model"] == "m"


@pytest.mark.parametrize("status", [400, 404, 503])
async def test_a_refusal_is_shown_in_the_servers_words(status: int) -> None:
    transport = httpx.MockTransport(
        lambda request: httpx.Response(status, json={"error": {"message": "too long by 3 tokens", "type": "x"}})
    )
    async with _client(transport) as client:
        found = [completion.error async for completion in stream_completion(client, "m", FIELDS)]
    assert found == ["too long by 3 tokens"]


async def test_an_error_in_the_middle_of_a_stream_keeps_the_text() -> None:
    lines = 'data: {"choices": [{"text": "x"}]}\n\ndata: {"error": {"message": "the engine ended"}}\n\n'
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=lines))
    async with _client(transport) as client:
        found = [(completion.text, completion.error) async for completion in stream_completion(client, "m", FIELDS)]
    assert found[-1] == ("x", "the engine ended")


async def test_the_first_model_answers_and_none_is_no_error() -> None:
    for models, expected in ([{"id": "a"}, {"id": "b"}], "a"), ([], None):
        transport = httpx.MockTransport(lambda request, models=models: httpx.Response(200, json={"data": models}))
        async with _client(transport) as client:
            assert await first_model(client) == expected
