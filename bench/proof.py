"""The proof of losslessness, as long as you let it: `make proof`, or `python -m bench.proof --minutes 30`.

Layers (a) and (b) are tests (exact enumeration, statistics of the compiled ops) and are run first. Layer (c) decodes
with drafts and compares with plain decoding, cell by cell, in the order of `tests.engine.spec.same_text_cells`: a
covering of all pairs of choices first. What is done is kept in docs/proof-cells.csv, a line a cell, under a hash of the
code that did it, and the next run, here or on another clone, goes on behind it. docs/proof.md is written at the end.
Exit status 1: something differed, or a proposer could not be loaded; 0 with cells left to do: the time was up.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path

import torch

from bench.code import ROOT, code_hash
from bench.decode import default_model
from bench.proof_report import Done, write_report
from engine.loading import LoadError
from tests.engine.spec.same_text import Bench, Cell
from tests.engine.spec.same_text_cells import matrix
from tests.engine.spec.same_text_drafters import drafters_of
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

CELLS = "tests/engine/spec/same*.py"  # what a cell is
STATE, REPORT = ROOT / "docs" / "proof-cells.csv", ROOT / "docs" / "proof.md"
SUMS = ("tokens", "drafted", "accepted", "preemptions", "seconds", "differences")
COLUMNS = ["code", *(field.name for field in dataclass_fields(Cell)), *SUMS]
LAYERS = {
    "(a) exact enumeration": ("tests/kernels/test_verify_proof.py", "tests/kernels/test_chain_proof.py"),
    "(b) statistics": ("tests/kernels/test_verify_statistics.py", "tests/engine/spec/test_same_text_statistics.py"),
}
MODELS = ("default", "tiny")


def main() -> None:
    """Runs what is left, as far as the time goes."""
    parser = argparse.ArgumentParser(prog="python -m bench.proof", description=__doc__)
    parser.add_argument("--minutes", type=float, default=70.0, help="stop after the cell that is on by then")
    parser.add_argument("--drafter", action="append", default=[], metavar="PROPOSER=PATH", help="of the default model")
    parser.add_argument("--proposer", action="append", default=[], help="only these (again and again); else all")
    parser.add_argument("--model", choices=MODELS, action="append", default=[], help="only these; else both")
    parser.add_argument("--cells", type=int, help="only the first so many of the matrix")
    parser.add_argument("--skip-tests", action="store_true", help="without layers (a) and (b)")
    parser.add_argument("--any-code", action="store_true", help="count cells that other code has done, too")
    parser.add_argument("--report", type=Path, default=REPORT)
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    layers = {} if arguments.skip_tests else {name: run_tests(paths) for name, paths in LAYERS.items()}
    code = code_hash(CELLS)
    cells = [
        cell
        for cell in matrix(arguments.model or MODELS)
        if not arguments.proposer or cell.proposer in arguments.proposer
    ]
    cells = cells[: arguments.cells]
    if not arguments.any_code:
        forget_other_code(code)
    finished = {one.cell.key: one for one in read_state()}
    torch.set_num_threads(1)  # as in the engine process: the kernels have threads of their own
    errors = dict(run_cells(cells, finished, code, end, arguments.drafter))
    done = [finished[cell.key] for cell in cells if cell.key in finished]
    command = " ".join(["python -m bench.proof", *sys.argv[1:]])
    write_report(arguments.report, command, layers, done, len(cells) - len(done), errors)
    differing = [one for one in done if one.differences]
    print(f"{len(done)} of {len(cells)} cells done, {len(differing)} differ, {len(errors)} proposers cannot be loaded")
    failed = differing or errors or any("failed" in outcome or "error" in outcome for outcome in layers.values())
    sys.exit(1 if failed else 0)


def run_cells(
    cells: list[Cell], finished: dict[str, Done], code: str, end: float, drafters: list[str]
) -> Iterator[tuple[str, str]]:
    """Runs the cells that are not finished until `end`; yields the proposers that cannot be loaded, and why."""
    broken: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder:
        paths = {"default": default_model(), "tiny": tiny_llama_checkpoint(Path(folder) / "tiny")}
        own: dict[tuple[str, str], Path] = drafters_of(paths, Path(folder))
        own |= {("default", name): Path(path) for name, _, path in (one.partition("=") for one in drafters)}
        bench = Bench({name: (path, {}) for name, path in paths.items()}, own)
        for number, cell in enumerate(cells):
            if time.monotonic() > end:
                return
            if cell.key in finished or (cell.model, cell.proposer) in broken:
                continue
            try:
                outcome = bench.run(cell)
            except LoadError as error:
                broken.add((cell.model, cell.proposer))
                yield f"{cell.proposer} on the {cell.model} model", f"{error.kind}: {error}"
                continue
            except Exception as error:  # a cell that dies is a difference, and the next ones are still worth running
                traceback.print_exc()
                finished[cell.key] = keep(Done(cell, code, [f"{type(error).__name__}: {error}"]))
                bench.engines.drop()
                continue
            finished[cell.key] = keep(
                Done(
                    cell,
                    code,
                    outcome.differences,
                    outcome.num_tokens,
                    outcome.num_drafted,
                    outcome.num_accepted,
                    outcome.num_preemptions,
                    outcome.seconds,
                )
            )
            if outcome.differences or number % 50 == 0:
                print(f"{number}/{len(cells)} {cell.key}: {outcome.differences or 'the same'}", flush=True)


def run_tests(paths: tuple[str, ...]) -> str:
    """pytest's last line."""
    there = [path for path in paths if (ROOT / path).exists()]
    command = [sys.executable, "-m", "pytest", "-q", *there]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout[-8000:])
    return done.stdout.strip().splitlines()[-1].strip("= ") if done.stdout.strip() else "error: no output"


def read_state() -> list[Done]:
    """Every finished cell that is kept, whichever code did it."""
    if not STATE.exists():
        return []
    with STATE.open(encoding="utf-8", newline="") as file:
        return [_done(row) for row in csv.DictReader(file)]


def keep(done: Done) -> Done:
    """Adds a finished cell to the state."""
    new = not STATE.exists()
    with STATE.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(_row(done))
    return done


def forget_other_code(code: str) -> None:
    """Leaves in the state what this code has done."""
    own = [one for one in read_state() if one.code == code]
    STATE.unlink(missing_ok=True)
    for one in own:
        keep(one)


def _row(done: Done) -> dict[str, object]:
    return {
        "code": done.code,
        **asdict(done.cell),
        "tokens": done.num_tokens,
        "drafted": done.num_drafted,
        "accepted": done.num_accepted,
        "preemptions": done.num_preemptions,
        "seconds": round(done.seconds, 2),
        "differences": "\n".join(done.differences),
    }


def _done(row: dict[str, str]) -> Done:
    cell = Cell(
        model=row["model"],
        dtype=row["dtype"],
        proposer=row["proposer"],
        k=int(row["k"]),
        temperature=float(row["temperature"]),
        seed=int(row["seed"]),
        batch=int(row["batch"]),
        kind=row["kind"],
        serving=row["serving"],
        adaptive=row["adaptive"] == "True",
    )
    return Done(
        cell,
        row["code"],
        row["differences"].split("\n") if row["differences"] else [],
        int(row["tokens"]),
        int(row["drafted"]),
        int(row["accepted"]),
        int(row["preemptions"]),
        float(row["seconds"]),
    )


if __name__ == "__main__":
    main()
