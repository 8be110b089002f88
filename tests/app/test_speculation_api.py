"""Speculation over HTTP: what requests may ask, what answers say, what an operator sets, sees and is told."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from db.figures import ACCEPTED_POSITIONS, DRAFTED_POSITIONS
from tests.app.harness import Client, make_home, make_settings, serving

OPEN = "proposer='', num_speculative_tokens=0, rule='', adaptive=True, learn=True"
FIELDS = {
    "proposer", "rule", "num_speculative_tokens", "drafts", "drafted", "accepted", "acceptance_rate",
    "mean_acceptance_length", "accepted_per_position", "drafted_per_position", "draft_ms", "verify_ms",
    "counted_output_tokens",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("speculation")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An engine that was loaded without speculation."""
    with serving(make_settings(make_home(tmp_path_factory.mktemp("plain")))) as client:
        assert client.load(speculation="off")["state"] == "succeeded"
        yield client


def engine_of(client: Client) -> dict[str, Any]:
    engine: dict[str, Any] = client.get("/api/engines").json()["engines"][0]
    return engine


def ask(client: Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"prompt": "DRAFT hi", "max_tokens": 4, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


# ---- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "reaches"),
    [
        (False, f"SpeculationParams(enabled=False, {OPEN})"),
        (True, f"SpeculationParams(enabled=True, {OPEN})"),
        (None, f"SpeculationParams(enabled=True, {OPEN})"),
        (
            {"proposer": "ngram", "num_speculative_tokens": 15, "rule": "rejection", "adaptive": False},
            (
                "SpeculationParams(enabled=True, proposer='ngram', num_speculative_tokens=15, rule='rejection', "
                "adaptive=False, learn=True)"
            ),
        ),
    ],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    ],
)
def test_every_dialect_hands_the_wish_on(
    client: Client, path: str, body: dict[str, Any], wish: object, reaches: str
) -> None:
    response = client.post(path, json={**body, "speculation": wish, "trace": True})
    assert response.status_code == 200, response.text
    assert "x-pizarra-ignored" not in response.headers
    request_id = client.get("/api/requests?limit=1").json()["requests"][0]["id"]
    assert client.logged(f"speculates {request_id} ").endswith(f"{reaches} trace=True")


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("yes", "speculation: must be true, false, or an object with any of proposer"),
        (1, "must be true, false, or an object"),
        ({"proposer": "oracle"}, "proposer 'oracle' is unknown; known are ngram, suffix"),
        ({"proposer": 5}, "proposer must be a text"),
        ({"proposer": "auto"}, "proposer 'auto' is unknown"),
        ({"num_speculative_tokens": 16}, "must lie between 1 and 15"),
        ({"num_speculative_tokens": 0}, "to decode without drafts send speculation: false"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens must be a whole number"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens must be a whole number"),
        ({"rule": "typical"}, "rule 'typical' is unknown; known are match, rejection"),
        ({"adaptive": "no"}, "adaptive must be true or false"),
        ({"k": 3}, "'k' is unknown; known are proposer, num_speculative_tokens, rule, adaptive"),
        ({"proposer": "eagle"}, "speculation.proposer='eagle': tiny was loaded with ngram, suffix"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_what_cannot_be_granted_is_refused_in_words(client: Client, path: str, wish: object, says: str) -> None:
    turns = [{"role": "user", "content": "hi"}]
    body = {"/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}.get(path, {"messages": turns})
    response = client.post(path, json={**body, "max_tokens": 4, "speculation": wish} | _limit(path))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"
    if path != "/v1/messages":
        assert error["param"].startswith("speculation")


def _limit(path: str) -> dict[str, Any]:
    return {"max_tokens": None, "max_output_tokens": 4} if path == "/v1/responses" else {}


def test_a_wish_that_means_nothing_here_is_named(plain: Client) -> None:
    asked = {"prompt": "hi", "max_tokens": 2, "speculation": True, "trace": True}
    response = plain.post("/v1/completions", json=asked)
    assert response.headers["x-pizarra-ignored"] == "speculation"
    told = response.json()["usage"]["speculation"]
    assert (told["proposer"], told["drafts"], told["acceptance_rate"]) == (None, 0, None)
    turns = [{"role": "user", "content": "hi"}]
    chat = plain.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 2, "speculation": {}})
    assert chat.headers["x-pizarra-ignored"] == "speculation"
    off = plain.post("/v1/completions", json=asked | {"speculation": False})
    assert "x-pizarra-ignored" not in off.headers
    refused = plain.post("/v1/completions", json=asked | {"speculation": {"proposer": "ngram"}})
    assert refused.status_code == 400
    assert "tiny was loaded without speculation" in refused.json()["error"]["message"]


