"""What the playground asks of an engine: inspected tokens, sampling fields, verdicts on grammars, token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.grammar_check import json_fault, verdict
from tests.app.harness import Client, make_home, make_settings, serving

PROMPT = {"prompt": "Tell me.", "max_tokens": 6, "temperature": 0.5, "top_k": 9, "return_token_ids": True}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("inspect"))
    config = {"temperature": 0.6, "top_p": 0.9, "do_sample": True}
    (home / "models" / "tiny" / "generation_config.json").write_text(json.dumps(config))
    with serving(make_settings(home)) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def engine(client: Client) -> str:
    found: str = client.get("/api/engines").json()["engines"][0]["id"]
    return found


def streamed(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_an_answer_tells_its_token_ids_whole_and_streamed(client: Client) -> None:
    whole = client.post("/v1/completions", json=PROMPT).json()["choices"][0]
    spelled = client.post("/detokenize", json={"tokens": whole["token_ids"]}).json()["prompt"]
    assert spelled.strip() == whole["text"].strip()
    assert len(whole["token_ids"]) == 6
    assert whole["prompt_token_ids"] == client.post("/tokenize", json={"prompt": "Tell me."}).json()["tokens"]
    chunks = [chunk["choices"][0] for chunk in streamed(client, "/v1/completions", PROMPT)]
    assert [token for chunk in chunks for token in chunk.get("token_ids", [])] == whole["token_ids"]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    chat = {"messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 6, "return_token_ids": True}
    answer = client.post("/v1/chat/completions", json=chat).json()["choices"][0]
    deltas = [chunk["choices"][0] for chunk in streamed(client, "/v1/chat/completions", chat)]
    assert [token for each in deltas for token in each.get("token_ids", [])] == answer["token_ids"]
    plain = client.post("/v1/completions", json=PROMPT | {"return_token_ids": None}).json()["choices"][0]
    assert plain.keys().isdisjoint({"token_ids", "prompt_token_ids", "stop_reason"})


def test_a_stop_string_is_named_and_what_it_cut_is_no_token(client: Client) -> None:
    text = client.post("/v1/completions", json=PROMPT).json()["choices"][0]["text"]
    choice = client.post("/v1/completions", json=PROMPT | {"stop": text[3:5]}).json()["choices"][0]
    assert choice["stop_reason"] == text[3:5]
    assert len(choice["token_ids"]) < 6


def inspect(client: Client, engine: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    body = {"request": PROMPT, "answer_token_ids": [40, 41, 42], "positions": [1], **fields}
    response = client.post(f"/api/engines/{engine}/inspect", json=body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def test_places_are_inspected_with_the_request_as_it_was_sent(client: Client, engine: str) -> None:
    found = inspect(client, engine, positions=[2, 0, 3], top=3, request=PROMPT | {"seed": 5})
    assert (found["exactness"], found["seeded"]) == ("bits", True)
    assert [place["position"] for place in found["places"]] == [2, 0, 3]
    last, first, behind = found["places"]
    assert (last["token"]["token_id"], first["token"]["token_id"], behind["token"]) == (42, 40, None)
    assert (last["rank"], first["rank"], behind["rank"]) == (3, 1, 4)
    assert first["logprob"] == -1.0
    assert [each["token_id"] for each in last["top"]] == [42, 43, 44]
    assert [each["final_logprob"] for each in last["top"]] == [-3.0, -4.0, None]
    assert last["top"][0]["text"] == client.post("/detokenize", json={"tokens": [42]}).json()["prompt"]
    [top_k] = [stage for stage in last["stages"] if stage["asked"]]
    assert (top_k["name"], top_k["num_left"], top_k["num_removed"]) == ("top_k", 9, 311)
    assert top_k["moved"][0]["token_id"] == 44


def test_an_inspection_is_no_request_of_the_records(client: Client, engine: str) -> None:
    before = client.get("/api/requests?limit=100").json()["requests"]
    assert not inspect(client, engine)["seeded"]
    assert client.get("/api/requests?limit=100").json()["requests"] == before


def test_a_chat_is_inspected_with_its_own_prompt_and_grammar(client: Client, engine: str) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "guided_choice": ["yes", "no"]}
    [place] = inspect(client, engine, request=chat)["places"]
    assert [stage["name"] for stage in place["stages"] if stage["asked"]] == ["grammar"]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"positions": [4]}, "positions", "the answer has 3 tokens"),
        ({"positions": []}, "positions", "at least 1"),
        ({"positions": [0] * 17}, "positions", "at most 16"),
        ({"top": 0}, "top", "greater than or equal to 1"),
        ({"answer_token_ids": [999]}, "answer_token_ids", "outside the vocabulary"),
        ({"request": PROMPT | {"prompt": ["a", "b"]}}, "request.prompt", "2 prompts"),
        ({"request": PROMPT | {"prompt": []}}, "request.prompt", "no tokens"),
        ({"request": PROMPT | {"model": "another"}}, "request.model", "'another'"),
        ({"request": PROMPT | {"temperature": 99}}, "request", "less than or equal to 10"),
        ({"request": PROMPT | {"logit_bias": {"999": 1}}}, "request.logit_bias", "999"),
    ],
)
def test_a_bad_inspection_is_refused_with_the_place(
    client: Client, engine: str, fields: dict[str, Any], param: str, said: str
) -> None:
    found = inspect(client, engine, 400, **fields)
    assert found["param"].startswith(param), found
    assert said in found["detail"], found


def test_an_engine_that_is_not_there_cannot_be_asked(client: Client, engine: str) -> None:
    assert "there is no engine" in inspect(client, "nobody", 404)["detail"]


def test_sampling_fields_say_where_their_defaults_come_from(client: Client, engine: str) -> None:
    found = client.get(f"/api/engines/{engine}/sampling").json()
    fields = {field["name"]: field for field in found["fields"]}
    assert fields["temperature"] == {
        "name": "temperature", "value": 0.6, "source": "generation_config", "minimum": 0.0, "maximum": 10.0,
    }  # fmt: skip
    assert (fields["top_p"]["value"], fields["top_p"]["source"]) == (0.9, "generation_config")
    assert (fields["min_p"]["value"], fields["min_p"]["source"]) == (0.0, "engine")
    assert fields["seed"]["value"] is None
    assert found["max_model_len"] == 512


def test_grammars_are_judged_while_they_are_typed(client: Client, engine: str) -> None:
    def judged(kind: str, text: str) -> dict[str, Any]:
        found: dict[str, Any] = client.post(f"/api/engines/{engine}/grammar", json={"kind": kind, "text": text}).json()
        return found

    assert judged("json_schema", '{"type": "object"}')["usable"] is True
    broken = judged("json_schema", '{\n "type": }')
    assert (broken["usable"], broken["line"], broken["column"]) == (False, 2, 10)
    assert broken["message"].startswith("not JSON")
    assert judged("regex", "BAD")["message"] == "BAD"
    assert judged("choice", '["a"')["line"] == 1
    assert client.post(f"/api/engines/{engine}/grammar", json={"kind": "poem", "text": ""}).status_code == 400


def test_an_engines_words_become_a_place() -> None:
    ebnf = verdict("ebnf", "", "guided: ebnf: EBNF parser error at line 2, column 2: Expect element, but got foo")
    assert (ebnf.line, ebnf.column) == (2, 2)
    regex = verdict(
        "regex", "ab\n(a", "guided: regex: Regex parsing error at position 5: The parenthesis is not closed."
    )
    assert (regex.line, regex.column) == (2, 2)
    translated = verdict(
        "regex", "a{2,1}", "guided: regex: EBNF parser error at line 1, column 16: Lower bound is larger"
    )
    assert (translated.line, translated.message) == (None, "Lower bound is larger")
    schema = verdict(
        "json_schema", "{}", "guided: json_schema: at /properties/a/not: the keyword 'not' is not supported"
    )
    assert (schema.path, schema.message) == ("/properties/a/not", "the keyword 'not' is not supported")
    assert json_fault("[1, 2]") is None


def test_special_tokens_of_a_prompt_are_told(client: Client) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "return_token_strs": True}
    found = client.post("/tokenize", json=asked).json()
    assert found["special"]
    assert all(found["token_strs"][place].startswith("<") for place in found["special"])
