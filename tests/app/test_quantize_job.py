"""Quantising from the app's side: the job, its progress, its end; stopping, going on; and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app import engine_jobs
from app.engine_jobs import EngineJobError, EngineJobStopped, JobLine, parse_line, run_engine_job
from app.quantize import alone
from tests.app.fake_engine_job import FIGURES
from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.app.test_serve import ROOT, run

FAKE_JOB = Path(__file__).with_name("fake_engine_job.py")
MADE = f"{MODEL}-awq-g32"
BODY = {"format": "awq", "group_size": 32}


def job_command(mode: str = "normal") -> list[str]:
    return [sys.executable, str(FAKE_JOB), "--mode", mode]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with serving(settings(home)) as client:
        yield client


def settings(home: Path, mode: str = "normal") -> Any:
    return make_settings(home, jobs_command=" ".join(job_command(mode)))


def quantize(client: Client, **changes: Any) -> dict[str, Any]:
    return client.job(client.post(f"/api/models/{MODEL}/quantize", json=BODY | changes))


def children_of(pid: int) -> list[psutil.Process]:
    return [
        child for child in psutil.Process(pid).children(recursive=True) if FAKE_JOB.name in " ".join(child.cmdline())
    ]


def test_a_job_makes_a_model_that_is_in_the_list(client: Client, home: Path) -> None:
    job = quantize(client)
    assert (job["state"], job["kind"], job["subject"], job["stage"]) == ("succeeded", "quantize", MODEL, "done")
    result = job["result"]
    figures = FIGURES | {"group_size": 32, "output": str(home / "models" / MADE)}
    assert (result["model_id"], result["figures"]) == (MADE, figures)
    assert job["message"] == f"{home / 'models' / MADE}: made"
    assert result["size_bytes"] > 0
    assert {"a library says hello", "from step 0"} <= set(job["log"])
    rows = {row["id"]: row for row in client.get("/api/models").json()["models"]}
    assert rows[MADE]["state"] == "on_disk"
    assert rows[MADE]["path"] == str(home / "models" / MADE) == result["path"]
    record = json.loads((home / "models" / MADE / "source.json").read_text())
    assert (record["kind"], record["figures"]["group_size"]) == ("quantize", 32)
    assert list((home / "tmp" / "quantize").glob("*.partial")) == []
    again = client.post(f"/api/models/{MODEL}/quantize", json=BODY)
    assert (again.status_code, again.json()["param"]) == (409, "output_id")
    assert f"there is a model {MADE} already" in again.json()["detail"]
    assert quantize(client, output_id="mine")["result"]["model_id"] == "mine"


def test_the_process_is_told_the_wish(home: Path) -> None:
    with serving(settings(home, "silent")) as client:
        wish = {
            "format": "gptq",
            "bits": 8,
            "group_size": 64,
            "desc_act": True,
            "symmetric": True,
            "calibration_text": "Of wind and tide.",
        }
        job = client.job(client.post(f"/api/models/{MODEL}/quantize", json=wish))
    assert (job["state"], job["error"].splitlines()[1:]) == ("failed", ["from step 0", "no words for this"])
    assert "the process of quantize ended with exit status 7 in the stage 'layers'" in job["error"]
    output = home / "tmp" / "quantize" / f"{MODEL}-gptq-w8-g64"
    told = json.loads((output.with_name(f"{output.name}.partial") / "arguments.json").read_text())
    assert Path(told.pop("calibration")).read_text() == "Of wind and tide."
    assert told == {
        "model": str(home / "models" / MODEL),
        "output": str(output),
        "format": "gptq",
        "method": "gptq",
        "bits": 8,
        "group_size": 64,
        "desc_act": True,
        "symmetric": True,
        "num_threads": None,
        "seed": 0,
    }


def test_what_the_process_refuses_is_the_jobs_error(client: Client) -> None:
    job = quantize(client, group_size=48)
    assert job["state"] == "failed"
    assert job["error"] == "group_size 48: the model's 64 inputs do not divide by it; choose 64 or 32"


def test_a_cancelled_job_goes_on_where_it_stopped(home: Path) -> None:
    with serving(settings(home, "slow")) as client:
        started = client.post(f"/api/models/{MODEL}/quantize", json=BODY).json()["job_id"]
        client.until(lambda: client.get(f"/api/jobs/{started}").json()["done"] == 2)
        row = next(row for row in client.get("/api/models").json()["models"] if row["id"] == MODEL)
        assert (row["job_id"], row["state"]) == (started, "on_disk")
        again = client.post(f"/api/models/{MODEL}/quantize", json=BODY)
        assert again.json()["job_id"] == started
        other = client.post(f"/api/models/{MODEL}/quantize", json=BODY | {"group_size": 64})
        assert (other.status_code, started in other.json()["remedy"]) == (409, True)
        gone = client.delete(f"/api/models/{MODEL}")
        assert (gone.status_code, started in gone.json()["remedy"]) == (409, True)
        client.post(f"/api/jobs/{started}/cancel")
        client.post(f"/api/jobs/{started}/cancel")
        job = client.until(
            lambda: found if (found := client.get(f"/api/jobs/{started}").json())["finished_at"] else None
        )
        assert (job["state"], job["message"]) == ("cancelled", "stopped at a checkpoint")
        assert children_of(os.getpid()) == []
        assert MADE not in {row["id"] for row in client.get("/api/models").json()["models"]}
    with serving(settings(home)) as client:
        job = quantize(client)
    assert (job["state"], "from step 2" in job["log"]) == ("succeeded", True)


def test_the_end_of_the_server_stops_the_work_at_a_checkpoint(home: Path) -> None:
    with serving(settings(home, "slow")) as client:
        started = client.post(f"/api/models/{MODEL}/quantize", json=BODY).json()["job_id"]
        client.until(lambda: client.get(f"/api/jobs/{started}").json()["done"] == 2)
    assert children_of(os.getpid()) == []
    assert (home / "tmp" / "quantize" / f"{MADE}.partial" / "steps").read_text() == "2"


@pytest.mark.parametrize(
    ("model", "changes", "status", "says"),
    [
        ("nothing", {}, 404, "there is no model 'nothing'"),
        ("smollm2-135m-instruct", {}, 404, "get it with: pizarra pull smollm2-135m-instruct"),
        ("broken", {}, 409, "broken cannot be read"),
        (MODEL, {"format": "exl2"}, 400, "format"),
        (MODEL, {"bits": 9}, 400, "bits"),
        (MODEL, {"group_size": "all"}, 400, "group_size"),
        (MODEL, {"seed": 1}, 422, "unknown field 'seed'"),
        (MODEL, {"output_id": "../x"}, 409, "is not a model id"),
        (MODEL, {"output_id": "x.partial"}, 409, "kept for unfinished work"),
        (MODEL, {"output_id": MODEL}, 409, f"there is a model {MODEL} already"),
        (MODEL, {"output_id": "smollm2-135m-instruct"}, 409, "there is a model smollm2-135m-instruct already"),
        (MODEL, {"calibration": "/nowhere/text"}, 400, "there is no text file /nowhere/text"),
        (MODEL, {"calibration": "x" * 999}, 400, "there is no text file"),
        (MODEL, {"calibration": str(FAKE_JOB), "calibration_text": "x"}, 400, "give one of them"),
    ],
)
def test_bad_wishes_are_this_calls_errors(
    client: Client, home: Path, model: str, changes: dict[str, Any], status: int, says: str
) -> None:
    (home / "models" / "broken").mkdir()
    response = client.post(f"/api/models/{model}/quantize", json=BODY | changes)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]
    assert client.get("/api/jobs").json()["jobs"] == []


# ---- the process itself ---------------------------------------------------------------------------------------------


async def work(home: Path, mode: str, on_line: Callable[[JobLine], None] = lambda line: None) -> dict[str, Any]:
    (home / "tmp").mkdir(exist_ok=True)
    arguments = {"model": str(home / "models" / MODEL), "output": str(home / "tmp" / "x"), "group_size": 32}
    return await run_engine_job(
        job_command(mode), "quantize", arguments, kernel_cache=home, on_line=on_line, on_log=lambda text: None
    )


async def test_lines_come_in_order_and_the_result_at_the_end(home: Path) -> None:
    lines: list[JobLine] = []
    assert await work(home, "normal", lines.append) == FIGURES | {"group_size": 32, "output": str(home / "tmp" / "x")}
    assert [(line.stage, line.done) for line in lines] == [*(("layers", n) for n in (1, 2, 3, 4)), ("done", 4)]


@pytest.mark.parametrize(
    ("mode", "error", "says"),
    [
        (
            "crash",
            EngineJobError,
            r"was ended by signal 9 \(the system ran out of memory, or .*\) in the stage 'layers'",
        ),
        ("silent", EngineJobError, "exit status 7.*\nfrom step 0\nno words for this"),
        ("stray", EngineJobStopped, "stopped at a checkpoint"),
    ],
)
async def test_other_ends_are_told(home: Path, mode: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        await work(home, mode)


async def test_what_ignores_sigterm_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_jobs, "STOP_PATIENCE_S", 0.2)
    lines: list[JobLine] = []
    heard = asyncio.Event()

    def hear(line: JobLine) -> None:
        lines.append(line)
        if line.done == 2:
            heard.set()

    task = asyncio.create_task(work(home, "deaf", hear))
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert any(line.stage == "checkpoint" for line in lines)
    assert children_of(os.getpid()) == []


async def test_a_command_that_is_not_there_is_named(home: Path) -> None:
    with pytest.raises(EngineJobError, match="/no/such/program could not be started: No such file"):
        await run_engine_job(
            ["/no/such/program"], "quantize", {}, kernel_cache=home, on_line=lambda line: None, on_log=lambda text: None
        )


@pytest.mark.parametrize("text", ["hello", "5", "[]", '{"done": 1}', '{"stage": 3}', "{"])
def test_what_is_no_line_of_the_protocol_is_left_to_the_log(text: str) -> None:
    assert parse_line(text) is None


# ---- the command ----------------------------------------------------------------------------------------------------


def command(home: Path, *arguments: str, mode: str = "normal") -> tuple[list[str], dict[str, str]]:
    start = [sys.executable, "-c", "from app.cli import main; main()", "quantize", MODEL, "--home", str(home)]
    return [*start, *arguments], {**os.environ, "PIZARRA_JOBS_COMMAND": " ".join(job_command(mode))}


def steps_done(home: Path) -> str:
    """What the stand-in has kept of its work; "" before there is anything."""
    steps = home / "tmp" / "quantize" / f"{MADE}.partial" / "steps"
    return steps.read_text() if steps.exists() else ""


def test_the_command_stops_at_a_checkpoint_and_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv, environment = command(home, "--format", "awq", "--group-size", "32", mode="slow")
    process = subprocess.Popen(argv, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        Client.until(lambda: steps_done(home) == "2", 30)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(20) == 130
    finally:
        process.kill()
    assert "layers 1" in rest
    assert "The same command goes on from there" in rest
    assert "Traceback" not in rest
    monkeypatch.setenv("PIZARRA_JOBS_COMMAND", " ".join(job_command()))
    done = run("quantize", MODEL, "--home", str(home), "--format", "awq", "--group-size", "32")
    assert done.exit_code == 0, done.stderr
    assert "from step 2" in done.stderr
    assert "perplexity_after: 12.75" in done.stdout
    assert f"{MADE} is on disk: {home / 'models' / MADE}" in done.stdout


def test_work_ends_when_its_reader_was_killed(home: Path) -> None:
    argv, environment = command(home, "--format", "awq", "--group-size", "32", mode="slow")
    process = subprocess.Popen(argv, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    Client.until(lambda: steps_done(home) != "", 30)
    workers = children_of(process.pid)
    process.kill()
    process.wait(10)
    assert workers
    psutil.wait_procs(workers, timeout=10)
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--format", "exl2"), "--format 'exl2': known are awq, gptq, compressed-tensors"),
        (("--format", "awq", "--method", "rtn"), "--method 'rtn': known are awq, gptq"),
        (("--format", "awq", "--calibration", "/nowhere"), "there is no text file /nowhere"),
        (("--format", "awq", "--group-size", "48"), "the model's 64 inputs do not divide by it"),
        (("--format", "awq", "--output-id", MODEL), f"there is a model {MODEL} already"),
    ],
)
def test_what_the_command_refuses(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("PIZARRA_JOBS_COMMAND", " ".join(job_command()))
    done = run("quantize", MODEL, "--home", str(home), *arguments)
    assert done.exit_code == 1
    assert says in done.stderr


def test_two_at_once_do_not_write_into_one_output(client: Client, home: Path) -> None:
    (home / "tmp" / "quantize").mkdir()
    with alone(home / "tmp" / "quantize" / MADE, MADE):
        job = quantize(client)
    assert (job["state"], "is being made already" in job["error"]) == ("failed", True)
    assert quantize(client)["state"] == "succeeded"


def test_what_was_complete_and_not_moved_is_moved(client: Client, home: Path) -> None:
    left = home / "tmp" / "quantize" / MADE
    shutil.copytree(home / "models" / MODEL, left)
    job = quantize(client)
    assert (job["state"], job["result"]["model_id"], job["log"]) == ("succeeded", MADE, [])
    assert not left.exists()