# ---- answers --------------------------------------------------------------------------------------------------------


def test_usage_tells_of_drafts_only_where_a_trace_was_asked_for(client: Client) -> None:
    """Four tokens, each with three drafts of which two were right."""
    told = ask(client, trace=True)["usage"]["speculation"]
    assert told.keys() == FIELDS
    assert (told["proposer"], told["rule"]) == ("suffix", "match")
    assert [told[name] for name in ("drafts", "drafted", "accepted")] == [4, 12, 8]
    assert (told["acceptance_rate"], told["mean_acceptance_length"]) == (8 / 12, 3.0)
    assert (told["accepted_per_position"], told["drafted_per_position"]) == ([4, 4, 0], [4, 4, 4])
    assert (told["draft_ms"], told["verify_ms"]) == (pytest.approx(4), pytest.approx(8))
    assert told["counted_output_tokens"] == 4
    assert "speculation" not in ask(client)["usage"]
    named = ask(client, trace=True, speculation={"proposer": "ngram", "rule": "rejection"})["usage"]["speculation"]
    assert (named["proposer"], named["rule"]) == ("ngram", "rejection")
    most = client.get("/api/engines").json()["engines"][0]["speculation"]["num_speculative_tokens"]
    assert (told["num_speculative_tokens"], named["num_speculative_tokens"]) == (most, most)
    for asked, got in ((2, 2), (15, most)):  # more than the engine was loaded for
        less = ask(client, trace=True, speculation={"num_speculative_tokens": asked})["usage"]["speculation"]
        assert less["num_speculative_tokens"] == got
    off = ask(client, trace=True, speculation=False)["usage"]["speculation"]
    assert (off["proposer"], off["drafts"], off["mean_acceptance_length"]) == (None, 0, None)
    assert off["accepted_per_position"] == []


def test_a_grammar_is_matched_whatever_rule_was_asked_for(client: Client) -> None:
    """A grammar cuts drafts by what they are, and `rejection` must not."""
    shaped = {"type": "json_object"}
    wish = {"rule": "rejection"}
    told = ask(client, trace=True, speculation=wish, response_format=shaped)["usage"]["speculation"]
    assert told["rule"] == "match"


def test_several_samples_and_prompts_are_counted_together(client: Client) -> None:
    told = ask(client, trace=True, n=2)["usage"]["speculation"]
    assert (told["drafts"], told["accepted_per_position"]) == (8, [8, 8, 0])
    told = ask(client, trace=True, prompt=["DRAFT a", "DRAFT b", "c"])["usage"]["speculation"]
    assert (told["drafts"], told["counted_output_tokens"]) == (8, 12)


