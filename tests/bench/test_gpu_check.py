"""The GPU check without a GPU: its dry run with our other packages absent, its clock, and what it says of failures."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu_check
from bench.gpu_check import DRY_PLANS, PLANS, TOTAL_S, Plan
from bench.gpu_parts import same_bits
from bench.gpu_parts.report import Machine, Part, markdown
from bench.gpu_parts.task import LEFT_OUT, MISSED, RIGHT, WRONG, Row, Task, read_rows, verdict
from kernels.registry import KERNELS

ROOT = Path(__file__).resolve().parents[2]
ABSENT = (
    "msgspec",
    "xgrammar",
    "gguf",
    "fastapi",
    "gradio",
    "sqlalchemy",
    "psutil",
    "pydantic",
)  # as on a lent machine
HIDE = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.split(".")[0] in {ABSENT!r} else find(name, *more)
"""
MACHINE = Machine("today", "a card", "torch 2", "abc", dry=False)


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a dry run reports, in processes without our other packages."""
    absent, out = tmp_path_factory.mktemp("absent"), tmp_path_factory.mktemp("out")
    (absent / "sitecustomize.py").write_text(HIDE)
    environment = os.environ | {"PYTHONPATH": str(absent), "OUT": str(out)}
    command = ["sh", "scripts/gpu_check.sh", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (out / "gpu-check.md").read_text() in done.stdout
    return dict(json.loads((out / "gpu-check.json").read_text()))


def rows_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for part in report["parts"] for row in part["rows"]}


@pytest.mark.timeout(400)
def test_a_dry_run_does_every_part(dry_run: dict[str, Any]) -> None:
    rows = rows_of(dry_run)
    assert dry_run["machine"]["dry"] is True
    assert [part["name"] for part in dry_run["parts"]] == [plan.name for plan in DRY_PLANS]
    for op in KERNELS:
        for dtype in ("float16", "float32"):
            served = "triton_ops" in KERNELS[op]
            assert rows[f"{op}, {dtype}"]["verdict"] == (RIGHT if served else LEFT_OUT)
    timed = {name.partition(",")[0] for name, row in rows.items() if "us" in row["figures"]}
    assert timed == {op for op in KERNELS if "triton_ops" in KERNELS[op]} - {"prepare_group_quant"}
    for kind in ("tiny, float32", "tiny, 4 bits"):
        assert "tok/s" in rows[f"{kind}, batch 2, no graphs"]["figures"]
        assert rows[f"{kind}: 2 rows at once against 2 steps"]["verdict"] == RIGHT
        assert rows[f"{kind}: batch 1 against 2"]["verdict"] == RIGHT
    for many in ("chunk", "batch"):
        found = rows[f"tiny, float32: 1 row against a {many} of 4, 17 keys"]
        assert found["verdict"] == RIGHT
        assert found["note"] == "attention deals its splits among 2 programs, and 1"
    assert "tok/s" in rows["tiny, float32, transformers, batch 1, plain"]["figures"]
    assert rows["float32, KV cache auto"]["verdict"] == RIGHT
    assert rows["float32, KV cache auto: exactness"]["verdict"] == RIGHT


@pytest.mark.timeout(400)
def test_a_dry_run_says_what_it_leaves_out(dry_run: dict[str, Any]) -> None:
    rows = rows_of(dry_run)
    assert rows["memcheck"]["verdict"] == LEFT_OUT
    assert rows["tiny, float32, CUDA graphs"]["verdict"] == LEFT_OUT


def targets(plans: Sequence[Plan]) -> list[str]:
    return [target for plan in plans for child in plan.children for target in child]


@pytest.mark.parametrize("target", sorted(set(targets([*PLANS, *DRY_PLANS]))))
def test_every_target_exists(target: str) -> None:
    module, function, *arguments = target.split(":")
    found = getattr(importlib.import_module(f"bench.gpu_parts.{module}"), function)
    inspect.signature(found).bind("task", *arguments)


def test_the_budget_and_the_order() -> None:
    """Ten minutes at most; every function also in the dry run; the 8 B model in bf16 before all other whole models."""
    assert TOTAL_S <= 580

    def functions(plans: Sequence[Plan]) -> set[str]:
        return {":".join(target.split(":")[:2]) for target in targets(plans)}

    assert functions(PLANS) == functions(DRY_PLANS)
    whole = [target for target in targets(PLANS) if target.startswith(("end_to_end", "peer"))]
    assert whole[0] == "end_to_end:decode:8B:numbers"
    assert targets(PLANS)[-1] == "sanitizer:memcheck"


def test_without_a_gpu_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())


def run_scripts(
    scripts: dict[str, str], out: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 30.0
) -> dict[str, Part]:
    """Parts whose only child is a Python script, which finds the path of its rows in sys.argv[1]."""

    def command(targets: Sequence[str], rows: Path, seconds: float, *, dry: bool) -> list[str]:
        return [sys.executable, "-c", scripts[targets[0]], str(rows)]

    monkeypatch.setattr(gpu_check, "child_command", command)
    plans = [Plan(name, ((name,),), seconds) for name in scripts]
    return {part.name: part for part in gpu_check._run_all(plans, MACHINE, out, TOTAL_S, dry=False)}


WRITE_A_ROW = 'import sys; open(sys.argv[1], \'a\').write(\'{"name": "row", "verdict": "right"}\\n\'); '


def test_a_failing_part_costs_its_own_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "raises": WRITE_A_ROW + "raise ValueError('no such kernel')",
        "crashes": WRITE_A_ROW + "import os; os.kill(os.getpid(), 11)",
        "fine": WRITE_A_ROW,
    }
    parts = run_scripts(scripts, tmp_path, monkeypatch)
    assert parts["raises"].fault == "ended with status 1: ValueError: no such kernel"
    assert parts["crashes"].fault.startswith("ended with status -11")
    assert parts["fine"].fault == ""
    assert "Traceback" in parts["raises"].log
    assert parts["fine"].log == ""
    assert all(part.rows == (Row("row", verdict=RIGHT),) for part in parts.values())
    assert [part.wrong for part in parts.values()] == [True, True, False]
    held = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [part["name"] for part in held["parts"]] == list(scripts)
    assert "| raises | " in (tmp_path / "gpu-check.md").read_text()


def test_a_part_that_hangs_is_ended_and_its_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {"hangs": WRITE_A_ROW + "import time; time.sleep(600)"}
    part = run_scripts(scripts, tmp_path, monkeypatch, seconds=5.0)["hangs"]
    assert part.fault == "out of time"
    assert 4.5 < part.seconds < 15
    assert part.rows == (Row("row", verdict=RIGHT),)
    assert part.wrong


def test_a_part_without_time_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = run_scripts({"late": "raise SystemExit(3)"}, tmp_path, monkeypatch, seconds=1.0)["late"]
    assert part.fault == "not run: out of time"


@pytest.mark.parametrize(
    ("rows", "fault", "binding", "wrong"),
    [
        ((Row("a", verdict=RIGHT),), "", True, False),
        ((Row("a", verdict=WRONG),), "", True, True),
        ((Row("a", verdict=WRONG),), "", False, True),
        ((), "out of time", True, True),
        ((), "out of time", False, False),
        ((Row("a", verdict=verdict(0.5, 0.7)),), "", True, False),
    ],
)
def test_what_is_wrong(rows: tuple[Row, ...], fault: str, binding: bool, wrong: bool) -> None:
    assert Part("part", 1, 1, fault, rows, binding).wrong is wrong


def test_targets_are_judged() -> None:
    assert verdict(0.75, 0.75) == "target met (75%)"
    assert verdict(0.74, 0.75).startswith(MISSED)


def test_the_table_has_the_columns_of_its_rows() -> None:
    rows = (Row("a | b", {"us": "3", "rate": "2 GB/s"}, "", "slow"), Row("c", {"rate": "1 GB/s"}, RIGHT))
    text = markdown(MACHINE, [Part("part", 9, 1, "", rows)])
    assert (
        "| | us | rate | verdict |\n|---|---|---|---|\n| a \\| b | 3 | 2 GB/s | slow |\n| c |  | 1 GB/s | right |"
        in text
    )


@pytest.mark.parametrize(("differs", "both_ways"), [(True, True), (False, False), (False, True)])
def test_other_bits_are_wrong_and_so_is_one_way_for_both(differs: bool, both_ways: bool, tmp_path: Path) -> None:
    task = Task(dry=True, ends=0.0, rows=tmp_path / "rows")
    expected, found = torch.zeros(3), torch.tensor([0.0, 0.0, 1e-7 * differs])
    same_bits._tell(task, "label", [expected], [found], both_ways=both_ways)
    (row,) = read_rows(task.rows)
    assert row.verdict == (RIGHT if both_ways and not differs else WRONG)


def test_rows_survive_a_cut_off_line(tmp_path: Path) -> None:
    task = Task(dry=True, ends=0.0, rows=tmp_path / "rows")
    task.add(Row("one", {"us": "1"}))
    assert not task.fits("two", 5)
    with task.rows.open("a") as stream:
        stream.write('{"name": "thr')
    assert [(row.name, row.verdict) for row in read_rows(task.rows)] == [("one", ""), ("two", LEFT_OUT)]
