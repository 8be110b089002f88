"""The chalkboard's promise: the steps of a traced request spell its answer, character by character."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import traces
from app.settings import Settings
from tests.app.fake_text import TEXT
from tests.app.harness import Client, make_home, make_settings, serving
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("chalk")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def ask(client: Client, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """An answer and its trace, read at once: nothing has to be waited for."""
    response = client.post("/v1/completions", json={"prompt": "CHALK", "trace": True, "max_tokens": 400, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    found = client.get(f"/api/requests/{answer['id']}/trace")
    assert found.status_code == 200, found.text
    return answer, found.json()


def spelled(trace: dict[str, Any]) -> str:
    return str(trace["dropped_text"]) + "".join(entry["text"] for entry in trace["entries"])


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 50}, {"stop": "STOP"}, {"speculation": False}, {"stop": "e"}])
def test_the_steps_spell_the_answer(client: Client, fields: dict[str, Any]) -> None:
    answer, trace = ask(client, **fields)
    text, usage = answer["choices"][0]["text"], answer["usage"]
    assert trace["text"] == spelled(trace) == text != ""
    assert text == TEXT[: len(text)]
    assert (trace["ended"], trace["finish_reason"]) == (True, answer["choices"][0]["finish_reason"])
    assert (trace["num_prompt_tokens"], trace["num_output_tokens"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    counted = [
        token
        for entry in trace["entries"]
        for token in [*(one for one in entry["drafted"] if one["fate"] == "accepted"), entry["next"]]
        if token is not None and not token["unused"]
    ]
    assert len(counted) == usage["completion_tokens"]
    characters = "".join(token["text"] for token in counted if not token["special"] and token["bytes"] is None)
    assert set(characters) <= set(TEXT)


def test_totals_are_the_usage_and_steps_are_fewer_than_tokens(client: Client) -> None:
    answer, trace = ask(client)
    told, totals = answer["usage"]["speculation"], trace["totals"]
    assert {name: totals[name] for name in ("drafts", "drafted", "accepted")} == {
        name: told[name] for name in ("drafts", "drafted", "accepted")
    }
    assert totals["steps"] == len(trace["entries"]) < answer["usage"]["completion_tokens"]
    kinds = {entry["next"]["kind"] for entry in trace["entries"] if entry["next"]}
    assert kinds == {"plain", "bonus", "recovered"}
    assert {one["fate"] for entry in trace["entries"] for one in entry["drafted"]} == {
        "accepted",
        "rejected",
        "not_judged",
    }
    plain = ask(client, speculation=False)[1]
    assert plain["totals"]["steps"] == answer["usage"]["completion_tokens"]
    assert all(entry["drafted"] == [] and entry["next"]["kind"] == "plain" for entry in plain["entries"])


def test_what_the_ring_drops_is_counted_and_its_text_is_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ask(client)[1]
    monkeypatch.setattr(traces, "MAX_ENTRIES", 5)
    answer, trace = ask(client)
    assert len(trace["entries"]) == 5
    assert trace["dropped"] == whole["totals"]["steps"] - 5
    assert trace["text"] == spelled(trace) == answer["choices"][0]["text"]
    assert len(trace["dropped_text"]) > 10
    assert trace["totals"] == pytest.approx(whole["totals"])


def test_tokens_that_are_no_characters_or_no_text_say_what_they_are(client: Client) -> None:
    trace = ask(client)[1]
    tokens = [entry["next"] for entry in trace["entries"] if entry["next"]]
    tokens += [one for entry in trace["entries"] for one in entry["drafted"]]
    broken = [token for token in tokens if token["bytes"] is not None]
    assert broken, "the emoji and the accents come in pieces"
    assert all(token["text"] == "" and bytes.fromhex(token["bytes"]) for token in broken)
    special = [token for token in tokens if token["special"]]
    assert special
    assert all(token["text"] for token in special)


def test_a_real_engines_steps_spell_its_answers(tmp_path: Path) -> None:
    """A tiny model of random weights in a process of its own; it repeats itself, so that drafts are accepted, too."""
    home = tmp_path / "home"
    tiny_llama_checkpoint(home / "models" / "tiny")
    real = Settings.model_fields["engine_command"].default
    settings = make_settings(home).model_copy(update={"engine_command": real})
    with serving(settings) as client:
        job = client.load(speculation="suffix", dtype="float32")
        assert job["state"] == "succeeded", job["error"]
        for temperature in (0.0, 1.0):
            fields: dict[str, Any] = {"prompt": "red, blue, red, blue, red, blue, red,", "seed": 3, "max_tokens": 48}
            wish = {"adaptive": False, "num_speculative_tokens": 4}
            answer, trace = ask(client, **fields, temperature=temperature, speculation=wish, ignore_eos=True)
            assert trace["text"] == spelled(trace) == answer["choices"][0]["text"]
            told = answer["usage"]["speculation"]
            assert (trace["totals"]["drafted"], trace["totals"]["accepted"]) == (told["drafted"], told["accepted"])
            assert told["drafted"] > 0
            assert any(not entry["drafted"] for entry in trace["entries"]), "the prompt's own step is plain"
