"""A drafter's training without a model: speaks engine.jobs' protocol, and makes a folder that looks like a drafter.

Run in place of `python -m engine.jobs`, with the job's name as the last argument. `--mode slow` waits at its second
step. It keeps what it was told and a checkpoint in `output`.partial, and goes on from there; with `minutes` given it
ends after two steps, unfinished, and with the seed 14 before it has made anything.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path

STEPS = 4


def say(stage: str, done: int = 0, message: str = "", **more: object) -> None:
    print(json.dumps({"stage": stage, "done": done, "total": STEPS, "message": message, **more}), flush=True)


def stop() -> None:
    say("stopped", message="stopped at a checkpoint")
    sys.exit(3)


def run(mode: str, arguments: dict[str, object]) -> None:
    output = Path(str(arguments["output"]))
    if arguments["seed"] == 13:
        say("failed", message="seed 13: this model has bad luck")
        sys.exit(1)
    partial = Path(f"{output}.partial")
    partial.mkdir(exist_ok=True)
    if arguments["seed"] == 14:
        reason = "the 1 minutes were over while the model wrote text"
        say("done", 0, reason, result={"output": "", "finished": False, "reason": reason})
        return
    (partial / "arguments.json").write_text(json.dumps(arguments))
    kept = partial / "steps"
    first = int(kept.read_text()) if kept.exists() else 0
    print(f"from step {first}", file=sys.stderr, flush=True)
    last = STEPS if arguments["minutes"] is None else min(STEPS, first + 2)
    for step in range(first, last):
        say("train", step + 1, f"step {step}")
        say("measured", step + 1, json.dumps({"greedy": [0.1 * (step + 1)]}))
        kept.write_text(str(step + 1))
        while step == 1 and mode == "slow":
            time.sleep(0.02)
            say("train", step + 1, f"step {step}")
    output.mkdir()
    (output / "config.json").write_text(json.dumps({"pizarra": {"kind": arguments["kind"]}, "steps": last}))
    if last == STEPS:
        shutil.rmtree(partial)
    result = {"output": str(output), "finished": last == STEPS, "greedy": [0.1 * last]}
    say("done", last, f"{output}: trained", result=result)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="normal")
    parser.add_argument("name", choices=["train-drafter"])
    mode = parser.parse_args().mode
    signal.signal(signal.SIGTERM, lambda *_: stop())
    run(mode, json.load(sys.stdin))


if __name__ == "__main__":
    main()
