"""/api/requests over a real server: the list and its filters, everything of one, kept texts, what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.request_upkeep import RequestUpkeep
from db.rows import RequestRow
from db.store import Store
from tests.app.harness import MODEL, Client, make_home, make_settings, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("requests")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


def complete(client: Client, prompt: str = "hi", **fields: Any) -> dict[str, Any]:
    """A completion's end in full, as /api/requests tells it."""
    client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 5, **fields})
    newest = listed(client, limit=1)[0]["id"]
    found: dict[str, Any] = client.get(f"/api/requests/{newest}").json()
    return found


def listed(client: Client, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/requests", params=query).json()["requests"]
    return found


def setting(client: Client, **values: Any) -> httpx.Response:
    return client.put("/api/settings", json={"settings": values})


def test_a_course_on_one_clock_and_what_slowed_it_down(client: Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "QUEUED DRAFT " + "x" * 200, "max_tokens": 20}).json()
    found = client.get(f"/api/requests/{answer['id']}").json()
    course = found["timeline"]
    assert (course["clock"], found["running"], found["stop_cause"], found["slow"]) == (
        "engine", False, "max_tokens", True,
    )  # fmt: skip
    offset = course["queued_s"]
    assert 0 <= offset < 0.4
    marks = [course[name] for name in ("queued_s", "scheduled_s", "first_token_s", "last_token_s", "end_s")]
    assert marks == sorted(marks)
    assert course["scheduled_s"] == pytest.approx(offset + 0.5)
    assert course["first_token_s"] == pytest.approx(offset + 1.3)
    assert [chunk["done"] for chunk in course["chunks"]][-1] == found["num_prompt_tokens"]
    assert course["chunks"][0]["start_s"] == pytest.approx(course["scheduled_s"])
    assert course["wait"] == {
        "num_ahead": 2, "num_running": 7, "held_s": 0, "blocks_s": 0.5, "slots_s": 0, "budget_s": 0,
    }  # fmt: skip
    assert course["decode"]["others_mean"] == 7
    ends = [0.0, *(phase["end_s"] for phase in course["phases"])]
    assert [phase["start_s"] for phase in course["phases"]] == ends[:-1], "without gaps"
    assert ends[-1] == course["end_s"]
    assert [phase["name"] for phase in course["phases"]].count("preempted") == 1
    reasons = {reason["code"]: reason for reason in found["why_slow"]}
    assert reasons["waited_blocks"]["seconds"] == 0.5
    assert reasons["waited_blocks"]["numbers"] == {"ahead": 2, "running": 7}
    assert reasons["prefill"]["numbers"]["tokens"] == found["num_prompt_tokens"]
    assert course["last_progress"]["state"] == "prefill"


def test_progress_of_a_prompt_is_told_live(client: Client) -> None:
    with client.live("requests") as feed:
        client.post("/v1/completions", json={"prompt": "QUEUED " + "y" * 99, "max_tokens": 3})
        told: list[dict[str, Any]] = []
        while not told or told[-1]["finished_at"] is None:
            message = json.loads(feed.recv(timeout=10))
            told.append(message["data"])
    progress = [row["progress"] for row in told if row["progress"]]
    assert progress[0] | {"request_id": ""} == {
        "request_id": "", "state": "waiting", "done": 0, "total": told[0]["num_prompt_tokens"], "cached": 0,
        "ahead": 2, "cause": "blocks",
    }  # fmt: skip
    assert [each["state"] for each in progress[1:]] == ["prefill"] * (len(progress) - 1) != []
    assert [row["state"] for row in told][-2:] == ["running", "finished"]
    assert told[-1]["progress"] is None


@pytest.mark.parametrize(
    ("prompt", "fields", "cause"),
    [
        ("hi", {"max_tokens": 200}, "end_token"),
        ("hi", {}, "max_tokens"),
        ("hi", {"max_tokens": 200, "stop": "brown"}, "stop_string"),
        ("FAIL", {}, "engine_error"),
    ],
)
def test_why_it_ended(client: Client, prompt: str, fields: dict[str, Any], cause: str) -> None:
    assert complete(client, prompt, **fields)["stop_cause"] == cause


