"""Training a drafter from the app's side: the job, its progress, stopping, going on; and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.app.test_serve import ROOT, run

FAKE_JOB = Path(__file__).with_name("fake_train_job.py")
MADE = f"{MODEL}-eagle"
CALL = f"/api/models/{MODEL}/train-drafter"


def job_command(mode: str = "normal") -> str:
    return f"{sys.executable} {FAKE_JOB} --mode {mode}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with serving(settings(home)) as client:
        yield client


def settings(home: Path, mode: str = "normal") -> Any:
    return make_settings(home, jobs_command=job_command(mode))


def train(client: Client, **changes: Any) -> dict[str, Any]:
    return client.job(client.post(CALL, json=changes))


def steps_of(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["steps"])


def test_a_job_makes_a_drafter(client: Client, home: Path) -> None:
    job = train(client)
    assert (job["state"], job["kind"], job["subject"], job["stage"]) == ("succeeded", "train-drafter", MODEL, "done")
    folder = home / "drafters" / MADE
    result = job["result"]
    assert (result["drafter_id"], result["model_id"], result["path"]) == (MADE, MODEL, str(folder))
    assert result["finished"] is True
    assert result["figures"]["greedy"] == [0.4]
    assert job["message"] == f"{folder}: trained"
    assert result["size_bytes"] == (folder / "config.json").stat().st_size
    assert '{"greedy": [0.1]}' in job["log"]
    assert steps_of(folder) == 4
    assert list((home / "tmp" / "train-drafter").glob("*.partial")) == []


def test_a_drafter_is_trained_on_in_stretches_and_replaced(client: Client, home: Path) -> None:
    job = train(client, minutes=1)
    assert (job["state"], job["result"]["finished"]) == ("succeeded", False)
    assert steps_of(home / "drafters" / MADE) == 2
    job = train(client, minutes=1)
    assert ("from step 2" in job["log"], job["result"]["finished"]) == (True, True)
    assert steps_of(home / "drafters" / MADE) == 4
    assert [path.name for path in (home / "drafters").iterdir()] == [MADE]


def test_a_stretch_that_was_too_short_for_a_drafter_says_so_and_leaves_the_older_one(
    client: Client, home: Path
) -> None:
    train(client, minutes=1)
    job = train(client, minutes=1, seed=14)
    assert (job["state"], job["result"]["finished"], job["result"]["path"]) == ("succeeded", False, "")
    assert job["message"] == "the 1 minutes were over while the model wrote text"
    assert steps_of(home / "drafters" / MADE) == 2
    told = client.get("/api/events").json()["events"][0]["message"]
    assert told == f"{MADE} for {MODEL} is no drafter yet: {job['message']}"


def test_the_process_is_told_the_wish(client: Client, home: Path, tmp_path: Path) -> None:
    texts, begun = tmp_path / "texts.txt", tmp_path / "begun"
    texts.write_text("Of wind and tide.")
    begun.mkdir()
    wish = {"kind": "medusa", "tokens": 5000, "minutes": 0.5, "passes": 2, "seed": 7, "texts": str(texts)}
    train(client, **wish, start_from=str(begun), output_id="mine")
    staging = home / "tmp" / "train-drafter" / "mine"
    told = json.loads((staging.with_name("mine.partial") / "arguments.json").read_text())
    assert told == {
        **wish,
        "model": str(home / "models" / MODEL),
        "model_id": MODEL,
        "output": str(staging),
        "warm_start": str(begun),
    }


def test_what_the_process_refuses_is_the_jobs_error(client: Client) -> None:
    job = train(client, seed=13)
    assert (job["state"], job["error"]) == ("failed", "seed 13: this model has bad luck")


def test_a_cancelled_job_goes_on_where_it_stopped(home: Path) -> None:
    with serving(settings(home, "slow")) as client:
        started = client.post(CALL, json={}).json()["job_id"]
        client.until(lambda: client.get(f"/api/jobs/{started}").json()["done"] == 2)
        row = next(row for row in client.get("/api/models").json()["models"] if row["id"] == MODEL)
        assert row["job_id"] == started
        assert client.post(CALL, json={}).json()["job_id"] == started
        other = client.post(CALL, json={"seed": 4})
        assert (other.status_code, started in other.json()["remedy"]) == (409, True)
        gone = client.delete(f"/api/models/{MODEL}")
        assert (gone.status_code, started in gone.json()["remedy"]) == (409, True)
        client.post(f"/api/jobs/{started}/cancel")
        job = client.until(
            lambda: found if (found := client.get(f"/api/jobs/{started}").json())["finished_at"] else None
        )
        assert (job["state"], job["message"]) == ("cancelled", "stopped at a checkpoint")
        assert not (home / "drafters" / MADE).exists()
    with serving(settings(home)) as client:
        job = train(client)
    assert (job["state"], "from step 2" in job["log"]) == ("succeeded", True)


@pytest.mark.parametrize(
    ("model", "changes", "status", "says"),
    [
        ("nothing", {}, 404, "there is no model 'nothing'"),
        ("broken", {}, 409, "broken cannot be read"),
        (MODEL, {"kind": "eagle2"}, 400, "kind"),
        (MODEL, {"tokens": 1}, 400, "tokens"),
        (MODEL, {"minutes": 0}, 400, "minutes"),
        (MODEL, {"speed": 1}, 422, "unknown field 'speed'"),
        (MODEL, {"texts": "/nowhere/text"}, 400, "there is no text file /nowhere/text"),
        (MODEL, {"start_from": "/nowhere/d"}, 400, "there is no folder of a drafter /nowhere/d"),
        (MODEL, {"output_id": "../x"}, 409, "is not a model id"),
        (MODEL, {"output_id": "x.partial"}, 409, "kept for unfinished work"),
        (MODEL, {"output_id": "taken"}, 400, "is there already and is no drafter"),
    ],
)
def test_bad_wishes_are_this_calls_errors(
    client: Client, home: Path, model: str, changes: dict[str, Any], status: int, says: str
) -> None:
    (home / "models" / "broken").mkdir()
    (home / "drafters" / "taken").mkdir(parents=True)
    response = client.post(f"/api/models/{model}/train-drafter", json=changes)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]
    assert client.get("/api/jobs").json()["jobs"] == []


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_stops_at_a_checkpoint_and_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [sys.executable, "-c", "from app.cli import main; main()", "train-drafter", MODEL, "--home", str(home)]
    environment = {**os.environ, "PIZARRA_JOBS_COMMAND": job_command("slow")}
    steps = home / "tmp" / "train-drafter" / f"{MADE}.partial" / "steps"
    process = subprocess.Popen(argv, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        Client.until(lambda: steps.exists() and steps.read_text() == "2", 30)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(20) == 130
    finally:
        process.kill()
    assert 'measured 1 of 4 {"greedy": [0.1]}' in rest
    assert "The same command goes on from there" in rest
    assert "Traceback" not in rest
    monkeypatch.setenv("PIZARRA_JOBS_COMMAND", job_command())
    done = run("train-drafter", MODEL, "--home", str(home))
    assert done.exit_code == 0, done.stderr
    assert "from step 2" in done.stderr
    assert f"{MADE} is on disk: {home / 'drafters' / MADE}" in done.stdout


def test_the_command_writes_where_it_is_told(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIZARRA_JOBS_COMMAND", job_command())
    done = run("train-drafter", MODEL, "--home", str(home), "--minutes", "1", "--output", str(tmp_path / "mine"))
    assert done.exit_code == 0, done.stderr
    assert "the same command trains on" in done.stdout
    assert steps_of(tmp_path / "mine") == 2


def test_the_command_says_where_the_time_was_too_short(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIZARRA_JOBS_COMMAND", job_command())
    done = run("train-drafter", MODEL, "--home", str(home), "--seed", "14")
    assert (done.exit_code, done.stdout) == (
        0,
        f"{MADE}: no drafter yet, the 1 minutes were over while the model wrote text.\n",
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kind", "eagle2"), "--kind 'eagle2': known are eagle, medusa"),
        (("--texts", "/nowhere"), "there is no text file /nowhere"),
        (("--from", "/nowhere"), "there is no folder of a drafter /nowhere"),
        (("--output", "/nowhere/d"), "there is no folder /nowhere to write into"),
        (("--seed", "13"), "this model has bad luck"),
    ],
)
def test_what_the_command_refuses(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("PIZARRA_JOBS_COMMAND", job_command())
    done = run("train-drafter", MODEL, "--home", str(home), *arguments)
    assert done.exit_code == 1
    assert says in done.stderr
