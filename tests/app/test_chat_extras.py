"""Folders, attached texts, token counts, going on with an answer, and presets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.fake_text import MAX_MODEL_LEN, TEXT
from tests.app.harness import Client, make_home, make_settings, serving
from tests.app.test_conversations_api import create, finished, generate


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("chats")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def test_a_folder_is_where_chats_are_put(client: Client) -> None:
    conversation = create(client, title="one", folder="work")
    path = f"/api/conversations/{conversation['id']}"
    assert client.get(path).json()["folder"] == "work"
    moved = client.patch(path, json={"version": conversation["version"], "folder": ""}).json()
    assert (moved["folder"], moved["title"]) == ("", "one")
    listed = client.get("/api/conversations").json()["conversations"]
    assert next(each for each in listed if each["id"] == conversation["id"])["folder"] == ""
    stale = client.patch(path, json={"version": conversation["version"], "folder": "x"})
    assert stale.status_code == 409


def count(client: Client, **body: Any) -> dict[str, Any]:
    response = client.post("/api/conversations/count", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_attached_texts_are_in_the_prompt_and_counted(client: Client) -> None:
    attachments = [{"name": "notes.txt", "text": "ananas banana"}]
    conversation = create(client)
    before = count(client, conversation_id=conversation["id"], content="What is it?")
    told = count(client, conversation_id=conversation["id"], content="What is it?", attachments=attachments)
    assert told["attachment_tokens"][0] > 3
    assert told["num_tokens"] >= before["num_tokens"] + told["attachment_tokens"][0]
    assert told["room"] == MAX_MODEL_LEN - told["num_tokens"]
    generate(client, conversation, "What is it?", attachments=attachments)
    user, answer = finished(client, conversation)["messages"]
    assert (user["content"], user["attachments"]) == ("What is it?", attachments)
    assert answer["stats"]["num_prompt_tokens"] == told["num_tokens"]
    prompt = client.post("/tokenize", json={"prompt": "notes.txt:\n```\nananas banana\n```\n\nWhat is it?"}).json()
    assert answer["stats"]["num_prompt_tokens"] >= prompt["count"]
    for wrong in ([{"name": "", "text": "x"}], [{"name": "a", "text": ""}], [{"name": "a", "text": "x"}] * 21):
        body = {"version": 9, "content": "x", "attachments": wrong}
        refused = client.post(f"/api/conversations/{conversation['id']}/generate", json=body)
        assert refused.status_code == 400
        assert "attachments" in refused.json()["detail"]


def test_what_is_counted_is_what_is_sent(client: Client) -> None:
    conversation = create(client, system_prompt="Be kind.")
    told = count(client, conversation_id=conversation["id"], content="One?")
    generate(client, conversation, "One?")
    whole = finished(client, conversation)
    question, answer = whole["messages"]
    assert answer["stats"]["num_prompt_tokens"] == told["num_tokens"]
    again = count(client, conversation_id=conversation["id"], parent_id=question["id"], content="One?")
    assert again["num_tokens"] == told["num_tokens"], "a question that is written anew stands in for the old one"
    bare = count(client, content="One?", system_prompt="")
    assert bare["num_tokens"] < told["num_tokens"]
    unknown = client.post("/api/conversations/count", json={"conversation_id": "none", "content": ""})
    assert unknown.status_code == 404


def test_an_answer_is_gone_on_with_as_a_new_version(client: Client) -> None:
    conversation = create(client)
    generate(client, conversation, "SLOW ENDLESS")
    path = f"/api/conversations/{conversation['id']}"
    client.until(lambda: len(client.get(path).json()["messages"][-1]["content"]) > 5)
    client.post(f"{path}/stop")
    whole = finished(client, conversation)
    question, first = whole["messages"]
    assert first["state"] == "interrupted"
    started = generate(client, whole, None, parent_id=first["id"])["assistant_message"]
    assert (started["parent_id"], started["content"]) == (question["id"], first["content"])
    client.until(lambda: len(client.get(path).json()["messages"][-1]["content"]) > len(first["content"]) + 5)
    client.post(f"{path}/stop")
    _, kept, second = finished(client, conversation)["messages"]
    assert kept == first
    assert second["content"].startswith(first["content"])
    assert second["stats"]["continues"] == first["id"]
    assert second["stats"]["num_prompt_tokens"] > first["stats"]["num_prompt_tokens"]


def test_an_answer_without_text_cannot_be_gone_on_with(client: Client) -> None:
    conversation = create(client)
    generate(client, conversation, "FAIL")
    whole = finished(client, conversation)
    body = {"version": whole["version"], "content": None, "parent_id": whole["messages"][-1]["id"]}
    refused = client.post(f"/api/conversations/{conversation['id']}/generate", json=body)
    assert refused.status_code == 400
    assert "no text to go on from" in refused.json()["detail"]


def test_answers_keep_what_the_request_says_of_cache_and_drafts(client: Client) -> None:
    conversation = create(client)
    generate(client, conversation, "Hello?")
    stats = finished(client, conversation)["messages"][-1]["stats"]
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    for name in ("num_cached_tokens", "drafts", "drafted", "accepted", "ttft_s", "e2e_s"):
        assert stats[name] == row[name]
    assert TEXT  # what the fake engine says


def test_presets_are_kept_and_built_in_ones_stay(client: Client) -> None:
    found = client.get("/api/presets").json()["presets"]
    assert [each["id"] for each in found if each["built_in"]] == ["builtin-default", "builtin-exact", "builtin-lively"]
    mine = {"name": "Pirate", "system_prompt": "Arr.", "sampling": {"temperature": 0.3}}
    made = client.post("/api/presets", json=mine)
    assert made.status_code == 201
    assert client.post("/api/presets", json=mine).status_code == 409
    path = f"/api/presets/{made.json()['id']}"
    changed = client.put(path, json={**mine, "name": "Captain"}).json()
    assert (changed["name"], changed["sampling"], changed["built_in"]) == ("Captain", {"temperature": 0.3}, False)
    assert client.put("/api/presets/none", json=mine).status_code == 404
    refused = client.put("/api/presets/builtin-exact", json=mine)
    assert (refused.status_code, "comes with Pizarra" in refused.json()["detail"]) == (409, True)
    assert client.delete("/api/presets/builtin-exact").status_code == 409
    assert client.delete(path).status_code == 204
    assert client.get("/api/presets").json()["presets"] == found
    assert client.post("/api/presets", json={**mine, "sampling": {"top_p": 2}}).status_code == 400
