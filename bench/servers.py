"""Real servers to measure and to press: Pizarra's, vLLM's and llama.cpp's, each started as its users start it.

Owns their processes, their address and what they were started with. Knows nothing of what is sent to them. Invariant:
whatever was started has ended when its `with` block ends.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 600.0  # vLLM compiles when it is started for the first time
STOP_PATIENCE_S = 60.0
T = TypeVar("T")


@dataclass
class ServerProcess:
    """A server in a process group of its own, and its log."""

    command: Sequence[str]
    log: Path
    folder: Path  # it is started in; the repository's would lend its packages `kernels` and `engine` to a peer
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={**os.environ, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        """The first truthy answer. RuntimeError, with the end of the log, when none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.1)
        raise RuntimeError(f"{shlex.join(self.command)}: no {what}; its log ends:\n{self.text()[-3000:]}")

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """Ends it as an operator would; its exit status. What does not end is killed, what it left behind as well."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


@dataclass
class PizarraServer:
    """`pizarra serve` on a data folder of its own."""

    client: httpx.Client
    running: ServerProcess

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def load(self, model_id: str, **options: Any) -> dict[str, Any]:
        """Loads a model; the engine as /api/engines describes it."""
        self._finish(f"/api/models/{model_id}/load", {"options": options})
        return self.engine()

    def unload(self, model_id: str) -> dict[str, Any]:
        """Unloads a model; the receipt."""
        receipt: dict[str, Any] = self._finish(f"/api/models/{model_id}/unload", {"force": False})["result"]
        return receipt

    def engine(self) -> dict[str, Any]:
        """The one engine that is loaded."""
        engines = self.client.get("/api/engines").json()["engines"]
        found: dict[str, Any] = next(each for each in engines if each["state"] == "ready")
        return found

    def _finish(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The job that a call starts, once it has succeeded."""
        started = self.client.post(path, json=body)
        if started.status_code != httpx.codes.ACCEPTED:
            raise RuntimeError(f"{path}: {started.text}")
        job_path = f"/api/jobs/{started.json()['job_id']}"
        job = self.running.until(f"end of {path}", lambda: _ended(self.client.get(job_path).json()))
        if job["state"] != "succeeded":
            raise RuntimeError(f"{path}: {job['error']}")
        return job


def _ended(job: dict[str, Any]) -> dict[str, Any] | None:
    return job if job["finished_at"] is not None else None


@dataclass
class PeerServer:
    """A server of another engine."""

    url: str
    running: ServerProcess


@contextmanager
def pizarra(
    home: Path, models: Mapping[str, Path], variables: Mapping[str, str] | None = None, **settings: str
) -> Iterator[PizarraServer]:
    """A server whose data folder `home` holds these models (files or folders, linked).

    settings: by their names. variables: of the environment, beside them.
    """
    for model_id, path in models.items():
        folder = home / "models" / model_id
        folder.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            folder.symlink_to(path.absolute())
        else:
            folder.mkdir()
            (folder / path.name).symlink_to(path.absolute())
    command = [sys.executable, "-c", "from app.cli import main; main()", "serve", "--home", str(home), "--port", "0"]
    wishes = {f"PIZARRA_{name.upper()}": value for name, value in settings.items()}
    cached = {"PIZARRA_KERNEL_CACHE": str(ROOT / ".cache" / "kernels"), "HF_HUB_OFFLINE": "1"}
    running = ServerProcess(command, home / "server.log", ROOT, {**cached, **(variables or {}), **wishes})
    try:
        address = running.until("address", lambda: re.search(r"starting at (http://\S+)", running.text()))
        with _client(address.group(1)) as client:
            running.until("answer", lambda: _is_healthy(client))
            yield PizarraServer(client, running)
    finally:
        running.stop()


@contextmanager
def vllm(
    environment: Path, model: Path, log: Path, variables: Mapping[str, str], options: Sequence[str]
) -> Iterator[PeerServer]:
    """`vllm serve` on a Hugging Face folder. environment: what bench/peers.sh made. options: of the command line."""
    command = [str(environment / "bin" / "vllm"), "serve", str(model), *options, "--disable-uvicorn-access-log"]
    with _peer(command, log, variables) as server:
        yield server


@contextmanager
def llama_server(
    programs: Path, model: Path, log: Path, variables: Mapping[str, str], options: Sequence[str]
) -> Iterator[PeerServer]:
    """`llama-server` on a GGUF file. programs: the folder that bench/peers.sh built. options: of the command line."""
    with _peer([str(programs / "llama-server"), "-m", str(model), *options], log, variables) as server:
        yield server


@contextmanager
def _peer(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> Iterator[PeerServer]:
    port = _free_port()
    running = ServerProcess([*command, "--host", "127.0.0.1", "--port", str(port)], log, log.parent, variables)
    try:
        url = f"http://127.0.0.1:{port}"
        with _client(url) as client:
            running.until("answer", lambda: _is_healthy(client))
        yield PeerServer(url, running)
    finally:
        running.stop()


def vllm_variables(environment: Path, bind: str) -> dict[str, str]:
    """vLLM's settings: cores to bind threads to, 4 GiB of KV cache, Intel's OpenMP as its manual for CPUs advises."""
    return {
        "VLLM_CPU_OMP_THREADS_BIND": bind,
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(map(str, environment.glob("lib/libiomp5.so"))),
    }


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all below it, user and system."""
    head = psutil.Process(pid)
    times = [process.cpu_times() for process in (head, *head.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=PATIENCE_S, verify=False, trust_env=False)


def _is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
