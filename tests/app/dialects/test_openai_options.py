"""What a /v1 request can ask for beside its text: how the engine gets it, and how the answer shows it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.fake_text import TEXT
from tests.app.harness import MODEL, Client, make_home, make_settings, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("options")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def complete(client: Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 100, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def chat(client: Client, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of all events, in order."""
    with client.stream("POST", f"/v1/{path}", json={**body, "stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def ids_of(client: Client, text: str) -> list[int]:
    found: list[int] = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return found


# ---- how the engine gets it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "engine_sees"),
    [
        ({"logit_bias": {"5": -1.5, "7": 2}}, "logit_bias={5: -1.5, 7: 2.0}"),
        ({"presence_penalty": 0.5}, "presence_penalty=0.5"),
        ({"frequency_penalty": -0.5}, "frequency_penalty=-0.5"),
        ({"repetition_penalty": 1.25}, "repetition_penalty=1.25"),
        ({"dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 3}, "dry_base=2.0, dry_allowed_length=3"),
        ({"typical_p": 0.5}, "typical_p=0.5"),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.2}, "xtc_probability=0.5, xtc_threshold=0.2"),
        ({"min_tokens": 3}, "min_tokens=3"),
        ({"allowed_token_ids": [7, 9]}, "allowed_token_ids=(7, 9)"),
        ({"logprobs": 3, "logprobs_mode": "processed"}, "logprobs=3, prompt_logprobs=None, logprobs_mode='processed'"),
        ({"response_format": {"type": "json_object"}}, "Guided(kind='json', text='')"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "Guided(kind='json', text='')"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            """Guided(kind='json_schema', text='{"type": "object"}')""",
        ),
        ({"guided_json": {"type": "array"}}, """Guided(kind='json_schema', text='{"type": "array"}')"""),
        ({"guided_json": '{"type":"array"}'}, """Guided(kind='json_schema', text='{"type":"array"}')"""),
        ({"guided_regex": "a+"}, "Guided(kind='regex', text='a+')"),
        ({"guided_grammar": "root ::= x"}, "Guided(kind='ebnf', text='root ::= x')"),
        ({"guided_choice": ["a", "b"]}, """Guided(kind='choice', text='["a", "b"]')"""),
        ({"response_format": {"type": "text"}}, "guided=None"),
    ],
)
def test_a_field_reaches_the_engine(client: Client, fields: dict[str, Any], engine_sees: str) -> None:
    complete(client, **fields)
    assert engine_sees in client.added()


def test_bad_words_are_sent_as_they_begin_a_text_and_as_they_follow_a_space(client: Client) -> None:
    complete(client, bad_words=["cat"])
    sequences = (tuple(ids_of(client, "cat")), tuple(ids_of(client, " cat")))
    client.logged(f"bad_words={sequences}")


def test_dry_breakers_are_single_tokens_and_have_defaults(client: Client) -> None:
    complete(client, dry_multiplier=1)
    breakers = tuple(ids_of(client, f"a{text}")[-1] for text in ("\n", ":", '"', "*"))
    client.logged(f"dry_sequence_breakers={breakers}")
    complete(client, dry_multiplier=1, dry_sequence_breakers=[";"])
    client.logged(f"dry_sequence_breakers=({ids_of(client, 'a;')[-1]},)")


def test_priority_and_cache_salt_reach_the_engine_and_cached_tokens_come_back(client: Client) -> None:
    answer = chat(client, priority=-3, cache_salt="mine")
    client.logged("queued priority=-3 salt='mine' n=1")
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    assert complete(client)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_grammar_at_fault_is_a_400_with_its_place(client: Client) -> None:
    response = client.post("/v1/completions", json={"prompt": "x", "guided_regex": "BAD"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_grammar"
    assert response.json()["error"]["param"] == "guided_regex"
    assert response.json()["error"]["message"].startswith("regex: BAD")


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_grammar_at_fault_is_a_400_before_a_stream_begins(client: Client, path: str) -> None:
    prompt = {"prompt": "x"} if path == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    response = client.post(f"/v1/{path}", json={**prompt, "guided_regex": "BAD", "stream": True})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["param"] == "guided_regex"
    good = streamed(client, path, {**prompt, "guided_regex": "good", "max_tokens": 100})
    assert good[-1]["finish_reason"] == "stop"


def test_a_token_that_is_not_there_cannot_be_allowed(client: Client) -> None:
    for ids in ([320], []):
        response = client.post("/v1/completions", json={"prompt": "x", "allowed_token_ids": ids})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("allowed_token_ids")


def test_an_answer_that_completes_its_grammar_keeps_its_last_token(client: Client) -> None:
    answer = complete(client, guided_regex="a")
    assert answer["choices"][0]["text"] == TEXT[: len(answer["choices"][0]["text"])]
    assert ids_of(client, TEXT)[:7] == ids_of(client, answer["choices"][0]["text"])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 7


def test_include_stop_str_in_output(client: Client) -> None:
    with_it = chat(client, stop="STOP", include_stop_str_in_output=True)["choices"][0]
    assert with_it["message"]["content"] == TEXT[: TEXT.index("STOP") + 4]
    assert with_it["finish_reason"] == "stop"


def test_stop_strings_wait_for_min_tokens(client: Client) -> None:
    ids = ids_of(client, TEXT)
    at = next(n for n in range(len(ids)) if " quick" in bytes_of(client, ids[:n]).decode(errors="ignore"))
    early = complete(client, stop=" quick")["choices"][0]
    late = complete(client, stop=" quick", min_tokens=at + 1)["choices"][0]
    assert early["text"] == TEXT[: TEXT.index(" quick")]
    assert late["text"] == TEXT


def bytes_of(client: Client, ids: list[int]) -> bytes:
    text: str = client.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    return text.encode()


# ---- log probabilities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 27}, {"stop": "STOP"}, {"stop": "🙂"}, {"stop": ["🦊🙂", " T"]}])
def test_chat_logprobs_are_those_of_the_text_to_the_byte(client: Client, fields: dict[str, Any]) -> None:
    choice = chat(client, logprobs=True, top_logprobs=2, **fields)["choices"][0]
    content = choice["logprobs"]["content"]
    joined = b"".join(bytes(each["bytes"]) for each in content)
    assert joined.decode(errors="replace").startswith(choice["message"]["content"])
    assert [each["logprob"] for each in content] == [-float(place) for place in range(1, len(content) + 1)]
    assert all(len(each["top_logprobs"]) == 2 for each in content)
    for each in content:
        assert each["top_logprobs"][0]["bytes"] == each["bytes"]
        assert each["token"].startswith("bytes:") or each["token"].encode() == bytes(each["bytes"])
    if not fields:
        assert joined.decode() == TEXT
        assert any(each["token"].startswith("bytes:\\xf0") for each in content), "an emoji of several tokens"


def test_chat_without_top_logprobs_has_the_tokens_own(client: Client) -> None:
    first = chat(client, logprobs=True)["choices"][0]["logprobs"]["content"][0]
    assert first["logprob"] == -1.0
    assert first["top_logprobs"] == []
    assert chat(client)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("fields", [{}, {"stop": "STOP"}, {"max_tokens": 30}, {"n": 3}, {"stop": "o", "n": 2}])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_streamed_choices_equal_whole_ones(client: Client, path: str, fields: dict[str, Any]) -> None:
    if path == "completions":
        body: dict[str, Any] = {"prompt": "héllo", "max_tokens": 100, "logprobs": 2, "echo": True, **fields}
    else:
        messages = [{"role": "user", "content": "hi"}]
        body = {"messages": messages, "max_tokens": 100, "logprobs": True, "top_logprobs": 1, **fields}
    whole = client.post(f"/v1/{path}", json=body).json()["choices"]
    pieces = streamed(client, path, body)
    assert len(whole) == fields.get("n", 1)
    for choice in whole:
        mine = [piece for piece in pieces if piece["index"] == choice["index"]]
        logprobs = [piece["logprobs"] for piece in mine if piece["logprobs"] is not None]
        if path == "completions":
            assert "".join(piece["text"] for piece in mine) == choice["text"]
            for name, values in choice["logprobs"].items():
                assert [each for part in logprobs for each in part[name]] == values
        else:
            assert "".join(piece["delta"].get("content", "") for piece in mine) == choice["message"]["content"]
            assert [each for part in logprobs for each in part["content"]] == choice["logprobs"]["content"]
        assert [piece["finish_reason"] for piece in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]


def test_completion_logprobs_point_into_the_text(client: Client) -> None:
    choice = complete(client, logprobs=2)["choices"][0]
    found = choice["logprobs"]
    assert {len(values) for values in found.values()} == {len(ids_of(client, TEXT))}
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset : offset + len(token)] == token
    assert all(token in top for token, top in zip(found["tokens"], found["top_logprobs"], strict=True))


def test_echo_puts_the_prompt_in_front_with_its_logprobs(client: Client) -> None:
    prompt = "¡olé! Well"
    ids = client.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    choice = complete(client, prompt=prompt, echo=True, logprobs=1)["choices"][0]
    found = choice["logprobs"]
    assert choice["text"] == prompt + TEXT
    assert found["token_logprobs"][: len(ids) + 1] == [None, *(-float(n) for n in range(1, len(ids))), -1.0]
    assert found["top_logprobs"][0] is None
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert token.startswith(("bytes:", "<")) or choice["text"][offset : offset + len(token)] == token
    assert complete(client, prompt=ids_of(client, "abc"), echo=True)["choices"][0]["text"] == "abc" + TEXT


def test_prompt_logprobs_have_vllms_shape(client: Client) -> None:
    ids = ids_of(client, "some words")
    found = complete(client, prompt=ids, prompt_logprobs=2)["choices"][0]["prompt_logprobs"]
    assert found[0] is None
    assert len(found) == len(ids)
    assert found[1][str(ids[1])] == {"logprob": -1.0, "rank": 1, "decoded_token": spell(client, ids[1])}
    assert "prompt_logprobs" not in complete(client)["choices"][0]
    assert len(chat(client, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]) > 5


def spell(client: Client, token_id: int) -> str:
    found: str = client.post("/detokenize", json={"tokens": [token_id]}).json()["prompt"]
    return found


# ---- several samples ------------------------------------------------------------------------------------------------


def test_n_answers_come_in_order_and_count_together(client: Client) -> None:
    answer = complete(client, n=3, best_of=3, max_tokens=12, ignore_eos=True)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert TEXT.startswith(texts[0])
    assert answer["usage"]["completion_tokens"] == 36
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert row["num_output_tokens"] == 36
    assert row["num_prompt_tokens"] == answer["usage"]["prompt_tokens"]


def test_a_stop_string_ends_its_own_sample_only(client: Client) -> None:
    first = ids_of(client, TEXT)[0]
    stop = bytes_of(client, [first]).decode()
    answer = complete(client, n=2, stop=stop, max_tokens=20)
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][1]["finish_reason"] == "length"
    assert len(answer["choices"][1]["text"]) > 10
    client.until(lambda: re.search(r"aborted \w+ 1 ", client.engine_log()))


def test_an_error_of_one_sample_is_the_requests(client: Client) -> None:
    response = client.post("/v1/completions", json={"prompt": "FAIL", "n": 2})
    assert response.status_code == 500
    client.until(lambda: client.get("/api/engines").json()["engines"][0]["stats"]["num_requests_running"] == 0)


def test_several_prompts_are_answered_in_order(client: Client) -> None:
    prompts = ["SAY«one»", "SAY«twofold»"]
    fields: dict[str, Any] = {"n": 2, "echo": True, "seed": 5, "max_tokens": 50, "logprobs": 1}
    answer = complete(client, prompt=prompts, **fields)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == ["SAY«one»one"] * 2 + ["SAY«twofold»twofold"] * 2
    alone = [complete(client, prompt=prompt, **fields)["usage"] for prompt in prompts]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(each[name] for each in alone)
    assert answer["seed"] == 5
    by_ids = complete(client, prompt=[ids_of(client, "SAY«3»")] * 2)
    assert [choice["text"] for choice in by_ids["choices"]] == ["3", "3"]


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 2, "echo": True}, {"stop": "o"}])
def test_several_prompts_streamed_equal_whole_ones(client: Client, fields: dict[str, Any]) -> None:
    body = {"prompt": ["SAY«one or two»", "SAY«three»", "hi"], "max_tokens": 20, **fields}
    whole = complete(client, **body)["choices"]
    pieces = streamed(client, "completions", body)
    assert len(whole) == 3 * fields.get("n", 1)
    for choice in whole:
        mine = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in mine) == choice["text"]
        assert [piece["finish_reason"] for piece in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]


