"""A real server on a real socket, with fake engines, for tests of the control plane."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from websockets.sync.client import ClientConnection, connect

from app.server import create_app
from app.settings import Settings
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
MODEL = "tiny"


def fake_engine_command(mode: str = "normal") -> str:
    return f"{sys.executable} {FAKE_ENGINE} --mode {mode}"


def make_home(folder: Path, *models: str) -> Path:
    for name in models or (MODEL,):
        tiny_llama_checkpoint(folder / "models" / name)
    return folder


def give_templates(home: Path, templates: Mapping[str, str]) -> Path:
    """The chat template of each of these models is now this one."""
    for model, template in templates.items():
        path = home / "models" / model / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}), encoding="utf-8")
    return home


def make_settings(home: Path, mode: str = "normal", **changes: Any) -> Settings:
    values = {"drain_timeout_s": 1.0, "kill_timeout_s": 0.5, "shutdown_timeout_s": 0.5, **changes}
    return Settings(home=home, port=0, engine_command=fake_engine_command(mode), **values)


class Client(httpx.Client):
    """An HTTP client that knows how to wait."""

    def load(self, model: str = MODEL, **options: Any) -> dict[str, Any]:
        return self.job(self.post(f"/api/models/{model}/load", json={"options": options}))

    def unload(self, model: str = MODEL, *, force: bool = False) -> dict[str, Any]:
        return self.job(self.post(f"/api/models/{model}/unload", json={"force": force}))

    def job(self, started: httpx.Response) -> dict[str, Any]:
        """The job once it has ended."""
        assert started.status_code == 202, started.text
        job_id = started.json()["job_id"]
        job: dict[str, Any] = self.until(
            lambda: found if (found := self.get(f"/api/jobs/{job_id}").json())["finished_at"] else None, 60
        )
        return job

    @contextmanager
    def live(self, *topics: str, **request: Any) -> Iterator[ClientConnection]:
        """The live feed with these topics subscribed."""
        url = str(self.base_url).replace("http", "ws") + "/api/live"
        with connect(url, proxy=None, max_queue=None) as socket:  # an unread queue would hold up the close
            socket.send(json.dumps({"subscribe": list(topics), **request}))
            yield socket

    def engine_log(self) -> str:
        return "\n".join(self.get("/api/engines").json()["engines"][0]["log_tail"])

    def logged(self, text: str) -> str:
        """The newest line of an engine's log with this in it; what it prints may arrive after what it answers."""

        def newest() -> str | None:
            engines = self.get("/api/engines").json()["engines"]
            return next((line for each in engines for line in reversed(each["log_tail"]) if text in line), None)

        line: str = self.until(newest)
        return line

    def added(self) -> str:
        """What the fake engine printed of the newest request."""
        request_id = self.get("/api/requests?limit=1").json()["requests"][0]["id"]
        return self.logged(f"added {request_id} ")

    @staticmethod
    def until(check: Any, timeout_s: float = 30.0) -> Any:
        """What `check` returns once that is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := check()):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)
        return value


@contextmanager
def serving(settings: Settings, mount: Callable[[FastAPI], FastAPI] | None = None) -> Iterator[Client]:
    """The server in a thread; ended as SIGTERM ends it. `mount` puts the dashboard onto it."""
    app = create_app(settings)
    app = app if mount is None else mount(app)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=120,  # a slow machine must not find its connection closed just as it asks again
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    Client.until(lambda: server.started or not thread.is_alive())
    assert server.started, "the server did not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server did not end"
