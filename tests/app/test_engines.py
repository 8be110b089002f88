"""Engine processes as the app sees them: loading, failing, dying, hanging, unloading, several at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.catalog import Catalog
from app.catalog.entry import CatalogError
from app.engine_client import EngineClient
from app.settings import Settings
from app.supervisor import EngineStartError, EngineSupervisor
from engine.config import LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.protocol import AddRequest
from tests.app.fake_text import TEXT
from tests.app.harness import MODEL, Client, make_home, make_settings, serving


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("engines"), "tiny", "second")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    with serving(make_settings(home)) as client:
        yield client


@pytest.fixture
def loaded(client: Client) -> Client:
    if client.get("/ready").json()["models"] != [MODEL]:
        assert client.load()["state"] == "succeeded"
    return client


def engine(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/engines").json()["engines"][0]
    return found


def ask(client: Client, content: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
    return client.post("/v1/chat/completions", json=body)


def test_without_a_model_v1_says_what_to_do(client: Client) -> None:
    response = ask(client, "hi")
    assert response.status_code == 503
    assert "Load one" in response.json()["error"]["message"]
    assert client.get("/ready").json() == {"ready": False, "models": [], "reason": "no model is loaded"}
    assert client.get("/v1/models").json()["data"] == []


def test_load_unload_and_the_receipt(client: Client) -> None:
    job = client.load(max_num_seqs=4)
    assert job["state"] == "succeeded"
    assert client.get("/ready").status_code == 200
    found = engine(client)
    assert found["state"] == "ready"
    assert found["options"]["max_num_seqs"] == 4
    assert found["id"] == job["result"]["engine_id"]
    row = next(row for row in client.get("/api/models").json()["models"] if row["id"] == MODEL)
    assert row["state"] == "loaded"
    assert row["engine_id"] == found["id"]
    assert psutil.pid_exists(found["pid"])
    client.until(lambda: engine(client)["stats"])
    job = client.unload()
    receipt = job["result"]
    assert receipt["freed_bytes"] == receipt["expected_bytes"] > 10**6
    assert receipt["message"].startswith("freed 0.0")
    assert receipt["forced"] is False
    assert not psutil.pid_exists(found["pid"])
    assert client.get("/api/engines").json()["engines"] == []
    assert client.post(f"/api/models/{MODEL}/unload").status_code == 409


def test_a_dying_engine_is_noticed_told_and_can_be_loaded_again(loaded: Client) -> None:
    dead = engine(loaded)["id"]
    response = ask(loaded, "CRASH")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_failed"
    assert "SIGKILL" in response.json()["error"]["message"]
    assert "about to crash" in response.json()["error"]["message"]
    found = engine(loaded)
    assert (found["id"], found["state"], found["pid"]) == (dead, "failed", None)
    assert "about to crash" in found["log_tail"][-1]
    again = ask(loaded, "hi")
    assert again.status_code == 503
    assert "Load the model again" in again.json()["error"]["message"]
    loaded.until(lambda: loaded.get("/api/events").json()["events"][0]["kind"] == "engine_failed")
    row = loaded.get("/api/requests?limit=1").json()["requests"][0]
    assert row["state"] == "failed"
    assert loaded.load()["state"] == "succeeded"
    assert ask(loaded, "hi").json()["choices"][0]["message"]["content"] == TEXT


def test_a_stream_tells_of_the_death(loaded: Client) -> None:
    body = {"messages": [{"role": "user", "content": "CRASH"}], "stream": True}
    with loaded.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert '"code": "engine_failed"' in lines[-1]
    assert len(lines) == 5  # the role, three tokens, the error


def test_an_idle_engine_that_dies_is_noticed(loaded: Client) -> None:
    os.kill(engine(loaded)["pid"], signal.SIGKILL)
    loaded.until(lambda: engine(loaded)["state"] == "failed", 2)
    assert loaded.get("/ready").json() == {"ready": False, "models": [], "reason": "tiny is failed"}


def test_a_hanging_engine_does_not_hang_the_server_and_can_be_ended(loaded: Client) -> None:
    os.kill(engine(loaded)["pid"], signal.SIGSTOP)
    assert loaded.get("/health").status_code == 200
    job = loaded.unload(force=True)
    assert job["result"]["forced"] is True
    assert job["result"]["freed_bytes"] > 0


def test_unload_drains_and_then_cuts(loaded: Client) -> None:
    answers: dict[str, httpx.Response] = {}

    def run(content: str) -> None:
        answers[content] = ask(loaded, content, max_tokens=20 if content == "SLOW" else 400)

    threads = [threading.Thread(target=run, args=(content,)) for content in ("SLOW", "SLOW ENDLESS")]
    for thread in threads:
        thread.start()
    loaded.until(lambda: loaded.engine_log().count("added") >= 2)
    job = loaded.unload()
    for thread in threads:
        thread.join()
    assert job["state"] == "succeeded"
    assert answers["SLOW"].json()["usage"]["completion_tokens"] == 20
    assert answers["SLOW ENDLESS"].status_code == 503
    assert "unloaded" in answers["SLOW ENDLESS"].json()["error"]["message"]


def test_force_hurries_an_unload_that_drains(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path), drain_timeout_s=60)) as client:
        client.load()
        asking = threading.Thread(target=ask, args=(client, "SLOW ENDLESS"), kwargs={"max_tokens": 400})
        asking.start()
        client.until(lambda: "added" in client.engine_log())
        draining = client.post(f"/api/models/{MODEL}/unload").json()
        client.until(lambda: client.get("/api/engines").json()["engines"][0]["state"] == "draining")
        assert "being unloaded" in client.post(f"/api/models/{MODEL}/load").json()["detail"]
        assert f"{MODEL} is draining" in ask(client, "hi").json()["error"]["message"]
        hurried = client.post(f"/api/models/{MODEL}/unload", json={"force": True})
        assert hurried.json() == draining
        assert client.job(hurried)["result"]["seconds"] < 10
        asking.join()


def test_several_engines_are_routed_by_model_and_share_the_threads(loaded: Client) -> None:
    assert loaded.load("second")["state"] == "succeeded"
    engines = {found["model_id"]: found for found in loaded.get("/api/engines").json()["engines"]}
    cores = len(os.sched_getaffinity(0))
    assert engines["tiny"]["options"]["num_threads"] == cores
    assert engines["second"]["options"]["num_threads"] == max(1, cores // 2)
    assert [model["id"] for model in loaded.get("/v1/models").json()["data"]] == ["tiny", "second"]
    for model in engines:
        body = {"model": model, "prompt": "hi", "max_tokens": 2}
        assert loaded.post("/v1/completions", json=body).json()["model"] == model
        assert loaded.get("/api/requests?limit=1").json()["requests"][0]["engine_run_id"] == engines[model]["id"]
    loaded.unload("second")


def test_loading_twice_is_refused_and_deleting_too(loaded: Client) -> None:
    assert loaded.post(f"/api/models/{MODEL}/load").status_code == 409
    assert loaded.delete(f"/api/models/{MODEL}").status_code == 409


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (CatalogError("it lies in a cache"), 409, "in a cache"),
        (PermissionError(13, "denied", "/x"), 500, "denied (/x)"),
    ],
)
def test_a_model_that_cannot_be_deleted(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, says: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Catalog, "remove", refuse)
    response = client.delete("/api/models/second")
    assert response.status_code == status
    assert says in response.json()["detail"]


async def test_a_request_that_cannot_be_sent_leaves_nothing_behind() -> None:
    ours, theirs = multiprocessing.Pipe()
    client = EngineClient(ours, lambda message: None, lambda: None)
    with pytest.raises(OverflowError):
        client.submit(AddRequest("x", [2**70], SamplingParams()))
    assert client.num_running == 0
    client.close()
    theirs.close()


@pytest.mark.parametrize(
    ("model", "body", "status", "says"),
    [
        ("nothing", {}, 404, "there is no model 'nothing'"),
        ("../etc", {}, 404, ""),
        ("smollm2-135m-instruct", {}, 404, "pizarra pull"),
        ("second", {"options": {"dtype": "int3"}}, 400, "bfloat16"),
        ("second", {"options": {"max_num_seqs": "many"}}, 400, "options.max_num_seqs"),
        ("second", {"options": {"max_num_seqs": 0}}, 400, "between 1 and 1024"),
        ("second", {"options": {"tensor_parallel_size": 2}}, 400, "one device"),
        ("second", {"options": {"zzz": 1}}, 422, "unknown load option 'zzz'"),
        ("second", {"option": {}}, 422, "unknown field 'option'"),
        ("second", {"options": []}, 400, "dictionary"),
    ],
)
def test_bad_loads(client: Client, model: str, body: dict[str, Any], status: int, says: str) -> None:
    response = client.post(f"/api/models/{model}/load", json=body)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert says in response.json()["detail"]


def without_sizes(text: str) -> str:
    """What other programs take changes from one moment to the next."""
    return re.sub(r"[\d.]+ [KMGT]iB", "some", text)


def test_a_model_that_does_not_fit_is_refused_before_loading(client: Client) -> None:
    options = {"max_model_len": 1000, "kv_cache_memory_bytes": 1 << 45}
    estimate = client.post("/api/models/second/estimate", json={"options": options}).json()
    assert estimate["fits"] is False
    job = client.load("second", **options)
    assert job["state"] == "failed"
    assert without_sizes(job["error"]) == without_sizes(estimate["message"])
    assert "second" not in [found["model_id"] for found in client.get("/api/engines").json()["engines"]]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"PK\x03\x04 zip", "zip"), (b"GGUF\x03\x00", "truncated|too short|ends"), (b"", "empty"), (b"x" * 50, "unknown")],
)
def test_broken_files_are_listed_and_refused_with_the_reason(
    client: Client, home: Path, content: bytes, says: str
) -> None:
    folder = home / "models" / "broken"
    folder.mkdir(exist_ok=True)
    (folder / "model.gguf").write_bytes(content)
    row = next(row for row in client.get("/api/models").json()["models"] if row["id"] == "broken")
    assert row["state"] == "broken"
    response = client.post("/api/models/broken/load")
    assert response.status_code == 409
    assert response.json()["detail"] == row["error"]
    assert "model.gguf" in row["error"]
    assert re.search(says, row["error"]), row["error"]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("fail", "asked to fail while loading: lower max_num_seqs"),
        ("crash", "exited with code 3 while loading; its last log line: no such luck"),
        ("old", "speaks protocol 0, this server 1"),
    ],
)
async def test_failing_loads_say_why(tmp_path: Path, home: Path, mode: str, says: str) -> None:
    supervisor = make_supervisor(tmp_path, home, make_settings(home, mode))
    with pytest.raises(EngineStartError, match=says):
        await supervisor.start()
    assert not supervisor.alive


async def test_an_engine_that_cannot_be_started_says_why(tmp_path: Path, home: Path) -> None:
    settings = make_settings(home).model_copy(update={"engine_command": "/no/such/program"})
    with pytest.raises(EngineStartError, match="could not be started"):
        await make_supervisor(tmp_path, home, settings).start()


async def test_a_cancelled_load_leaves_no_process(tmp_path: Path, home: Path) -> None:
    supervisor = make_supervisor(tmp_path, home, make_settings(home, "slow"))
    task = asyncio.create_task(supervisor.start())
    await asyncio.to_thread(Client.until, lambda: supervisor.progress.stage == "weights")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert supervisor.pid is not None
    assert not psutil.pid_exists(supervisor.pid)
    assert supervisor.state == "stopped"


async def test_an_engine_deaf_to_messages_and_sigterm_is_killed(tmp_path: Path, home: Path) -> None:
    supervisor = make_supervisor(tmp_path, home, make_settings(home, "stubborn"))
    await supervisor.start()
    receipt = await supervisor.unload(drain_s=0.1, kill_s=0.1)
    assert receipt.forced
    assert receipt.freed_bytes == receipt.expected_bytes > 0
    assert supervisor.state == "stopped"


@pytest.mark.parametrize("chosen", [None, "/elsewhere"])
async def test_kernels_are_kept_in_the_data_folder_unless_told_otherwise(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    monkeypatch.delenv("PIZARRA_KERNEL_CACHE", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PIZARRA_KERNEL_CACHE", chosen)
    supervisor = make_supervisor(tmp_path, home, make_settings(home))
    await supervisor.start()
    assert f"kernel cache {chosen or tmp_path / 'kernels'}" in supervisor.log_tail()
    await supervisor.kill()


def make_supervisor(tmp_path: Path, home: Path, settings: Settings) -> EngineSupervisor:
    return EngineSupervisor(
        "run",
        MODEL,
        home / "models" / MODEL,
        LoadOptions(),
        argv=settings.engine_argv,
        log_path=tmp_path / "engine.log",
        kernel_cache=tmp_path / "kernels",
        on_change=lambda supervisor: None,
    )


def test_a_load_can_be_cancelled_over_http(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path), "slow")) as client:
        job_id = client.post(f"/api/models/{MODEL}/load").json()["job_id"]
        client.until(lambda: client.get("/api/engines").json()["engines"])
        assert client.post(f"/api/models/{MODEL}/load").json()["job_id"] == job_id
        assert client.post(f"/api/models/{MODEL}/unload").status_code == 409
        assert client.get("/ready").json()["reason"] == "tiny is loading"
        assert client.post(f"/api/jobs/{job_id}/cancel").status_code == 202
        client.until(lambda: client.get(f"/api/jobs/{job_id}").json()["state"] == "cancelled")
        assert client.get("/api/engines").json()["engines"] == []


def test_loads_wait_for_each_other(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path, "one", "two"), "slow")) as client:
        jobs = [client.post(f"/api/models/{model}/load").json()["job_id"] for model in ("one", "two")]
        client.until(lambda: client.get(f"/api/jobs/{jobs[0]}").json()["stage"] == "weights")
        client.until(lambda: client.get(f"/api/jobs/{jobs[1]}").json()["stage"] == "queued")
        assert [found["model_id"] for found in client.get("/api/engines").json()["engines"]] == ["one"]
        client.post(f"/api/jobs/{jobs[0]}/cancel")
        client.until(lambda: client.get(f"/api/jobs/{jobs[1]}").json()["stage"] == "weights")
        assert [found["model_id"] for found in client.get("/api/engines").json()["engines"]] == ["two"]


def test_the_model_of_the_settings_is_loaded_at_start(tmp_path: Path) -> None:
    with serving(make_settings(make_home(tmp_path), model=MODEL)) as client:
        client.until(lambda: client.get("/ready").json()["ready"])
        assert client.get("/api/jobs").json()["jobs"][0]["kind"] == "load"
