"""What a long prompt costs those who are being answered: `python -m bench.interleave`.

The engine runs in this process, so a step is a gap between two tokens of the running answer. Three things are timed in
turns: an answer alone, a 4,096-token prompt alone (a step is one chunk), and both together. The promise: the p95 of the
answer's gaps beside the prompt is at most its p95 alone plus the p95 of a chunk.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.decode import default_model
from bench.streams import percentile
from engine.config import LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.loading import load_engine

LONG_PROMPT, SHORT_PROMPT, ALONE_STEPS = 4096, 32, 64
POOL_BYTES = 256 << 20
THRESHOLDS = (0, 128)


@dataclass(frozen=True, slots=True)
class Interleaving:
    """Milliseconds at p95, medians over rounds. threshold 0: a chunk is what max_num_batched_tokens leaves."""

    threshold: int
    alone_ms: float
    chunk_ms: float
    together_ms: float

    @property
    def bound_ms(self) -> float:
        return self.alone_ms + self.chunk_ms


def measure(model: Path, threads: int, rounds: int, thresholds: Sequence[int] = THRESHOLDS) -> list[Interleaving]:
    """One line per threshold."""
    found = []
    for threshold in thresholds:
        options = LoadOptions(
            speculation="off",
            kv_cache_memory_bytes=POOL_BYTES,
            num_threads=threads,
            long_prefill_token_threshold=threshold,
        )
        engine = load_engine(model, options, lambda stage, done, total, message: None).engine
        torch.set_num_threads(1)  # as in the engine process: the kernels have threads of their own
        _round(engine, random.Random("warm-up"), long_prompt=2 * SHORT_PROMPT)
        timed = [_round(engine, random.Random(number)) for number in range(rounds)]
        medians = [statistics.median(column) * 1000 for column in zip(*timed, strict=True)]
        found.append(Interleaving(threshold, *medians))
    return found


def _round(engine: Engine, pick: random.Random, long_prompt: int = LONG_PROMPT) -> tuple[float, float, float]:
    """Seconds at p95: a step of the answer alone, a chunk alone, and a step of both."""

    def prompt(length: int) -> list[int]:
        return [pick.randrange(engine.vocab_size) for _ in range(length)]

    def add(name: str, length: int, output: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        refused = engine.add_request(name, prompt(length), sampling)
        if refused is not None:
            raise RuntimeError(f"{name}: {refused.error}")

    add("answer", SHORT_PROMPT, LONG_PROMPT)
    engine.step()
    alone = [_step(engine, "answer") for _ in range(ALONE_STEPS)]
    engine.abort_request("answer")
    add("long", long_prompt, 1)
    chunks = _steps_until_done(engine, "long")
    add("answer", SHORT_PROMPT, LONG_PROMPT)
    engine.step()
    add("long", long_prompt, 1)
    together = _steps_until_done(engine, "long", beside="answer")
    engine.abort_request("answer")
    return percentile(alone, 0.95), percentile(chunks, 0.95), percentile(together, 0.95)


def _steps_until_done(engine: Engine, name: str, beside: str | None = None) -> list[float]:
    """Seconds of each step until the request `name` has ended."""
    seconds = []
    while engine.scheduler.samples_of(name):
        seconds.append(_step(engine, beside))
    return seconds


def _step(engine: Engine, must_have: str | None) -> float:
    """Seconds of one step. RuntimeError when the running answer got no token in it."""
    start = time.perf_counter()
    rows = engine.step()
    seconds = time.perf_counter() - start
    if must_have is not None and must_have not in {row.request_id for row in rows}:
        raise RuntimeError(f"a step left {must_have!r} out")
    return seconds


def table(found: Sequence[Interleaving]) -> list[str]:
    """The lines as Markdown."""
    lines = [
        "| `long_prefill_token_threshold` | ITL p95 alone | one chunk p95 | alone + chunk | ITL p95 beside the prompt |"
    ]
    lines.append("|---|---|---|---|---|")
    for one in found:
        name = one.threshold or "0 (the step's budget, 512)"
        figures = (one.alone_ms, one.chunk_ms, one.bound_ms, one.together_ms)
        lines.append(f"| {name} | {' | '.join(f'{figure:.1f} ms' for figure in figures)} |")
    return lines


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.interleave", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="folder or file; else the default model, fetched")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--thresholds", type=int, nargs="+", default=list(THRESHOLDS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    model = arguments.model or default_model()
    print("\n".join(table(measure(model, arguments.threads, arguments.rounds, arguments.thresholds))))


if __name__ == "__main__":
    main()
