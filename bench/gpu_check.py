"""What only a GPU can show, in one run of ten minutes at most: `make gpu-check`.

Needs torch, triton and transformers, and none of our other packages. Each part runs in a process of its own, so that
one that crashes or hangs costs the rows that it has not written yet and no others; a part has a budget of seconds, and
what earlier parts left of theirs. `gpu-check.json` and `gpu-check.md` are written anew every few seconds and after each
part, in $OUT or docs/.

Exit status 0: all is right (a target that was missed is said in the table); 1: something is wrong, or a part that has
to end did not; 2: there is no GPU. `--dry-run`: every part in miniature on the CPU, through Triton's interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.gpu_parts.report import Machine, Part, write_report
from bench.gpu_parts.task import Task, read_rows

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = 2
LEAST_S = 3.0  # a part that has less is not started
LOOK_EVERY_S = 5.0
MOST_LOG = 6000  # characters
DRY_S = 300.0  # nobody lends the machine of a dry run; on two cores a part takes some ten seconds
GRACE_S = 4.0  # between the end that a part is told of and the one that is forced


@dataclass(frozen=True, slots=True)
class Plan:
    """A part to run. children: processes that run at the same time, each of which does its targets one after another.

    A target is "module:function:argument:..." in bench.gpu_parts. seconds: the part's budget. binding: whether it is
    wrong that it does not end.
    """

    name: str
    children: tuple[tuple[str, ...], ...]
    seconds: float
    binding: bool = True


def _plan(name: str, target: str, seconds: float, *, binding: bool = True) -> Plan:
    return Plan(name, ((target,),), seconds, binding)


PLANS = (
    # mostly the compilation of kernels, which a process does one at a time
    Plan(
        "kernels against the reference",
        tuple(
            (f"kernels_right:check:{dtype}:{n}/3",) for dtype in ("bfloat16", "float16", "float32") for n in range(3)
        ),
        90,
    ),
    _plan("8 B, bf16", "end_to_end:decode:8B:numbers", 75),
    _plan("8 B, transformers", "peer:generate:8B", 70, binding=False),
    _plan("kernels against the roof", "against_roof:measure_all", 75),
    _plan("8 B, 4 bits", "end_to_end:decode:8B:codes", 50),
    _plan("1.7 B, bf16", "end_to_end:decode:1.7B:numbers", 30),
    _plan("1.7 B, 4 bits", "end_to_end:decode:1.7B:codes", 30),
    _plan("1.7 B, transformers", "peer:generate:1.7B", 40, binding=False),
    _plan("verified against plain decoding", "same_bits:compare", 40),
    _plan("a whole model against fp64", "whole_model:compare", 40),
    _plan("memory accesses", "sanitizer:memcheck", 30, binding=False),
)
DRY_PLANS = (
    Plan(
        "kernels against the reference",
        (("kernels_right:check:float16:0/1",), ("kernels_right:check:float32:0/1", "sanitizer:memcheck")),
        DRY_S,
    ),
    Plan(
        "whole models, and kernels against the roof",
        (
            ("against_roof:measure_all", "peer:generate:tiny", "whole_model:compare"),
            ("end_to_end:decode:tiny:numbers", "end_to_end:decode:tiny:codes", "same_bits:compare"),
        ),
        DRY_S,
    ),
)
TOTAL_S = sum(plan.seconds for plan in PLANS)  # 570: a lent machine has ten minutes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; see the module's docstring for the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="every part in miniature on the CPU, in minutes or less")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "docs"))
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all parts; budgets shrink in proportion")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts whose name contains one of these")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)  # targets: this is a child of the script
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.run:
        task = Task(dry=chosen.dry_run, ends=time.monotonic() + chosen.seconds, rows=chosen.rows)
        return _child(chosen.run, task)
    if chosen.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    machine = Machine.look(dry=chosen.dry_run)
    if machine is None:
        print("gpu-check: torch sees no CUDA device: nothing was checked", file=sys.stderr)
        return NO_GPU
    known = DRY_PLANS if chosen.dry_run else PLANS
    plans = [plan for plan in known if not chosen.only or any(word in plan.name for word in chosen.only)]
    parts = _run_all(plans, machine, chosen.out, chosen.seconds, dry=chosen.dry_run)
    print("\n" + (chosen.out / "gpu-check.md").read_text(encoding="utf-8"))
    return 1 if any(part.wrong for part in parts) else 0


def _run_all(plans: Sequence[Plan], machine: Machine, out: Path, total_s: float, *, dry: bool) -> list[Part]:
    """One part after another; the report is written all along."""
    parts: list[Part] = []
    start, planned, scale = time.monotonic(), 0.0, min(1.0, total_s / TOTAL_S)
    for plan in plans:
        planned += plan.seconds * scale
        seconds = planned - (time.monotonic() - start)
        print(f"{plan.name} ({seconds:.0f} s)", flush=True)
        for part in _run(plan, seconds, dry=dry):
            write_report(out, machine, [*parts, part])
        parts.append(part)
        if part.log:
            print(part.log, file=sys.stderr)
    return parts


def _run(plan: Plan, seconds: float, *, dry: bool) -> Iterator[Part]:
    """The part as far as it is, every few seconds and at its end, when it is over or its time is."""
    start = time.monotonic()
    if seconds < LEAST_S:
        yield Part(plan.name, plan.seconds, 0.0, "not run: out of time", binding=plan.binding)
        return
    with tempfile.TemporaryDirectory() as folder:
        children = [
            Child(targets, Path(folder) / str(number), seconds - GRACE_S, dry=dry)
            for number, targets in enumerate(plan.children)
        ]
        try:
            yield from _watch(plan, children, start + seconds)
        finally:
            for child in children:
                child.end()


def _watch(plan: Plan, children: Sequence[Child], ends: float) -> Iterator[Part]:
    """As `_run`. ends: `time.monotonic` when the children are ended."""
    start, running = time.monotonic(), True
    while running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            for child in children:
                child.process.wait(min(LOOK_EVERY_S, max(0.1, ends - time.monotonic())))
        running = time.monotonic() < ends and any(child.process.poll() is None for child in children)
        faults = ["running"] if running else [child.end() for child in children]
        found = tuple(row for child in children for row in read_rows(child.rows))
        fault = "; ".join(fault for fault in faults if fault)
        log = "" if running or not fault else "\n".join(child.log() for child in children).strip()
        yield Part(plan.name, plan.seconds, time.monotonic() - start, fault, found, plan.binding, log)


def child_command(targets: Sequence[str], rows: Path, seconds: float, *, dry: bool) -> list[str]:
    """What runs the targets in another process."""
    command = [sys.executable, "-m", "bench.gpu_check", "--run", *targets, "--rows", str(rows)]
    return [*command, "--seconds", str(seconds), *(["--dry-run"] if dry else [])]


class Child:
    """A process that does some targets."""

    def __init__(self, targets: Sequence[str], place: Path, seconds: float, *, dry: bool) -> None:
        """place: beginning of the names of its files."""
        self.rows, self._errors = place.with_suffix(".rows"), place.with_suffix(".log")
        command = child_command(targets, self.rows, seconds, dry=dry)
        with self._errors.open("wb") as stream:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=stream, start_new_session=True)

    def end(self) -> str:
        """Ends it if it still runs, with all that it started; why it did not end well, or nothing."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return "out of time"
        if self.process.returncode == 0:
            return ""
        said = self.log()
        return (
            f"ended with status {self.process.returncode}: {said.splitlines()[-1][:300] if said else 'it said nothing'}"
        )

    def log(self) -> str:
        """The end of what it said of errors."""
        return self._errors.read_text(encoding="utf-8", errors="replace").strip()[-MOST_LOG:]


def _child(targets: Sequence[str], task: Task) -> int:
    """Does the targets; one that fails does not keep the next from running."""
    status = 0
    if task.dry:
        torch.set_num_threads(1)  # on a busy machine torch's threads wait for each other longer than this work takes
    for target in targets:
        module, function, *arguments = target.split(":")
        try:
            getattr(importlib.import_module(f"bench.gpu_parts.{module}"), function)(task, *arguments)
        except Exception:  # whatever it is, it goes into the report
            print(f"{target}:\n{traceback.format_exc()}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
