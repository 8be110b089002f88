"""How much of what rounding to 4 bits loses AWQ and GPTQ win back: on the default model, and on one trained for it.

Runs the job `quantize` for each and prints its figures as a Markdown table. What is finished is kept in the work folder
and not done again; an interrupted run goes on where it stopped (texts, training steps, layers).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.decode import default_model
from bench.tiny_model import OTHER_TEXT, train, write_texts

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".cache" / "quantise"
CASES: dict[str, dict[str, Any]] = {
    "AWQ": {"format": "awq", "method": "awq"},
    "GPTQ": {"format": "gptq", "method": "gptq"},
    "GPTQ, act order": {"format": "gptq", "method": "gptq", "desc_act": True},
}


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.quantise", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="the default model's GGUF file, fetched if absent")
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument(
        "--text-rows", type=int, default=200, help="rows that the default model writes for the tiny one"
    )
    parser.add_argument("--only", choices=("default", "tiny"))
    arguments = parser.parse_args()
    model = arguments.model or default_model()
    shared = {"group_size": arguments.group_size, "rows": arguments.rows, "num_threads": arguments.threads}
    rows: list[tuple[str, str, dict[str, Any]]] = []
    if arguments.only != "tiny":
        rows += _results("default model", arguments.work, model, arguments.cases, shared)
    if arguments.only != "default":
        texts, tiny = arguments.work / "texts", arguments.work / "tiny-model"
        write_texts(model, texts, arguments.text_rows, arguments.threads)
        train(texts, tiny)
        own = shared | {"calibration": str(texts / OTHER_TEXT)}
        rows += _results("tiny fp32 model", arguments.work, tiny, arguments.cases, own)
    _print_table(rows, arguments.group_size)


def _results(
    label: str, work: Path, model: Path, cases: list[str], shared: dict[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name in cases:
        yield label, name, _run(work, label.split()[0], model, CASES[name] | shared)


def _run(work: Path, label: str, model: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """The figures of one quantisation, kept in a file beside its output."""
    work.mkdir(parents=True, exist_ok=True)
    order = "-order" if arguments.get("desc_act") else ""
    name = f"{label}-{arguments['format']}-{arguments['group_size']}{order}-{arguments['rows']}"
    kept, output = work / f"{name}.json", work / name
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    start = time.monotonic()
    command = [sys.executable, "-m", "engine.jobs", "quantize"]
    given = json.dumps({"model": str(model.absolute()), "output": str(output.absolute())} | arguments)
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdin:
        stdin.write(given)
        stdin.seek(0)
        job = subprocess.Popen(command, cwd=ROOT, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment)
        assert job.stdout is not None
        line: dict[str, Any] = {}
        for text in job.stdout:
            line = json.loads(text)
            print(f"{name}: {line['stage']} {line['done']}/{line['total']} {line['message']}", flush=True)
    if job.wait() != 0:
        raise SystemExit(f"{name}: {line.get('message')}")
    result: dict[str, Any] = line["result"] | {"seconds": time.monotonic() - start}
    kept.write_text(json.dumps(result, indent=2))
    return result


def _print_table(rows: list[tuple[str, str, dict[str, Any]]], group_size: int) -> None:
    print(f"\n4 bits, groups of {group_size}, {datetime.datetime.now(datetime.UTC).date()}\n")
    heads: tuple[str, ...] = ("model", "method", "base", "rounded", "quantised", "recovered", "divergence removed")
    heads += ("calibrated on", "measured on", "peak memory")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for model, name, found in rows:
        shares = [_share(found["recovered"]), _share(found["divergence_removed"])]
        figures = (found["perplexity_base"], found["perplexity_rtn"], found["perplexity"])
        tokens = (found["calibration_tokens"], found["held_out_tokens"])
        cells = [model, name, *(f"{one:.3f}" for one in figures), *shares, *(f"{one:,} tokens" for one in tokens)]
        print(f"| {' | '.join(cells)} | {found['peak_memory_bytes'] / 2**20:.0f} MiB |")


def _share(value: float | None) -> str:
    return "none lost" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
