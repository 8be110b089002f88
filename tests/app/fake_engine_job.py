"""Work without a model: speaks engine.jobs' protocol, and makes its output by copying the model that it was given.

Run in place of `python -m engine.jobs`, with the job's name as the last argument. `--mode` makes it misbehave: "slow"
waits at its second step, "crash" dies by SIGKILL there, "silent" ends without a word, "stray" stops by itself, "deaf"
ignores SIGTERM. A group size that does not divide 64 is refused as the real one would. It keeps a checkpoint in
`output`.partial after every step and goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

STEPS = 4
FIGURES = {"perplexity_before": 12.5, "perplexity_after": 12.75}


def say(stage: str, done: int = 0, message: str = "", **more: object) -> None:
    print(json.dumps({"stage": stage, "done": done, "total": STEPS, "message": message, **more}), flush=True)


def stop() -> None:
    say("stopped", message="stopped at a checkpoint")
    sys.exit(3)


def run(mode: str, arguments: dict[str, object]) -> None:
    output, model = Path(str(arguments["output"])), Path(str(arguments["model"]))
    size = int(str(arguments["group_size"]))
    if size < 1 or 64 % size:
        say("failed", message=f"group_size {size}: the model's 64 inputs do not divide by it; choose 64 or 32")
        sys.exit(1)
    partial = Path(f"{output}.partial")
    partial.mkdir(exist_ok=True)
    (partial / "arguments.json").write_text(json.dumps(arguments))
    kept = partial / "steps"
    first = int(kept.read_text()) if kept.exists() else 0
    print(f"from step {first}", file=sys.stderr, flush=True)
    for step in range(first, STEPS):
        if step == 1 and mode == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 1 and mode == "silent":
            print("no words for this", file=sys.stderr, flush=True)
            sys.exit(7)
        if step == 1 and mode == "stray":
            stop()
        say("layers", step + 1, f"layer {step}")
        kept.write_text(str(step + 1))
        while step == 1 and mode in ("slow", "deaf"):
            time.sleep(0.02)
            say("layers", step + 1, f"layer {step}")
    shutil.copytree(model, partial / "model")
    (partial / "model").rename(output)
    shutil.rmtree(partial)
    say("done", STEPS, f"{output}: made", result={**FIGURES, "group_size": size, "output": str(output)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="normal")
    parser.add_argument("name", choices=["quantize"])
    mode = parser.parse_args().mode
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else lambda *_: stop())
    print("a library says hello", flush=True)
    run(mode, json.load(sys.stdin))


if __name__ == "__main__":
    main()
