"""Jobs, settings, events, samples, lists: the rest of /api, and what it says to bad input."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.body_limit import MAX_BODY_BYTES
from app.errors import ApiError
from app.jobs import JobError, JobHandle, JobResult, JobRunner
from app.live import LiveHub
from app.logs import prune_engine_logs, tail_lines
from app.settings import Settings
from app.writes import unwatched
from db.errors import StoreError
from db.store import Store
from tests.app.harness import MODEL, Client, make_home, make_settings, serving


@pytest_asyncio.fixture
async def runner(tmp_path: Path) -> AsyncIterator[JobRunner]:
    store = Store(tmp_path / "pizarra.db")
    yield JobRunner(store, LiveHub())
    store.close()


async def test_a_job_tells_its_stages_and_keeps_its_end(runner: JobRunner) -> None:
    async def work(handle: JobHandle) -> JobResult:
        handle.stage("download", 1, 2, "bytes", "half")
        handle.log("a line")
        assert runner.get(job.id).stage == "download"
        assert runner.running("pull", "x") is not None
        return {"answer": 42}

    job = runner.start("pull", "x", work)
    ended = await runner.wait(job.id)
    assert (ended.state, ended.result, ended.log, ended.done) == ("succeeded", {"answer": 42}, ["a line"], 1)
    assert ended.finished_at is not None
    assert runner.list(10)[0] == ended
    assert runner.running("pull", "x") is None


@pytest.mark.parametrize(
    ("error", "says"), [(JobError("disk full"), "disk full"), (ApiError(409, "no"), "no"), (KeyError("x"), "KeyError")]
)
async def test_a_failing_job_says_why(runner: JobRunner, error: Exception, says: str) -> None:
    async def work(handle: JobHandle) -> JobResult:
        handle.log("the last words")
        raise error

    ended = await runner.wait(runner.start("pull", "x", work).id)
    assert (ended.state, ended.log) == ("failed", ["the last words"])
    assert says in str(ended.error)


async def test_a_cancelled_job_ends_as_cancelled_but_an_unload_cannot(runner: JobRunner) -> None:
    async def work(handle: JobHandle) -> JobResult:
        await asyncio.sleep(60)
        return {}

    pull, unload = runner.start("pull", "x", work), runner.start("unload", "x", work)
    await asyncio.sleep(0)
    runner.cancel(pull.id)
    assert (await runner.wait(pull.id)).state == "cancelled"
    runner.cancel(pull.id)
    with pytest.raises(ApiError, match="cannot be taken back"):
        runner.cancel(unload.id)
    await runner.shutdown()
    assert runner.get(unload.id).state == "cancelled"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("system")), model="no-such-model")) as client:
        yield client


def test_a_wrong_start_model_is_an_event_and_the_server_serves(client: Client) -> None:
    event = client.until(lambda: client.get("/api/events").json()["events"])[0]
    assert event["severity"] == "error"
    assert "no-such-model" in event["message"]
    assert client.get("/health").json()["status"] == "ok"


def test_settings_are_kept_and_merged(client: Client) -> None:
    assert client.put("/api/settings", json={"settings": {"theme": "dark"}}).json()["settings"]["theme"] == "dark"
    merged = client.put("/api/settings", json={"settings": {"sampling": {"top_k": 5}}}).json()["settings"]
    assert merged == client.get("/api/settings").json()["settings"] == {"theme": "dark", "sampling": {"top_k": 5}}
    assert client.put("/api/settings", json={"settings": {"x": "y" * 70000}}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/api/jobs/nothing", None, 404, "no job 'nothing'"),
        ("POST", "/api/jobs/nothing/cancel", None, 404, "no job"),
        ("GET", "/api/jobs?limit=0", None, 400, "limit"),
        ("GET", "/api/requests?limit=many", None, 400, "limit"),
        ("GET", "/api/events?limit=1001", None, 400, "limit"),
        ("GET", "/api/samples?since=5&until=4", None, 400, "before until"),
        ("GET", "/api/samples?since=0&step_s=1", None, 400, "more than"),
        ("GET", "/api/conversations/none", None, 404, "no conversation"),
        ("DELETE", "/api/conversations/none", None, 404, "no conversation"),
        ("POST", "/api/conversations/none/stop", None, 404, "no conversation"),
        ("PATCH", "/api/conversations/none", {"version": 1}, 404, "does not exist"),
        ("POST", "/api/conversations", {"sampling": {"temperature": 11}}, 400, "sampling.temperature"),
        ("POST", "/api/conversations", {"titel": "x"}, 422, "unknown field 'titel'"),
        ("POST", "/api/conversations", {"sampling": {"top_k": 2**40}}, 400, "sampling.top_k"),
        ("PUT", "/api/settings", {"settings": 5}, 400, "settings"),
        ("GET", f"/api/requests?before={2**63}", None, 400, "before"),
        ("GET", f"/api/events?before={2**63}", None, 400, "before"),
        ("POST", "/api/models/pull", {"source": ""}, 400, "source"),
        ("DELETE", "/api/models/none", None, 404, "none"),
        ("POST", "/api/models/none/estimate", {}, 404, "none"),
        ("POST", "/api/models/none/unload", {}, 409, "not loaded"),
        ("GET", "/api/nothing", None, 404, "/api/nothing"),
        ("PUT", "/api/jobs", None, 405, "Not Allowed"),
    ],
)
def test_bad_calls_are_problems(
    client: Client, method: str, path: str, body: dict[str, Any] | None, status: int, says: str
) -> None:
    response = client.request(method, path, json=body)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert says in problem["detail"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/api/settings", '{"settings": {"\\ud800": 1}}', 400),
        ("PUT", "/api/settings", '{"settings": {"theme": ["\\ud800"]}}', 400),
        ("PUT", "/api/settings", '{"settings": {"theme": NaN}}', 400),
        ("POST", "/api/conversations", '{"model_id": "\\ud800"}', 400),
        ("POST", "/api/models/pull", '{"source": "\\ud800"}', 400),
        ("POST", "/api/models/tiny/estimate", '{"options": {"\\ud800": 1}}', 422),
        ("POST", "/api/models/tiny/estimate", "[" * 100_000, 400),
    ],
)
def test_what_json_can_spell_and_we_cannot_keep_is_refused(
    client: Client, method: str, path: str, body: str, status: int
) -> None:
    response = client.request(method, path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    assert response.json()["detail"]
    assert client.get("/api/settings").status_code == 200


def test_a_wrong_method_names_the_right_ones(client: Client) -> None:
    assert client.put("/api/jobs").headers["allow"] == "GET"
    assert client.get("/v1/chat/completions").headers["allow"] == "POST"


def test_a_body_without_end_is_refused(client: Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**16 + 1):
            yield bytes(2**16)

    headers = {"content-type": "application/json"}
    for content in (bytes(MAX_BODY_BYTES + 1), chunks()):
        response = client.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 413
        assert "larger than the 8 MiB" in response.json()["error"]["message"]


def test_the_docs_load_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/docs").text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    for address in addresses:
        assert address.startswith("/")
        assert client.get(address).status_code == 200


def test_a_bug_shows_no_traceback(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "list_events", lambda *arguments: 1 / 0)
    response = client.get("/api/events", headers={"connection": "close"})  # the server drops it after a bug
    assert response.status_code == 500
    assert "ZeroDivisionError" in response.json()["detail"]
    assert "line" not in response.text


def test_pull_from_a_folder_and_of_nonsense(client: Client, tmp_path: Path) -> None:
    folder = make_home(tmp_path / "elsewhere") / "models" / MODEL
    job = client.job(client.post("/api/models/pull", json={"source": str(folder)}))
    assert job["state"] == "succeeded", job
    assert job["result"]["model_id"] in [row["id"] for row in client.get("/api/models").json()["models"]]
    failed = client.job(client.post("/api/models/pull", json={"source": "no such thing"}))
    assert failed["state"] == "failed"
    assert "no such thing" in failed["error"]


def test_models_are_listed_with_their_fit(client: Client) -> None:
    rows = {row["id"]: row for row in client.get("/api/models").json()["models"]}
    tiny, default = rows[MODEL], rows["smollm2-135m-instruct"]
    assert (tiny["state"], tiny["on_disk"], tiny["format"], tiny["default"]) == ("on_disk", True, "safetensors", False)
    assert tiny["fit"]["fits"] == "yes"
    assert tiny["num_parameters"] > 1000
    assert (default["state"], default["default"], default["license"]) == ("available", True, "apache-2.0")
    assert any(row["fit"]["fits"] == "no" for row in rows.values())
    estimate = client.post(f"/api/models/{MODEL}/estimate", json={}).json()
    assert estimate["fits"] is True
    parts = ("weights_bytes", "kv_bytes", "workspace_bytes", "runtime_bytes")
    assert estimate["total_bytes"] == sum(estimate[part] for part in parts)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIZARRA_HOME", "~/somewhere")
    monkeypatch.setenv("PIZARRA_ALLOWED_HOSTS", "a.lan, b.lan")
    monkeypatch.setenv("PIZARRA_API_KEY", "secret")
    settings = Settings()
    assert settings.home == Path("~/somewhere").expanduser()
    assert settings.allowed_hosts == ["a.lan", "b.lan"]
    assert "secret" not in repr(settings)
    assert all(field.description for field in Settings.model_fields.values())
    with pytest.raises(ValueError, match="known are DEBUG"):
        Settings(log_level="loud")


def test_a_failed_write_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    write: Future[None] = Future()
    unwatched(write)
    write.set_exception(StoreError("the disk is full"))
    assert "the disk is full" in caplog.text


def test_engine_logs_are_tailed_and_pruned(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for n in range(50):
        (tmp_path / "logs" / f"engine-{n}.log").write_text("one\ntwo\n")
    prune_engine_logs(tmp_path)
    left = list((tmp_path / "logs").glob("engine-*.log"))
    assert len(left) == 40
    assert tail_lines(left[0], 1) == ["two"]
    assert tail_lines(tmp_path / "gone.log", 5) == []