@pytest.mark.parametrize("include_usage", [True, False])
def test_the_last_chunk_of_a_stream_tells_the_same(client: Client, include_usage: bool) -> None:
    body = {"prompt": "DRAFT hi", "max_tokens": 4, "stream": True, "trace": True}
    body["stream_options"] = {"include_usage": include_usage}
    lines = client.post("/v1/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["speculation"]["drafts"] == 4
    assert all(("usage" in chunk) == include_usage for chunk in chunks[:-1])
    assert "spec" not in client.post("/v1/completions", json=body | {"trace": False}).text


def test_the_other_dialects_tell_it_in_their_usage(client: Client) -> None:
    asked = {"input": "DRAFT hi", "max_output_tokens": 4, "trace": True}
    assert client.post("/v1/responses", json=asked).json()["usage"]["speculation"]["drafts"] == 4
    turns = [{"role": "user", "content": "DRAFT hi"}]
    asked = {"messages": turns, "max_tokens": 4, "trace": True}
    assert client.post("/v1/messages", json=asked).json()["usage"]["speculation"]["drafts"] == 4
    events = client.post("/v1/messages", json=asked | {"stream": True}).text
    last = next(line for line in events.splitlines() if '"message_delta"' in line and line.startswith("data"))
    assert json.loads(last.removeprefix("data: "))["usage"]["speculation"]["drafted"] == 12
    assert events.count('"speculation"') == 1


def test_an_embedding_is_drafted_for_by_nobody(client: Client) -> None:
    assert client.post("/v1/embeddings", json={"input": "DRAFT"}).status_code == 200
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert (row["source"], row["proposer"]) == ("embedding", None)


def test_requests_keep_their_figures(client: Client) -> None:
    ask(client)
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert (row["proposer"], row["drafts"], row["drafted"], row["accepted"]) == ("suffix", 4, 12, 8)
    assert (row["accepted_per_position"], row["drafted_per_position"]) == ([4, 4, 0], [4, 4, 4])
    assert (row["draft_s"], row["verify_s"]) == (pytest.approx(0.004), pytest.approx(0.008))
    ask(client, speculation=False)
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert (row["proposer"], row["drafts"], row["accepted_per_position"]) == (None, 0, [])


# ---- traces ---------------------------------------------------------------------------------------------------------


def test_a_traced_request_can_be_read_draft_by_draft(client: Client) -> None:
    answer = ask(client, trace=True)
    request_id = answer["id"].removeprefix("cmpl-")
    found = client.until(
        lambda: (
            body
            if len((body := client.get(f"/api/requests/{request_id}/trace").json()).get("entries", ())) == 4
            else None
        )
    )
    assert client.get(f"/api/requests/{answer['id']}/trace").json() == found
    assert (found["request_id"], found["engine_run_id"], found["dropped"]) == (request_id, engine_of(client)["id"], 0)
    entry = found["entries"][0]
    assert [each["fate"] for each in entry["drafted"]] == ["accepted", "accepted", "rejected"]
    assert entry["drafted"][0].keys() == {"id", "text", "bytes", "special", "unused", "fate", "p", "q"}
    assert (entry["drafted"][0]["p"], entry["drafted"][0]["q"]) == (0.5, 1.0)
    assert entry["next"]["kind"] == "recovered"
    assert entry["next"]["text"] == entry["drafted"][0]["text"] != ""
    assert (entry["proposer"], entry["num_accepted"], entry["draft_ms"], entry["verify_ms"]) == ("suffix", 2, 1, 2)
    positions = [each["position"] for each in found["entries"]]
    assert positions == list(range(positions[0], positions[0] + 4))


def test_a_trace_is_told_while_it_comes(client: Client) -> None:
    with client.live("requests") as socket:
        client.post("/v1/completions", json={"prompt": "DRAFT SLOW", "max_tokens": 3, "trace": True})
        request_id = json.loads(socket.recv(timeout=10))["data"]["id"]
        socket.send(json.dumps({"subscribe": [f"trace:{request_id}"], "since": {f"trace:{request_id}": 0}}))
        while (message := json.loads(socket.recv(timeout=10)))["topic"] != f"trace:{request_id}":
            pass
        assert message["data"]["drafted"][0]["fate"] == "accepted"


def test_a_request_without_a_trace_says_how_to_get_one(client: Client) -> None:
    answer = ask(client)
    response = client.get(f"/api/requests/{answer['id']}/trace")
    assert response.status_code == 404
    assert "trace: true" in response.json()["remedy"]


# ---- what the operator sets and sees --------------------------------------------------------------------------------


def test_an_engine_tells_how_it_speculates(client: Client, plain: Client) -> None:
    ask(client)
    told = client.until(lambda: found if (found := engine_of(client)["speculation"])["gain"] else None)
    assert {name: told[name] for name in ("enabled", "proposer", "num_speculative_tokens", "rule", "gain")} == {
        "enabled": True,
        "proposer": "suffix",
        "num_speculative_tokens": 8,
        "rule": "match",
        "gain": 1.25,
    }
    assert (told["model_hash"], told["drafter_hash"]) == ("aaaa", "bbbb")
    ngram, suffix = told["proposers"]
    assert (ngram["name"], ngram["acceptance_rate"], ngram["state"]) == ("ngram", None, "on")
    rate, length = suffix["accepted"] / suffix["drafted"], 1 + suffix["accepted"] / suffix["drafts"]
    assert (suffix["acceptance_rate"], suffix["mean_acceptance_length"]) == (rate, length) != (0.0, 1.0)
    assert suffix["accepted_per_position"][2] == 0 < suffix["accepted_per_position"][1]
    off = engine_of(plain)["speculation"]
    assert (off["enabled"], off["proposer"], off["proposers"]) == (False, "off", [])


def test_speculation_is_changed_while_the_engine_runs(client: Client) -> None:
    url = f"/api/engines/{engine_of(client)['id']}/speculation"
    changed = client.post(url, json={"enabled": False, "num_speculative_tokens": 3, "rule": "rejection", "clear": True})
    assert changed.status_code == 200, changed.text
    assert client.logged("SetSpeculation(") == (
        "SetSpeculation(enabled=False, num_speculative_tokens=3, rule='rejection', clear=True)"
    )
    found = engine_of(client)["speculation"]
    assert (found["enabled"], found["num_speculative_tokens"], found["rule"]) == (False, 3, "rejection")
    counted = "proposers"  # statistics of what was asked before may come between the two answers
    assert {**changed.json(), counted: []} == {**found, counted: []}
    assert [one["name"] for one in changed.json()[counted]] == [one["name"] for one in found[counted]]
    told = ask(client, trace=True)["usage"]["speculation"]
    assert (told["proposer"], told["rule"], told["drafts"]) == (None, "rejection", 0)
    ignored = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1, "speculation": True})
    assert ignored.headers["x-pizarra-ignored"] == "speculation"
    back = client.post(url, json={"enabled": True, "num_speculative_tokens": 8, "rule": "match"}).json()
    assert (back["enabled"], back["num_speculative_tokens"], back["rule"]) == (True, 8, "match")
    assert ask(client, trace=True)["usage"]["speculation"]["drafts"] == 4


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "nothing is to be changed"),
        ({"num_speculative_tokens": 9}, 400, "tiny was loaded for at most 8"),
        ({"num_speculative_tokens": 0}, 400, "num_speculative_tokens"),
        ({"num_speculative_tokens": 16}, 400, "num_speculative_tokens"),
        ({"rule": "typical"}, 400, "rule"),
        ({"enabled": "no"}, 400, "enabled"),
        ({"proposer": "ngram"}, 422, "unknown field 'proposer'"),
    ],
)
def test_changes_that_cannot_be_made(client: Client, body: dict[str, Any], status: int, says: str) -> None:
    response = client.post(f"/api/engines/{engine_of(client)['id']}/speculation", json=body)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]