def test_a_prompt_that_fails_ends_the_others(client: Client) -> None:
    body = {"prompt": ["ENDLESS SLOW", "FAIL"], "max_tokens": 400}
    assert client.post("/v1/completions", json=body).status_code == 500
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        last = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")][-1]
    assert last["error"]["code"] == "engine_error"
    client.until(lambda: client.get("/api/engines").json()["engines"][0]["stats"]["num_requests_running"] == 0)
    rows = client.get("/api/requests?limit=4").json()["requests"]
    assert sorted(row["state"] for row in rows) == ["failed", "failed", "finished", "finished"]


# ---- the queue's limit ----------------------------------------------------------------------------------------------


def test_answers_count_in_the_queue_not_requests(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path), max_waiting_requests=3)) as client:
        assert client.load(max_num_seqs=1)["state"] == "succeeded"
        body = {"prompt": "SLOW ENDLESS", "n": 4, "max_tokens": 400, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            assert client.post("/v1/completions", json={"prompt": "hi"}).status_code == 429
        client.until(lambda: client.post("/v1/completions", json={"prompt": "hi"}).status_code == 200)


def test_a_full_queue_refuses_with_429_and_says_when_to_retry(tmp_path: Path) -> None:
    settings = make_settings(make_home(tmp_path), max_waiting_requests=1)
    with serving(settings) as client:
        assert client.load(max_num_seqs=1)["state"] == "succeeded"

        def hang() -> None:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{client.base_url}/v1/completions", json={"prompt": "HANG"}, timeout=3, trust_env=False)

        threads = [threading.Thread(target=hang) for _ in range(2)]
        for thread in threads:
            thread.start()
        client.until(lambda: len(client.get("/api/requests").json()["requests"]) == 2)
        for stream in (False, True):
            response = client.post("/v1/completions", json={"prompt": "hi", "stream": stream})
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            error = response.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert error["code"] == "queue_full"
            assert "no more than 1 may" in error["message"]
        for thread in threads:
            thread.join()
        client.until(
            lambda: client.post("/v1/completions", json={"prompt": "hi", "model": MODEL}).status_code == 200, 15
        )
