"""Conversations: the server owns the answer, the browser may come and go, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from db.store import Store
from tests.app.fake_text import TEXT
from tests.app.harness import MODEL, Client, make_home, make_settings, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("chats")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def create(client: Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/api/conversations", json=fields)
    assert response.status_code == 201
    created: dict[str, Any] = response.json()
    return created


def generate(client: Client, conversation: dict[str, Any], content: str | None, **fields: Any) -> dict[str, Any]:
    body = {"version": conversation["version"], "content": content, **fields}
    response = client.post(f"/api/conversations/{conversation['id']}/generate", json=body)
    assert response.status_code == 202, response.text
    started: dict[str, Any] = response.json()
    return started


def get(client: Client, conversation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/conversations/{conversation['id']}").json()
    return found


def finished(client: Client, conversation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.until(lambda: c if not (c := get(client, conversation))["generating"] else None)
    return found


def test_an_answer_is_written_titled_and_measured(client: Client) -> None:
    conversation = create(client, system_prompt="Be kind.", sampling={"temperature": 0.5, "seed": 5})
    started = generate(client, conversation, "  What is\n a pizarra? " + "x" * 100)
    assert started["user_message"]["parent_id"] is None
    assert started["assistant_message"]["parent_id"] == started["user_message"]["id"]
    assert started["assistant_message"]["state"] == "streaming"
    assert started["conversation"]["generating"] is True
    whole = finished(client, conversation)
    user, answer = whole["messages"]
    assert whole["title"].startswith("What is a pizarra? xx")
    assert len(whole["title"]) <= 60
    assert whole["active_leaf_id"] == answer["id"]
    assert (answer["content"], answer["state"], answer["finish_reason"]) == (TEXT, "complete", "stop")
    assert answer["model_id"] == MODEL
    assert answer["stats"]["num_output_tokens"] > 10
    assert answer["stats"]["seed"] == 5
    assert answer["stats"]["tokens_per_s"] > 0
    client.logged("temperature=0.5")
    row = client.get("/api/requests?limit=1").json()["requests"][0]
    assert (row["id"], row["source"]) == (answer["request_id"], "conversation")
    found = client.get("/api/conversations", params={"q": "brown fox"}).json()["conversations"]
    assert conversation["id"] in [each["id"] for each in found]
    assert user["content"].startswith("  What is")


def test_an_answers_steps_are_kept_only_where_the_chat_wishes_it(client: Client) -> None:
    for sampling, kept in (({}, False), ({"trace": True}, True)):
        conversation = create(client, sampling=sampling)
        assert conversation["sampling"].get("trace", False) is kept
        generate(client, conversation, "Say it.")
        answer = finished(client, conversation)["messages"][1]
        trace = client.get(f"/api/requests/{answer['request_id']}/trace")
        assert trace.status_code == (200 if kept else 404)
        assert client.get(f"/api/requests/{answer['request_id']}").json()["trace"] is kept


def test_deltas_on_the_live_topic_add_up_and_replay(client: Client) -> None:
    conversation = create(client)
    topic = f"conversation:{conversation['id']}"
    with client.live(topic) as socket:
        generate(client, conversation, "SLOW")
        text, first_seq = "", None
        while True:
            message = json.loads(socket.recv(timeout=30))
            data = message["data"]
            if data["type"] == "message.delta":
                first_seq = first_seq or message["seq"]
                assert data["offset"] == len(text)
                text += data["text"]
                assert get(client, conversation)["messages"][-1]["content"].startswith(text)
            if data["type"] == "message.done":
                break
    assert text == TEXT == data["message"]["content"]
    assert first_seq is not None
    with client.live(topic, since={topic: first_seq}) as socket:
        again = json.loads(socket.recv(timeout=30))
        assert again["seq"] == first_seq + 1
        assert again["data"]["offset"] == 1


def test_whoever_reads_a_conversation_and_follows_it_from_there_misses_nothing(client: Client) -> None:
    """Read while the answer is written; followed only after its end."""
    conversation = create(client)
    topic = f"conversation:{conversation['id']}"
    assert get(client, conversation)["live_seq"] == conversation["live_seq"], "nothing has been said"
    generate(client, conversation, "SLOW ENDLESS")
    read = client.until(lambda: c if len((c := get(client, conversation))["messages"][-1]["content"]) > 3 else None)
    client.post(f"/api/conversations/{conversation['id']}/stop")
    whole = finished(client, conversation)
    text, done = read["messages"][-1]["content"], None
    with client.live(topic, since={topic: read["live_seq"]}) as socket:
        while done is None:
            message = json.loads(socket.recv(timeout=30))
            assert "gap" not in message
            data = message["data"]
            if data["type"] == "message.delta":
                assert data["offset"] == len(text)
                text += data["text"]
            done = data.get("message")
    assert text == done["content"] == whole["messages"][-1]["content"]
    assert get(client, conversation)["live_seq"] >= message["seq"], "what was followed counts as told"


def test_stop_keeps_the_text_and_stops_the_engine(client: Client) -> None:
    conversation = create(client)
    started = generate(client, conversation, "SLOW ENDLESS")
    client.until(lambda: len(get(client, conversation)["messages"][-1]["content"]) > 3)
    assert client.post(f"/api/conversations/{conversation['id']}/stop").status_code == 202
    answer = finished(client, conversation)["messages"][-1]
    assert (answer["state"], answer["finish_reason"]) == ("interrupted", "abort")
    assert TEXT.startswith(answer["content"])
    client.logged(f"aborted {started['assistant_message']['request_id']}")
    assert client.post(f"/api/conversations/{conversation['id']}/stop").status_code == 202


def test_text_is_on_disk_while_it_is_written(client: Client, tmp_path_factory: pytest.TempPathFactory) -> None:
    conversation = create(client)
    started = generate(client, conversation, "SLOW ENDLESS")
    home = client.get("/health").json()["home"]
    store = _open_for_reading(Path(home))

    def on_disk() -> str:
        message = store.get_message(started["assistant_message"]["id"])
        assert message is not None
        return message.content

    first = client.until(on_disk)
    client.until(lambda: len(on_disk()) > len(first))
    assert get(client, conversation)["generating"]
    client.post(f"/api/conversations/{conversation['id']}/stop")
    finished(client, conversation)


def _open_for_reading(home: Path) -> Store:
    """A store over the same file that does not close what the running server has open."""
    store = object.__new__(Store)
    store.path = home / "pizarra.db"
    from db.connect import open_engine

    store._read_engine = open_engine(store.path, writes=False)
    return store


def test_regenerate_and_edit_make_branches(client: Client) -> None:
    conversation = create(client)
    started = generate(client, conversation, "first")
    whole = finished(client, conversation)
    user_id = started["user_message"]["id"]
    again = generate(client, whole, None, parent_id=user_id)
    assert again["user_message"] is None
    assert again["assistant_message"]["parent_id"] == user_id
    whole = finished(client, conversation)
    edited = generate(client, whole, "second", parent_id=None)
    assert edited["user_message"]["parent_id"] is None
    whole = finished(client, conversation)
    assert len(whole["messages"]) == 5
    follow_up = generate(client, whole, "and then?")
    assert follow_up["user_message"]["parent_id"] == edited["assistant_message"]["id"]
    prompt = finished(client, conversation)["messages"][-1]["stats"]["num_prompt_tokens"]
    assert prompt > 50


def test_conflicts(client: Client) -> None:
    conversation = create(client)
    started = generate(client, conversation, "SLOW")
    url = f"/api/conversations/{conversation['id']}"
    busy = client.post(f"{url}/generate", json={"version": started["conversation"]["version"], "content": "more"})
    assert busy.status_code == 409
    assert "already" in busy.json()["detail"]
    finished(client, conversation)
    stale = client.post(f"{url}/generate", json={"version": conversation["version"], "content": "more"})
    assert stale.status_code == 409
    assert stale.json()["param"] == "version"
    assert client.patch(url, json={"version": 0, "title": "x"}).status_code == 409
    version = get(client, conversation)["version"]
    renamed = client.patch(url, json={"version": version, "title": "Mine", "system_prompt": "s"}).json()
    assert (renamed["title"], renamed["system_prompt"], renamed["version"]) == ("Mine", "s", version + 1)
    assert len(renamed["messages"]) == 2


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"content": "x"}, 400, "version"),
        ({"version": "1", "content": "x"}, 400, "version"),
        ({"version": 1, "content": ""}, 400, "content"),
        ({"version": 1, "content": None}, 400, "parent_id must name the question"),
        ({"version": 1, "content": "x", "parent_id": "nope"}, 404, "not in this conversation"),
        ({"version": 1, "content": "x", "zzz": 1}, 422, "zzz"),
        ({"version": 1, "content": "x", "model_id": "gone"}, 409, "loaded: tiny"),
        ({"version": 1, "content": "word " * 500}, 400, "context too long"),
        ({"version": 1, "content": "\ud800"}, 400, "surrogate"),
    ],
)
def test_bad_generates(client: Client, body: dict[str, Any], status: int, says: str) -> None:
    conversation = create(client)
    content = json.dumps(body).encode()
    url = f"/api/conversations/{conversation['id']}/generate"
    response = client.post(url, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]
    assert get(client, conversation)["messages"] == []


def test_an_engine_that_dies_leaves_the_text_and_says_so(client: Client) -> None:
    conversation = create(client)
    generate(client, conversation, "CRASH")
    answer = finished(client, conversation)["messages"][-1]
    assert (answer["content"], answer["state"]) == ("The ", "failed")  # three tokens
    assert "SIGKILL" in answer["error"]
    none = client.post(
        f"/api/conversations/{conversation['id']}/generate",
        json={"version": get(client, conversation)["version"], "content": "hello?"},
    )
    assert none.status_code == 409
    assert "Load" in none.json()["remedy"]
    client.load()


def test_delete_while_writing(client: Client) -> None:
    conversation = create(client)
    started = generate(client, conversation, "SLOW ENDLESS")
    assert client.delete(f"/api/conversations/{conversation['id']}").status_code == 204
    assert client.get(f"/api/conversations/{conversation['id']}").status_code == 404
    client.until(lambda: f"aborted {started['assistant_message']['request_id']}" in client.engine_log())


def test_a_stopping_server_keeps_the_text(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    with serving(make_settings(home, model=MODEL)) as client:
        client.until(lambda: client.get("/ready").json()["ready"])
        conversation = create(client)
        generate(client, conversation, "SLOW ENDLESS")
        client.until(lambda: len(get(client, conversation)["messages"][-1]["content"]) > 3)
    with serving(make_settings(home)) as client:
        answer = get(client, conversation)["messages"][-1]
        assert answer["state"] == "interrupted"
        assert len(answer["content"]) > 3
        assert TEXT.startswith(answer["content"][:40])
        assert client.get("/api/engines").json()["engines"] == []
