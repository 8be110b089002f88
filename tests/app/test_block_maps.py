"""Block maps over HTTP and the live topic: changes add up to the whole, the past comes back, prompts are judged."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.block_history import BlockHistory
from app.block_state import BlockState, OutOfOrder, OwnerNumbers
from app.block_view import counts
from app.live import LiveHub
from engine.core.block_map import BlockWatch
from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.engine.test_block_map import Life, scheduler

BEGINNING = "SLOW ENDLESS " + "abc " * 20  # 73 tokens of the tiny model


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("blocks")))) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture
def engine(client: Client) -> str:
    client.until(lambda: not client.get("/api/requests?limit=50").text.count('"running"'))
    engine_id: str = client.get("/api/engines").json()["engines"][0]["id"]
    return engine_id


@contextmanager
def answering(client: Client, *prompts: tuple[str, bool]) -> Iterator[None]:
    """These prompts are being answered meanwhile, one begun after the other. True: with drafts that are never right."""
    stop = threading.Event()

    def ask(prompt: str, drafts: bool) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 400, "stream": True}
        body |= {"speculation": {"adaptive": False}} if drafts else {}
        with (
            Client(base_url=client.base_url, timeout=30, trust_env=False) as own,
            own.stream("POST", "/v1/completions", json=body) as response,
        ):
            for _ in response.iter_lines():
                if stop.is_set():
                    break

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in prompts]
    engine_id = client.get("/api/engines").json()["engines"][-1]["id"]
    for number, thread in enumerate(threads, 1):
        thread.start()
        client.until(lambda number=number: len(computed(client, engine_id)) == number)  # in order, and past the prompt
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


def computed(client: Client, engine: str) -> list[dict[str, Any]]:
    """Who holds blocks and has computed its prompt."""
    owners = client.get(f"/api/engines/{engine}/blocks").json()["owners"]
    return [owner for owner in owners if owner["num_computed_tokens"] >= owner["num_prompt_tokens"]]


def laid_over(cells: dict[int, tuple[int, int]], runs: list[int]) -> dict[int, tuple[int, int]]:
    for at in range(0, len(runs), 4):
        first, count, code, owner = runs[at : at + 4]
        cells |= dict.fromkeys(range(first, first + count), (code, owner))
    return cells


def newest(client: Client, engine: str, **asked: Any) -> dict[str, Any]:
    response = client.get(f"/api/engines/{engine}/blocks", params=asked)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_changes_laid_over_the_first_view_are_the_newest(client: Client, engine: str) -> None:
    with answering(client, (BEGINNING, False), (BEGINNING + "x", True)), client.live(f"blocks:{engine}") as socket:
        cells: dict[int, tuple[int, int]] = {}
        views = {}
        for number in range(5):
            view = json.loads(socket.recv(timeout=10))["data"]
            assert view["kind"] == ("full" if number == 0 else "change")
            assert view["after"] in (None, view["number"] - 1)
            cells = laid_over(cells, view["runs"])
            views[view["number"]] = (dict(cells), view)
        last = newest(client, engine)
        while last["number"] not in views:  # one more has come between
            view = json.loads(socket.recv(timeout=10))["data"]
            views[view["number"]] = (dict(laid_over(cells, view["runs"])), view)
        seen, view = views[last["number"]]
        assert seen == laid_over({}, last["runs"])
        assert sorted(seen) == list(range(1, 101))
        assert view["counts"] == last["counts"]
        states = [code & 3 for code, _ in seen.values()]
        told = last["counts"]
        assert [states.count(word) for word in (0, 1, 2)] == [told["free"], told["cached"], told["held"]]
        assert told["held"] > 5
        assert told["shared"] == 4, "the second prompt begins as the first one"
        assert {owner["num_cached_tokens"] for owner in last["owners"]} == {0, 64}


def test_a_block_and_an_owner_are_told_in_full(client: Client, engine: str) -> None:
    with answering(client, (BEGINNING, False), (BEGINNING + "x", False)):
        view = newest(client, engine)
        first, second = view["owners"]
        table = newest(client, engine, owner=first["id"])["table"]["tables"][0]["blocks"]
        found = newest(client, engine, block=table[0])
        assert found["runs"] is None
        block = found["block"]
        assert (block["state"], block["tokens"], block["hits"], block["refs"]) == ("held", 16, block["hits"], 2)
        assert block["hits"] >= 1
        assert [(owner["id"], owner["place"]) for owner in block["owners"]] == [(first["id"], 0), (second["id"], 0)]
        assert len(block["hash"]) == 8
        alone = newest(client, engine, block=table[4])["block"]
        assert [owner["request_id"] for owner in alone["owners"]] == [first["request_id"]]


def test_an_earlier_moment_comes_back_as_it_was(client: Client, engine: str) -> None:
    with answering(client, (BEGINNING, False)), client.live(f"blocks:{engine}") as socket:
        seen = []
        cells: dict[int, tuple[int, int]] = {}
        for _ in range(4):
            view = json.loads(socket.recv(timeout=10))["data"]
            cells = laid_over(cells, view["runs"])
            seen.append((view, dict(cells)))
        earlier, cells_then = seen[1]
        back = newest(client, engine, at=earlier["t"] + 0.01)
        assert back["number"] == earlier["number"]
        assert laid_over({}, back["runs"]) == cells_then
        assert back["counts"] == earlier["counts"]
        assert back["owners"] == earlier["owners"]
        line = client.get(f"/api/engines/{engine}/blocks/history").json()
        at = line["t"].index(earlier["t"])
        assert line["columns"]["held"][at] == earlier["counts"]["held"]


def test_an_engine_is_watched_only_while_somebody_looks(client: Client, engine: str) -> None:
    def asked() -> int:
        log: list[str] = client.get(f"/api/engines/{engine}").json().get("log_tail") or []
        log = log or client.engine_log().splitlines()
        return sum(line.startswith("watch blocks") for line in log)

    with client.live(f"blocks:{engine}") as socket:
        socket.recv(timeout=10)
        before = asked()
        client.until(lambda: asked() > before, 5)
    time.sleep(1.2)
    after = asked()
    time.sleep(2.2)
    assert asked() == after


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"num_tokens": 100, "max_tokens": 60}, {"fits": "yes", "blocks_needed": 10, "num_cached_tokens": None}),
        ({"num_tokens": 511, "max_tokens": 60}, {"fits": "yes", "max_num_tokens": 512, "blocks_needed": 32}),
        ({"num_tokens": 512}, {"fits": "never", "reasons": ["context"]}),
        ({"num_tokens": 2000}, {"fits": "never", "reasons": ["context", "pool"]}),
        ({"messages": [{"role": "user", "content": "hi"}]}, {"fits": "yes", "num_cached_tokens": 0}),
    ],
)
def test_a_prompt_is_judged(client: Client, engine: str, body: dict[str, Any], expected: dict[str, Any]) -> None:
    answer = client.post(f"/api/engines/{engine}/fit", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert {name: found[name] for name in expected} == expected


def test_a_prompt_that_begins_as_a_running_one_needs_less(client: Client, engine: str) -> None:
    with answering(client, (BEGINNING, False)):
        asked = {"prompt": BEGINNING + "y", "max_tokens": 22}
        client.until(lambda: client.post(f"/api/engines/{engine}/fit", json=asked).json()["num_running"] == 1)
        found = client.post(f"/api/engines/{engine}/fit", json=asked).json()
        assert (found["num_cached_tokens"], found["blocks_shared"]) == (64, 4)
        total = -(-found["max_num_tokens"] // 16)
        assert found["blocks_needed"] == total - 4


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("blocks?block=101", None, 404, "1 to 100"),
        ("blocks?block=0", None, 400, "greater than or equal to 1"),
        ("blocks?owner=123456", None, 404, "holds no blocks"),
        ("blocks?at=12", None, 404, "no block map is kept"),
        ("blocks/history?since=5&until=4", None, 400, "must lie before"),
        ("fit", {}, 400, "exactly one of"),
        ("fit", {"prompt": "a", "num_tokens": 3}, 400, "found prompt and num_tokens"),
        ("fit", {"prompt": ""}, 400, "no tokens"),
        ("fit", {"num_tokens": 0}, 400, "num_tokens"),
        ("fit", {"number": 3}, 422, "unknown field"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    client: Client, engine: str, path: str, body: dict[str, Any] | None, status: int, word: str
) -> None:
    url = f"/api/engines/{engine}/{path}"
    response = client.get(url) if body is None else client.post(url, json=body)
    assert response.status_code == status
    assert word in response.json()["detail"]


def test_an_unknown_engine_has_no_blocks(client: Client) -> None:
    for path in ("blocks", "blocks/history"):
        assert client.get(f"/api/engines/nobody/{path}").status_code == 404


def test_history_keeps_within_its_cap_and_begins_whole() -> None:
    s = scheduler(30)
    life, watch, state, numbers = Life(s, 9), BlockWatch(s), BlockState(OwnerNumbers()), OwnerNumbers()
    history = BlockHistory(max_bytes=100_000)
    seen = {}
    for number in range(300):
        life.turn()
        frame = watch.frame()
        state.apply(frame)
        cells = state.cells()
        history.add(frame, state, number, counts(state, cells))
        seen[frame.t_s] = (number, cells.codes.tolist())
        assert history.num_bytes <= 100_000
    kept = history.line(0, 1e12)["t"]
    assert 40 < len(kept) < 300
    assert history.at(kept[0] - 1, numbers) is None
    for t in kept:
        found = history.at(t, numbers)
        assert found is not None
        assert (found[1], found[0].cells().codes.tolist()) == seen[t]


def test_a_frame_that_does_not_follow_is_refused() -> None:
    s = scheduler(30)
    watch, state = BlockWatch(s), BlockState(OwnerNumbers())
    first, _, third = watch.frame(), watch.frame(), watch.frame()
    with pytest.raises(OutOfOrder):
        state.apply(third)
    state.apply(first)
    with pytest.raises(OutOfOrder):
        state.apply(third)


async def test_a_reader_of_a_kept_topic_is_told_its_state_first_and_after_a_hole() -> None:
    hub = LiveHub()
    hub.keep_state("blocks:", lambda topic: {"whole": topic})
    assert not hub.has_readers("blocks:a")
    client = hub.connect()
    client.subscribe(["blocks:a"], {})
    assert hub.has_readers("blocks:a")
    first = json.loads(await client.next())
    assert first["data"] == {"whole": "blocks:a"}
    for n in range(12):
        hub.publish("blocks:a", {"n": n})
    heard = [json.loads(await client.next()) for _ in range(12)]
    assert [message["seq"] for message in heard] == [first["seq"] + 1 + n for n in range(12)]
    late, missed = hub.connect(), hub.connect()
    late.subscribe(["blocks:a"], {"blocks:a": heard[-3]["seq"]})
    assert [json.loads(await late.next())["data"]["n"] for _ in range(2)] == [10, 11]
    missed.subscribe(["blocks:a"], {"blocks:a": first["seq"]})
    told = json.loads(await missed.next())
    assert (told["data"], told["gap"], told["seq"]) == ({"whole": "blocks:a"}, True, heard[-1]["seq"])
