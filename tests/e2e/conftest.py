"""The whole product as real processes: a server with a data folder of its own and the default model on its disk.

Owns the server's start, stop and restart, and the browser tabs on it. `server_url` serves API tests as well.
Invariant: whatever a test leaves loaded is unloaded before the next one that asks for `unloaded_url`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from playwright.sync_api import Browser

from tests.browser import Tab, open_tab

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_MODEL = "smollm2-135m-instruct"
START_LIMIT_S = 60.0
JOB_LIMIT_S = 120.0
STOP_LIMIT_S = 40.0

T = TypeVar("T")


@dataclass
class Server:
    """One `pizarra serve` that can be stopped and started again on the same folder and port."""

    home: Path
    port: int = 0
    url: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.home.parent / "server.log"

    def start(self) -> None:
        command = [sys.executable, "-c", "from app.cli import main; main()", "serve"]
        command += ["--home", str(self.home), "--port", str(self.port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, stdout=log, stderr=log
            )
        self.url = wait_for("the server's address", self._address, START_LIMIT_S)
        self.port = int(self.url.rpartition(":")[2])
        wait_for("an answer from /health", self._healthy, START_LIMIT_S)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"the server did not end {STOP_LIMIT_S:.0f} s after SIGTERM; its log: {self._tail()}")

    def restart(self) -> None:
        self.stop()
        self.start()

    def ensure_running(self) -> None:
        """A test that failed between stop and start must not take the others with it."""
        if self.process is None or self.process.poll() is not None:
            self.start()

    def _address(self) -> str | None:
        self._must_live()
        found = re.search(r"starting at (http://\S+)", self.log.read_text(encoding="utf-8", errors="replace"))
        return found.group(1) if found else None

    def _healthy(self) -> bool:
        self._must_live()
        try:
            return httpx.get(f"{self.url}/health").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _must_live(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            pytest.fail(f"the server ended with code {self.process.returncode}: {self._tail()}")

    def _tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]


def wait_for(what: str, look: Callable[[], T | None], limit_s: float) -> T:
    """The first truthy answer, or a failure that says what did not come."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.1)
    pytest.fail(f"{what} did not come within {limit_s:.0f} s")


def finished_job(url: str, started: httpx.Response) -> dict[str, Any]:
    """The job that a 202 announced, once it has succeeded."""
    assert started.status_code == httpx.codes.ACCEPTED, started.text
    job_id = started.json()["job_id"]

    def ended() -> dict[str, Any] | None:
        job: dict[str, Any] = httpx.get(f"{url}/api/jobs/{job_id}").json()
        return job if job["state"] not in ("queued", "running") else None

    job = wait_for(f"the end of job {job_id}", ended, JOB_LIMIT_S)
    assert job["state"] == "succeeded", f"{job['error']}; {job['log'][-5:]}"
    return job


def loaded_models(url: str) -> list[str]:
    return [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, default_model_path: Path) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("e2e") / "home"
    folder = home / "models" / DEFAULT_MODEL
    folder.mkdir(parents=True)
    shutil.copy(default_model_path, folder)
    running = Server(home)
    running.start()
    yield running
    running.ensure_running()
    running.stop()


@pytest.fixture
def server_url(server: Server) -> str:
    """The address of a running server with the default model on its disk, loaded or not."""
    server.ensure_running()
    return server.url


@pytest.fixture
def unloaded_url(server_url: str) -> str:
    """The same, with nothing loaded."""
    for model_id in loaded_models(server_url):
        finished_job(server_url, httpx.post(f"{server_url}/api/models/{model_id}/unload", json={"force": True}))
    return server_url


@pytest.fixture
def loaded_url(server_url: str) -> str:
    """The same, with the default model loaded."""
    if DEFAULT_MODEL not in loaded_models(server_url):
        finished_job(server_url, httpx.post(f"{server_url}/api/models/{DEFAULT_MODEL}/load", json={"options": {}}))
    return server_url


@pytest.fixture
def open_page(browser: Browser) -> Callable[..., AbstractContextManager[Tab]]:
    """Opens a tab: `with open_page(url, size=(390, 844)) as tab`."""

    def opener(url: str, **options: Any) -> AbstractContextManager[Tab]:
        return open_tab(browser, url, **options)

    return opener
