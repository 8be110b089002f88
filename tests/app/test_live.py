"""The live feed: order, replay, gaps, slow readers; and the header and jobs that travel on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from app.live import CLIENT_QUEUE_LENGTH, RING_LENGTH, LiveHub, SlowClient
from tests.app.harness import Client, make_home, make_settings, serving


async def received(client: Any, count: int) -> list[dict[str, Any]]:
    return [json.loads(await client.next()) for _ in range(count)]


async def test_topics_are_ordered_and_separate() -> None:
    hub = LiveHub()
    client = hub.connect()
    client.subscribe(["jobs"], {})
    for n in range(3):
        hub.publish("jobs", {"n": n})
        hub.publish("events", {"n": n})
    messages = await received(client, 3)
    assert [message["data"]["n"] for message in messages] == [0, 1, 2]
    seqs = [message["seq"] for message in messages]
    assert seqs == [seqs[0], seqs[0] + 1, seqs[0] + 2]
    client.unsubscribe(["jobs"])
    hub.publish("jobs", {"n": 9})
    client.subscribe(["jobs"], {"jobs": seqs[1]})
    assert [message["data"]["n"] for message in await received(client, 2)] == [2, 9]


async def test_a_hole_is_told() -> None:
    hub = LiveHub()
    for n in range(RING_LENGTH + 10):
        hub.publish("samples", {"n": n})
    client = hub.connect()
    client.subscribe(["samples"], {"samples": 1})
    messages = await received(client, RING_LENGTH)
    assert messages[0]["gap"] is True
    assert messages[0]["data"]["n"] == 10
    assert not any("gap" in message for message in messages[1:])


async def test_a_number_of_another_run_is_a_hole() -> None:
    hub = LiveHub()
    hub.publish("jobs", {})
    client = hub.connect()
    client.subscribe(["jobs"], {"jobs": 10**15})
    assert (await received(client, 1))[0]["gap"] is True


async def test_a_hole_is_told_even_when_no_message_is_left_to_tell_it() -> None:
    """The topic was forgotten, as after a restart: whoever followed it need not wait for its next message."""
    hub = LiveHub()
    client = hub.connect()
    client.subscribe(["conversation:1"], {"conversation:1": 5})
    (told,) = await received(client, 1)
    assert (told["gap"], told["data"]) == (True, None)
    hub.publish("conversation:1", {"n": 1})
    (message,) = await received(client, 1)
    assert message["seq"] == told["seq"] + 1
    assert "gap" not in message


async def test_what_follows_a_position_is_heard_and_nothing_else() -> None:
    hub, topic = LiveHub(), "conversation:1"
    positions = [hub.position(topic)]
    for n in range(2):
        hub.publish(topic, {"n": n})
        positions.append(hub.position(topic))
    clients = [hub.connect() for _ in positions]
    for client, since in zip(clients, positions, strict=True):
        client.subscribe([topic], {topic: since})
    hub.publish(topic, {"n": 2})
    for client, expected in zip(clients, ([0, 1, 2], [1, 2], [2]), strict=True):
        messages = await received(client, len(expected))
        assert [message["data"]["n"] for message in messages] == expected
        assert not any("gap" in message for message in messages)


async def test_a_state_topic_is_sent_at_once() -> None:
    hub = LiveHub()
    hub.publish("header", {"n": 1})
    hub.publish("header", {"n": 2})
    hub.publish("jobs", {"n": 3})
    client = hub.connect()
    client.subscribe(["jobs", "header"], {})
    assert (await received(client, 1))[0]["data"] == {"n": 2}


async def test_a_slow_client_holds_up_nobody() -> None:
    hub = LiveHub()
    slow, quick = hub.connect(), hub.connect()
    slow.subscribe(["jobs"], {})
    quick.subscribe(["jobs"], {})
    for n in range(CLIENT_QUEUE_LENGTH + 1):
        hub.publish("jobs", {"n": n})
        assert json.loads(await quick.next())["data"]["n"] == n
    with pytest.raises(SlowClient):
        await slow.next()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("live")))) as client:
        yield client


def test_header_jobs_samples_and_events_of_a_load(client: Client) -> None:
    seen: dict[str, list[dict[str, Any]]] = {"header": [], "jobs": [], "samples": [], "events": [], "requests": []}
    with client.live(*seen) as socket:
        assert json.loads(socket.recv(timeout=30))["data"]["state"] == "no_model"
        client.load()
        client.post("/v1/completions", json={"prompt": "hi"})
        while not (
            seen["samples"] and seen["events"] and seen["requests"] and seen["header"][-1]["state"] == "ready"
            and seen["header"][-1]["engines"][0]["generation_tokens_per_s"] is not None
        ):  # fmt: skip
            message = json.loads(socket.recv(timeout=30))
            seen[message["topic"]].append(message["data"])
    states = [header["state"] for header in seen["header"]]
    assert "loading" in states
    header = seen["header"][-1]
    assert header["engines"][0]["ttft_p95_s"] > 0
    assert header["engines"][0]["kv_blocks_total"] == 100
    assert sum(part["bytes"] for part in header["memory"]["parts"]) == pytest.approx(
        header["memory"]["total_bytes"], rel=0.05
    )
    assert header["gpu"]["available"] or header["gpu"]["reason"]
    assert seen["jobs"][-1]["state"] == "succeeded"
    assert {job["stage"] for job in seen["jobs"]} >= {"check", "weights"}
    assert seen["events"][0]["kind"] == "load"
    assert [row["state"] for row in seen["requests"]][-1] == "finished"
    columns = client.get("/api/samples", params={"step_s": 1}).json()["columns"]
    assert any(value is not None for value in columns["host_memory_used_bytes"])


@pytest.mark.parametrize("text", ["{", "[]", '{"subscribe": "header"}', '{"zzz": 1}', b"\x00\xff"])
def test_what_is_not_understood_closes_with_the_reason(client: Client, text: str | bytes) -> None:
    with connect(str(client.base_url).replace("http", "ws") + "/api/live", proxy=None) as socket:
        socket.send(text)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert "not understood" in closed.value.rcvd.reason


def test_a_closed_tab_harms_nothing(client: Client) -> None:
    for _ in range(5):
        with client.live("header"):
            pass
    assert client.get("/health").status_code == 200
