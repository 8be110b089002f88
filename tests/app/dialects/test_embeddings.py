"""/v1/embeddings: with a fake engine for the call's manners, with the real one and OpenAI's client for the numbers."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import AutoModel

from app.settings import Settings
from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

TEXTS = ["the cat sat on the mat", "héllo 🦊", "a", "the cat sat on the mat and then it went on and on"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("embeddings")))) as client:
        assert client.load(max_num_seqs=4)["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(Settings(home=make_home(tmp_path_factory.mktemp("real")), port=0)) as client:
        assert client.load(dtype="float32", max_num_seqs=3, max_num_batched_tokens=16)["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tiny_llama_checkpoint(tmp_path_factory.mktemp("reference") / MODEL)
    return AutoModel.from_pretrained(path, dtype=torch.float32).eval()


def embed(client: Client, given: Any, **fields: Any) -> httpx.Response:
    return client.post("/v1/embeddings", json={"input": given, **fields})


def newest(client: Client, count: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/api/requests?limit={count}").json()["requests"]
    return found


# ---- the numbers ----------------------------------------------------------------------------------------------------


def truth(reference: Any, ids: list[int], pooling: str) -> torch.Tensor:
    with torch.inference_mode():
        states = reference(torch.tensor([ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(states[-1] if pooling == "last" else states.mean(0), dim=0)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_openais_client_gets_what_transformers_computes(real: Client, reference: Any, pooling: str) -> None:
    api = openai.OpenAI(
        base_url=f"{real.base_url}/v1", api_key="none", http_client=openai.DefaultHttpxClient(trust_env=False)
    ).embeddings
    wish = {"pooling": pooling}
    by_default = api.create(model=MODEL, input=TEXTS, extra_body=wish)
    as_floats = api.create(model=MODEL, input=TEXTS, encoding_format="float", extra_body=wish)
    assert [each.embedding for each in by_default.data] == [each.embedding for each in as_floats.data]
    assert [each.index for each in by_default.data] == list(range(len(TEXTS)))
    assert by_default.model == MODEL
    ids = [real.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == sum(map(len, ids))
    for each, tokens in zip(by_default.data, ids, strict=True):
        assert torch.allclose(torch.tensor(each.embedding), truth(reference, tokens, pooling), atol=2e-5)


def test_alone_and_in_company_the_bits_are_the_same(real: Client) -> None:
    together = embed(real, TEXTS * 4, encoding_format="base64").json()["data"]
    alone = [embed(real, text, encoding_format="base64").json()["data"][0]["embedding"] for text in TEXTS]
    assert [each["embedding"] for each in together] == alone * 4


def test_token_ids_are_taken_as_texts_are(real: Client) -> None:
    ids = [real.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS[:2]]
    from_texts = embed(real, TEXTS[:2]).json()
    assert embed(real, ids).json() == from_texts
    assert embed(real, ids[0]).json()["data"][0] == from_texts["data"][0]


def test_the_whole_context_can_be_embedded_and_no_more(real: Client) -> None:
    longest = real.get("/v1/models").json()["data"][0]["max_model_len"]
    assert len(embed(real, [5] * longest).json()["data"][0]["embedding"]) == 64
    response = embed(real, [[5], [5] * (longest + 1)])
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("input.1", "context_length_exceeded")
    assert f"{longest + 1} tokens" in error["message"]
    assert f"holds {longest}" in error["message"]


def test_a_cached_beginning_is_used_unless_the_salt_differs(real: Client) -> None:
    ids = [9 + index % 200 for index in range(64)]
    for salt, cached in (("a", 0), ("a", 48), ("b", 0)):
        vector = embed(real, ids, cache_salt=salt).json()["data"]
        assert newest(real)[0]["num_cached_tokens"] == cached
        assert vector == embed(real, ids).json()["data"]


def test_records_and_metrics_know_no_first_token(real: Client) -> None:
    count = 'vllm:time_to_first_token_seconds_count{engine="'
    before = [line for line in real.get("/metrics").text.splitlines() if line.startswith(count)]
    embed(real, TEXTS)
    rows = newest(real, len(TEXTS))
    for row in rows:
        assert (row["source"], row["state"], row["finish_reason"]) == ("embedding", "finished", "stop")
        assert (row["num_output_tokens"], row["seed"]) == (0, None)
        assert (row["ttft_s"], row["itl_p95_s"], row["tokens_per_s"]) == (None, None, None)
        assert row["e2e_s"] > 0
        assert row["queue_s"] is not None
    assert sum(row["num_prompt_tokens"] for row in rows) == embed(real, TEXTS).json()["usage"]["prompt_tokens"]
    assert [line for line in real.get("/metrics").text.splitlines() if line.startswith(count)] == before


# ---- the manners ----------------------------------------------------------------------------------------------------


def test_the_shape_is_openais(client: Client) -> None:
    response = embed(client, ["hello", "you"], pooling="mean", user="me", zzz=1)
    answer = response.json()
    assert answer["object"] == "list"
    assert answer["data"][1] == {"object": "embedding", "index": 1, "embedding": [0.8, 0.6]}
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    assert response.headers["x-pizarra-ignored"] == "user, zzz"
    packed = embed(client, "hello", encoding_format="base64").json()["data"][0]["embedding"]
    assert struct.unpack("<2f", base64.b64decode(packed)) == pytest.approx((0.6, 0.8))


def test_salt_priority_and_pooling_reach_the_engine(client: Client) -> None:
    embed(client, "hello", cache_salt="mine", priority=-2, pooling="mean")
    client.logged("queued priority=-2 salt='mine' n=1")
    client.logged(f"pooled {newest(client)[0]['id']} mean")


def test_many_inputs_run_a_few_at_a_time_and_keep_their_order(client: Client) -> None:
    answer = embed(client, [f"text {index}" for index in range(100)]).json()
    assert [each["index"] for each in answer["data"]] == list(range(100))


@pytest.mark.parametrize(
    ("given", "fields", "param", "says"),
    [
        ("", {}, "input", "is empty"),
        ([], {}, "input", "is empty"),
        (["a", ""], {}, "input.1", "is empty"),
        ([[5], []], {}, "input.1", "is empty"),
        (5, {}, "input", "string"),
        (["a", 5], {}, "input", ""),
        ([["a"]], {}, "input", ""),
        ([[5], [999]], {}, "input.1", "vocabulary of 320"),
        ([[-1]], {}, "input", "greater than or equal to 0"),
        (["a"] * 2049, {}, "input", "2049 inputs in one call; at most 2048"),
        ("a", {"dimensions": 8}, "dimensions", "only the vectors of a model that was trained for it"),
        ("a", {"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ("a", {"pooling": "max"}, "pooling", "'last' or 'mean'"),
        ("a", {"cache_salt": ""}, "cache_salt", "at least 1 item"),
        ("a", {"model": "other"}, "model", "is not loaded"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    client: Client, given: Any, fields: dict[str, Any], param: str, says: str
) -> None:
    response = embed(client, given, **fields)
    assert response.status_code == (404 if "model" in fields else 400)
    error = response.json()["error"]
    assert error["param"].startswith(param)
    assert says in error["message"]


def test_a_failing_input_ends_the_call_and_the_others(client: Client) -> None:
    before = newest(client, 100)
    response = embed(client, ["HANG", "FAIL", "HANG", "HANG", "never begun"])
    assert response.status_code == 500
    assert "asked to fail" in response.json()["error"]["message"]
    client.until(lambda: all(row["finished_at"] for row in newest(client, 4)))
    begun = [row["finish_reason"] for row in newest(client, 100) if row["id"] not in {each["id"] for each in before}]
    assert sorted(begun) == ["abort", "abort", "abort", "error"]


def test_a_cancelled_input_is_an_error_and_not_a_vector(client: Client) -> None:
    before = newest(client)[0]["id"]
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(embed, client, "HANG")
        row = client.until(lambda: found if (found := newest(client)[0])["id"] != before else None)
        assert client.post(f"/api/requests/{row['id']}/cancel").is_success
        response = asked.result()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "cancelled"


def test_a_client_that_goes_ends_all_of_its_inputs(client: Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/embeddings", json={"input": ["HANG"] * 6}, timeout=0.5)
    client.until(lambda: all(row["state"] == "finished" for row in newest(client, 4)))
    rows = newest(client, 4)
    assert [row["finish_reason"] for row in rows] == ["abort"] * 4
    for row in rows:
        client.logged(f"aborted {row['id']}")
    assert embed(client, "still there").status_code == 200
