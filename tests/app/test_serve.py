"""`pizarra` as a process: start, refusals, second start, SIGTERM, and what survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from typer.testing import CliRunner, Result

from app.cli import cli
from app.home import HomeError, HomeLock, prepare_home, running_url
from tests.app.harness import MODEL, Client, fake_engine_command, make_home

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> Result:
    """The command in this process; its choices in the environment are taken back."""
    before = dict(os.environ)
    try:
        return CliRunner().invoke(cli, list(arguments))
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def started(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from app.cli import main; main()",
            "serve",
            "--home",
            str(home),
            "--port",
            "0",
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, "PIZARRA_ENGINE_COMMAND": fake_engine_command(), "PIZARRA_SHUTDOWN_TIMEOUT_S": "0.5"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "starting at http://127.0.0.1:" in line, line
    url = line.split()[4]
    try:
        with Client(base_url=url, timeout=20, trust_env=False) as client:
            client.until(lambda: process.poll() is not None or answers(client), 30)
            assert process.poll() is None, process.stdout.read()
            yield process, client
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def answers(client: Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_the_life_of_a_server(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    with started(home, "--model", MODEL) as (process, client):
        client.until(lambda: client.get("/ready").status_code == 200, 20)
        assert client.get("/health").json()["pid"] == process.pid
        port = client.base_url.port
        lock = json.loads((home / "lock").read_text())
        assert lock == {"pid": process.pid, "url": f"http://127.0.0.1:{port}"}

        second = run("serve", "--home", str(home), "--port", "0")
        assert second.exit_code == 1
        assert f"process {process.pid}, which serves http://127.0.0.1:{port}" in second.stderr
        assert "Traceback" not in second.stderr

        taken = run("serve", "--home", str(tmp_path / "other"), "--port", str(port))
        assert taken.exit_code == 1
        assert "Address already in use" in taken.stderr
        assert "--port" in taken.stderr
        assert "Traceback" not in taken.stderr

        said = run("generate", MODEL, "hello", "--max-tokens", "4", "--home", str(home))
        assert said.exit_code == 0
        assert said.stdout.startswith("The")
        unknown = run("generate", "nothing", "hello", "--home", str(home))
        assert unknown.exit_code == 1
        assert "not loaded" in unknown.stderr

        conversation = client.post("/api/conversations", json={}).json()
        body = {"version": 1, "content": "SLOW ENDLESS"}
        client.post(f"/api/conversations/{conversation['id']}/generate", json=body)
        engine_pid = client.get("/api/engines").json()["engines"][0]["pid"]
        url = f"/api/conversations/{conversation['id']}"
        client.until(lambda: len(client.get(url).json()["messages"][-1]["content"]) > 3)
        body = {"messages": [{"role": "user", "content": "HANG"}]}
        whole: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: whole.append(client.post("/v1/chat/completions", json=body)))
        thread.start()
        streamed = {"messages": [{"role": "user", "content": "SLOW ENDLESS"}], "stream": True}
        with client.live("header") as socket, client.stream("POST", "/v1/chat/completions", json=streamed) as response:
            assert json.loads(socket.recv(timeout=30))["data"]["state"] in ("ready", "busy")
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            last = [line for line in lines if line][-1]
        assert '"code": "server_stopping"' in last
        thread.join()
        assert whole[0].status_code == 503
        assert whole[0].json()["error"]["code"] == "server_stopping"
        assert process.wait(15) in (0, -signal.SIGTERM)
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()
        assert not psutil.pid_exists(engine_pid)
    with started(home) as (process, client):
        message = client.get(url).json()["messages"][-1]
        assert message["state"] == "interrupted"
        assert len(message["content"]) > 3
        assert client.get("/api/jobs").json()["jobs"][0]["state"] == "succeeded"
        assert "Traceback" not in (home / "logs" / "pizarra.log").read_text()


def test_engines_end_with_a_killed_server(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    with started(home, "--model", MODEL) as (process, client):
        client.until(lambda: client.get("/ready").status_code == 200, 20)
        engine_pid = client.get("/api/engines").json()["engines"][0]["pid"]
        process.kill()
        process.wait()
        deadline = time.monotonic() + 3
        while psutil.pid_exists(engine_pid) and psutil.Process(engine_pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    HomeLock(home).acquire("http://again")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "PIZARRA_API_KEY"),
        (["--host", "not.a.host.invalid"], "PIZARRA_API_KEY"),
        (["--port", "99999"], "PIZARRA_PORT"),
        (["--home", "/dev/null/pizarra"], "cannot be written"),
    ],
)
def test_refused_starts_say_why(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run("serve", "--home", str(tmp_path), *arguments)
    assert done.exit_code == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lock_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    done = run("serve", "--home", str(tmp_path), "--port", "0")
    assert done.exit_code == 1
    assert "cannot be written" in done.stderr
    assert "lock" in done.stderr


def test_a_damaged_database_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pizarra.db").write_bytes(b"no database at all" * 100)
    done = run("serve", "--home", str(tmp_path), "--port", "0")
    assert done.exit_code == 1
    assert "move it away" in done.stderr
    assert running_url(tmp_path) is None


def test_models_and_pull_say_what_is_there(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    (home / "models" / "broken").mkdir()
    (home / "models" / "broken" / "model.gguf").write_bytes(b"PK\x03\x04")
    listed = run("models", "--home", str(home))
    assert listed.exit_code == 0
    assert "tiny" in listed.stdout
    assert "broken: " in listed.stdout
    assert "smollm2-135m-instruct" in listed.stdout
    wrong = run("pull", "no such thing", "--home", str(home))
    assert wrong.exit_code == 1
    assert "no such thing" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_port_that_is_taken_by_another_program(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = run("serve", "--home", str(tmp_path), "--port", str(other.getsockname()[1]))
    assert done.exit_code == 1
    assert "cannot listen on 127.0.0.1" in done.stderr


def test_the_lock_is_the_kernels_and_a_left_over_file_is_no_lock(tmp_path: Path) -> None:
    prepare_home(tmp_path)
    (tmp_path / "lock").write_text('{"pid": 1, "url": "http://stale"}')
    assert running_url(tmp_path) is None
    lock = HomeLock(tmp_path)
    lock.acquire("http://here")
    assert running_url(tmp_path) == "http://here"
    with pytest.raises(HomeError, match="http://here"):
        HomeLock(tmp_path).acquire("http://there")
    lock.release()
    assert running_url(tmp_path) is None
    HomeLock(tmp_path).acquire("http://there")


def test_a_home_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match=r"cannot be written.*--home"):
        prepare_home(tmp_path / "file" / "home")
