"""The protocol of engine.jobs, whatever the job."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import jobs
from engine.jobs import EXIT_FAILED, EXIT_STOPPED, Report, Reporter, run_job

ROOT = Path(__file__).resolve().parents[2]


def counting(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    for index in range(arguments["steps"]):
        report("count", index, arguments["steps"], "counting")
        if arguments.get("fail_at") == index:
            raise ValueError("it fell over")
    return {"message": "counted", "steps": arguments["steps"]}


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(jobs, "_resolve", lambda name: counting)

    def run(arguments: Any, reporter: Reporter | None = None) -> tuple[int, list[dict[str, Any]]]:
        stream = io.StringIO()
        made = reporter or Reporter(stream)
        made._stream = stream
        status = run_job("count", json.dumps(arguments), made)
        return status, [json.loads(line) for line in stream.getvalue().splitlines()]

    return run


def test_lines_of_progress_and_then_the_result(count: Any) -> None:
    status, lines = count({"steps": 3})
    assert status == 0
    assert [line["stage"] for line in lines] == ["count", "count", "count", "done"]
    assert lines[-1] == {"stage": "done", "done": 2, "total": 3, "message": "counted", "result": {"steps": 3}}


def test_the_same_count_is_not_said_at_once_again() -> None:
    stream = io.StringIO()
    reporter = Reporter(stream)
    for _ in range(50):
        reporter("work", 1, 2, "still")
    assert len(stream.getvalue().splitlines()) == 1


def test_a_stop_ends_at_the_next_report(count: Any) -> None:
    reporter = Reporter(io.StringIO())
    reporter.stop(15, None)
    status, lines = count({"steps": 3}, reporter)
    assert (status, [line["stage"] for line in lines]) == (EXIT_STOPPED, ["stopped"])


def test_a_reader_that_is_gone_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(jobs, "_resolve", lambda name: counting)
    assert run_job("count", '{"steps": 3}', Reporter(Closed())) == EXIT_STOPPED


def test_an_unexpected_error_is_named(count: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = count({"steps": 3, "fail_at": 1})
    assert status == EXIT_FAILED
    assert lines[-1]["message"] == "ValueError: it fell over"
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text", "said"), [("paint", "{}", "known are"), ("quantize", "[1]", "JSON object")])
def test_a_call_that_means_nothing_is_refused(name: str, text: str, said: str) -> None:
    stream = io.StringIO()
    assert run_job(name, text, Reporter(stream)) == EXIT_FAILED
    assert said in json.loads(stream.getvalue())["message"]


def test_the_process_speaks_the_protocol() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine.jobs", "quantize"],
        cwd=ROOT,
        input="not JSON",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_FAILED
    assert json.loads(done.stdout)["stage"] == "failed"
    assert "not JSON" in json.loads(done.stdout)["message"]