def test_what_is_not_there_cannot_be_changed(client: Client, plain: Client) -> None:
    assert client.post("/api/engines/nobody/speculation", json={"enabled": True}).status_code == 404
    response = plain.post(f"/api/engines/{engine_of(plain)['id']}/speculation", json={"enabled": True})
    assert (response.status_code, response.json()["type"]) == (409, "urn:pizarra:no_speculation")


def test_a_proposer_that_goes_off_is_an_event_and_so_is_its_return(client: Client) -> None:
    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get("/api/events?limit=200").json()["events"]
        return [each for each in found if each["kind"] == "speculation"]

    ask(client, prompt="PROPOSER OFF")
    client.until(events)
    ask(client, prompt="PROPOSER ON")
    client.until(lambda: len(events()) == 2)
    on, off = events()
    assert (off["severity"], on["severity"]) == ("warning", "info")
    assert off["message"] == "tiny drafts no longer with suffix: 12 % of its drafts were right"
    assert on["message"] == "tiny drafts with suffix again"
    assert off["data"]["reason"] == "12 % of its drafts were right"
    assert off["engine_run_id"] == engine_of(client)["id"]


def recorded_runs(client: Client) -> list[tuple[str, ...]]:
    path = Path(client.get("/health").json()["home"]) / "pizarra.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as records:
        return records.execute("SELECT model_hash, drafter_hash, speculation FROM engine_runs").fetchall()


def test_runs_are_recorded_with_what_they_drafted_with(client: Client, plain: Client) -> None:
    assert recorded_runs(client) == [("aaaa", "bbbb", "suffix")]
    assert recorded_runs(plain) == [("aaaa", None, "off")]


def sampled(client: Client, name: str) -> dict[str, list[float | None]]:
    """The columns of /api/samples, once one of them has a value other than 0."""

    def columns() -> dict[str, list[float | None]] | None:
        found: dict[str, list[float | None]] = client.get("/api/samples").json()["columns"]
        return found if any(found.get(name, ())) else None

    found: dict[str, list[float | None]] = client.until(columns)
    return found


def test_every_figure_of_speculation_is_sampled(client: Client) -> None:
    sampled(client, "kv_blocks_total")  # a rate is a difference: there has to be a sample from before
    ask(client)
    samples = sampled(client, "drafts_per_s")
    assert set(ACCEPTED_POSITIONS + DRAFTED_POSITIONS) <= samples.keys()
    for name in ("drafted_tokens_per_s", "accepted_tokens_per_s", "accepted_per_position_1_total"):
        assert any(samples[name]), name
    for name in ("draft_s_total", "verify_s_total", "speculation_gain", "drafted_per_position_2_total"):
        assert any(samples[name]), name
    assert any(value == 0 for value in samples["accepted_per_position_2_total"])
