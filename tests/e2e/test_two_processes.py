"""App and engine as two real processes with a tiny random checkpoint, over HTTP."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from app.settings import Settings
from tests.app.harness import Client, make_home, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(Settings(home=make_home(tmp_path_factory.mktemp("e2e")), port=0)) as client:
        job = client.load(dtype="float32", max_num_seqs=8)
        assert job["state"] == "succeeded", job
        yield client


def complete(client: Client, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 40, "seed": 1, "ignore_eos": True, **fields}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_the_same_seed_gives_the_same_text_alone_and_among_others(client: Client) -> None:
    prompts = [f"The number {n} is" for n in range(12)]
    alone = [complete(client, prompt)["choices"][0]["text"] for prompt in prompts]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda prompt: complete(client, prompt)["choices"][0]["text"], prompts))
    assert together == alone
    assert len(set(alone)) > 1


def test_the_engine_reports_itself(client: Client) -> None:
    engine = client.get("/api/engines").json()["engines"][0]
    assert engine["exactness"] == "bits"
    assert engine["device"] == "cpu"
    assert engine["memory"]["kv_bytes"] > 0
    assert engine["options"]["max_num_seqs"] == 8
    assert engine["num_kv_blocks"] > 0


def test_a_cut_answer_gives_its_blocks_back(client: Client) -> None:
    body = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)

    def idle() -> bool:
        stats = client.get("/api/engines").json()["engines"][0]["stats"]
        return bool(stats["num_requests_running"] == stats["kv_blocks_used"] == 0)

    client.until(lambda: client.get("/api/requests?limit=1").json()["requests"][0]["finish_reason"] == "abort")
    client.until(idle)


def test_a_killed_engine_is_replaced_by_a_new_load_and_the_unload_has_a_receipt(client: Client) -> None:
    pid = client.get("/api/engines").json()["engines"][0]["pid"]
    before = complete(client, "again")["choices"][0]["text"]
    os.kill(pid, signal.SIGKILL)
    client.until(lambda: client.get("/api/engines").json()["engines"][0]["state"] == "failed", 2)
    assert client.load(dtype="float32")["state"] == "succeeded"
    assert complete(client, "again")["choices"][0]["text"] == before
    pid = client.get("/api/engines").json()["engines"][0]["pid"]
    receipt = client.unload()["result"]
    assert receipt["freed_bytes"] == receipt["expected_bytes"] > 20 * 2**20
    assert receipt["forced"] is False
    assert not psutil.pid_exists(pid)