def test_running_ones_are_listed_and_cancelled(client: Client) -> None:
    body = {"prompt": "SLOW ENDLESS", "max_tokens": 400, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        (row,) = listed(client, state="running")
        assert listed(client, state="queued") == []
        detail = client.get(f"/api/requests/{row['id']}").json()
        assert (detail["running"], detail["timeline"]["clock"]) == (True, "server")
        assert detail["timeline"]["phases"][-1]["name"] == "decode"
        assert client.post(f"/api/requests/{row['id']}/cancel").status_code == 202
        assert [line for line in lines if line][-1] == "data: [DONE]", "the stream ends by itself"
    ended = client.until(lambda: _ended(client, row["id"]))
    assert (ended["finish_reason"], ended["stop_cause"]) == ("abort", "cancelled")
    assert listed(client, state="running") == []


def _ended(client: Client, request_id: str, clock: str = "") -> dict[str, Any] | None:
    found: dict[str, Any] = client.get(f"/api/requests/{request_id}").json()
    return found if found["finished_at"] and clock in found["timeline"]["clock"] else None


def test_what_the_engine_sums_up_after_the_client_has_gone_is_kept(client: Client) -> None:
    body = {"prompt": "QUEUED SLOW ENDLESS", "max_tokens": 400, "stream": True}
    with client.stream("POST", "/v1/completions", json=body):
        row = client.until(lambda: listed(client, state="queued"))[0]
        time.sleep(0.3)  # so long it waits for blocks
    gone = client.until(lambda: _ended(client, row["id"], clock="engine"))
    assert (gone["stop_cause"], gone["num_output_tokens"]) == ("client_gone", 0)
    assert [phase["name"] for phase in gone["timeline"]["phases"]][-1] == "queue"
    assert [reason["code"] for reason in gone["why_slow"]] == ["waited_blocks"]
    assert gone["why_slow"][0]["numbers"] == {"ahead": 2}


def test_the_list_is_filtered(client: Client) -> None:
    before = time.time()
    failed = complete(client, "FAIL")
    client.post("/v1/embeddings", json={"input": "hi"})
    assert [row["id"] for row in listed(client, state="failed", limit=1)] == [failed["id"]]
    assert {row["source"] for row in listed(client, source="embedding")} == {"embedding"}
    assert [row["id"] for row in listed(client, since=before, until=time.time(), source="completion")] == [failed["id"]]
    assert [row["id"] for row in listed(client, id=f"cmpl-{failed['id'][:9]}")] == [failed["id"]]
    assert listed(client, model="nobody") == []
    assert {row["slow"] for row in listed(client, slow=True)} == {True}
    page = client.get("/api/requests", params={"limit": 1}).json()
    older = client.get("/api/requests", params={"limit": 1, "before": page["next_before"]}).json()
    assert older["requests"][0]["id"] == failed["id"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"id": "héllo"}, "ids are made of the digits"),
        ({"state": "sleeping"}, "state"),
        ({"since": 5, "until": 4}, "since=5 lies behind until=4"),
        ({"since": "nan"}, "since"),
        ({"limit": 0}, "limit"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(client: Client, query: dict[str, Any], says: str) -> None:
    response = client.get("/api/requests", params=query)
    assert response.status_code == 400
    assert says in response.json()["detail"]


def test_unknown_requests_and_settings_that_cannot_be(client: Client) -> None:
    assert client.get("/api/requests/cafe").status_code == 404
    assert client.delete("/api/requests/cafe/body").status_code == 404
    for values in ({"store_bodies": 1}, {"requests_retention_days": 0}, {"slow_ttft_s": "fast"}):
        response = setting(client, **values)
        assert response.status_code == 400, values
        assert next(iter(values)) in response.json()["detail"]


def test_texts_are_kept_only_while_the_operator_wants_it(client: Client) -> None:
    assert complete(client, "secret")["body"] is None
    assert setting(client, store_bodies=True).status_code == 200
    try:
        kept = complete(client, "my prompt", seed=7, stop=["nothing"], temperature=0.5)
        body = kept["body"]
        assert (body["prompt"], body["messages"], body["truncated"]) == ("my prompt", None, False)
        assert [body["answers"][0][:5], len(body["answers"])] == ["The q", 1]
        assert body["sampling"] == {"temperature": 0.5, "max_tokens": 5, "seed": "7", "stop": ["nothing"]}
        client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 2, "n": 2})
        two = client.get(f"/api/requests/{listed(client, limit=1)[0]['id']}").json()["body"]
        assert len(two["answers"]) == 2
        assert two["prompt"]
        assert client.delete(f"/api/requests/{kept['id']}/body").status_code == 204
        assert client.get(f"/api/requests/{kept['id']}").json()["body"] is None
        assert client.delete("/api/requests/bodies").json() == {"deleted": 1}
        long = complete(client, "z" * 400, max_tokens=3)
        assert long["body"]["prompt"] == "z" * 400
    finally:
        setting(client, store_bodies=False)
    assert complete(client, "secret again")["body"] is None
    assert client.delete("/api/requests/bodies").json() == {"deleted": 1}


async def test_old_requests_go_in_batches_until_none_are_left(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from app import request_upkeep
    from app.request_settings import RequestSettings

    monkeypatch.setattr(request_upkeep, "BATCH", 2)
    store = Store(tmp_path / "pizarra.db")
    for index in range(7):
        store.save_request(RequestRow(f"q{index}", MODEL, "chat", "finished", created_at=86400.0 * index))
    store.set_settings({"requests_retention_days": 3}).result()
    settings = RequestSettings(store.get_settings)
    upkeep = RequestUpkeep(store, settings, clock=lambda: 86400.0 * 8.5, pause_s=0)
    assert await upkeep.prune() == 6
    assert [row.id for row in store.list_requests().rows] == ["q6"]
    store.close()
