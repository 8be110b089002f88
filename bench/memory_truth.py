"""Whether loading takes the memory that was said: `make bench-memory`.

For every storage format, on the default model and on random checkpoints made on the fly: what the headers say the
weights will take, what they take in a real engine process, the estimate of the whole before the load, and what the
process holds after a full-sized step. Fails where weights are off by more than 5 % or the whole by more than 10 %.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.fit import estimate
from bench.decode import default_model
from bench.random_checkpoint import FORMATS, SHAPES, write_random
from engine.checkpoint import read_checkpoint
from engine.config import GIB, LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.protocol import AddRequest, EngineReady
from tests.engine.spawned import Spawned

WEIGHTS_SLACK, WHOLE_SLACK = 0.05, 0.10
OPTIONS: dict[str, Any] = {"max_model_len": 4096}
BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Truth:
    """Bytes: of the weights by the headers and loaded; of the whole process estimated and measured."""

    name: str
    num_parameters: int
    weights_told: int
    weights_loaded: int
    whole_told: int
    whole_measured: int

    @property
    def weights_off(self) -> float:
        return self.weights_loaded / self.weights_told - 1

    @property
    def whole_off(self) -> float:
        return self.whole_told / self.whole_measured - 1

    @property
    def holds(self) -> bool:
        return abs(self.weights_off) <= WEIGHTS_SLACK and abs(self.whole_off) <= WHOLE_SLACK

    def line(self) -> str:
        bits = 8 * self.weights_loaded / self.num_parameters
        told, found = self.whole_told / GIB, self.whole_measured / GIB
        return (
            f"| {self.name} | {self.num_parameters / 1e6:.0f} M | {bits:.2f} | {self.weights_loaded / 1e6:.1f} MB | "
            f"{self.weights_off:+.1%} | {told:.2f} GiB | {found:.2f} GiB | {self.whole_off:+.1%} |"
        )


def measure(name: str, path: Path) -> Truth:
    """Loads the checkpoint in an engine process of its own and runs one step as large as it gets."""
    info, options = read_checkpoint(path), LoadOptions(**OPTIONS)
    memory = psutil.virtual_memory()
    told = estimate(info, options, memory.available, memory.total, "cpu")
    if not told.fits:
        raise RuntimeError(f"{name}: {told.message}")
    engine = Spawned(path, **OPTIONS)
    try:
        ready = engine.until(EngineReady)
        prompt = [index % info.config.vocab_size for index in range(options.max_num_batched_tokens)]
        engine.send(AddRequest("full", prompt, SamplingParams(temperature=1.0, max_tokens=2, ignore_eos=True)))
        rows = list(engine.rows("full"))
        if rows[-1].error is not None:
            raise RuntimeError(f"{name}: {rows[-1].error}")
        held = psutil.Process(engine.process.pid).memory_full_info().uss
    finally:
        engine.process.kill()
        engine.process.wait()
    weights = info.weights_bytes(BF16_BYTES)
    return Truth(name, info.num_parameters, weights, ready.memory.weights_bytes, told.total_bytes, held)


def main() -> int:
    """Measures, prints, and says by its status whether all holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory_truth", description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=["0.5B", "1B"])
    arguments = parser.parse_args()
    print(f"{datetime.datetime.now().astimezone():%Y-%m-%d}, max_model_len {OPTIONS['max_model_len']}\n")
    print("| checkpoint | weights | bits each | loaded | off | estimate of the whole | measured | off |")
    print("|---|---|---|---|---|---|---|---|")
    found = [measure("default model, Q4_1 and Q8_0", default_model())]
    print(found[-1].line(), flush=True)
    for size in arguments.sizes:
        for form in arguments.formats:
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(f"{form}, {size}", write_random(Path(folder) / "model", form, size)))
            print(found[-1].line(), flush=True)
    broken = [truth.name for truth in found if not truth.holds]
    if broken:
        print(f"\nBeyond {WEIGHTS_SLACK:.0%} or {WHOLE_SLACK:.0%}: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
