"""Pizarra under comparison: `engine.Engine` in this process, without the app; and single steps of its runner.

Owns the engine and hand-made plans. Knows nothing of who it is compared with. Invariant: steps that are held against
each other take turns, and see a warm-up first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.decode import ours
from bench.peer_protocol import by_difference, check_lengths, prefill, serve
from engine.config import MIB, LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.loading import LoadedEngine, load_engine
from engine.runner.model_runner import ModelRunner

POOL_BYTES = 512 * MIB
VERIFY_CONTEXT, SHORT_CONTEXT = 128, 32  # tokens
WARM_UP_STEPS = 4
NULL_TABLE: tuple[int, ...] = ()


class Pizarra:
    """One loaded engine."""

    loaded: LoadedEngine

    def load(self, model: str, threads: int, max_seqs: int, max_len: int) -> dict[str, Any]:
        self.options = LoadOptions(
            speculation="off",
            kv_cache_memory_bytes=POOL_BYTES,
            max_model_len=max_len,
            max_num_seqs=max_seqs,
            num_threads=threads,
            enable_prefix_caching=False,
        )
        self.loaded = load_engine(Path(model), self.options, lambda stage, done, total, message: None)
        torch.set_num_threads(1)  # as in the engine process: the kernels have threads of their own
        runner, plan = self.loaded.runner, self.loaded.plan
        kernels = ", ".join(sorted({choice.backend for choice in runner.kernels}))
        return {
            "version": "(this repository)",
            "settings": f"`Engine.step`, kernels {kernels}, {self.options.max_num_batched_tokens} tokens a step",
            "weights_bytes": runner.weights_bytes,
            "kv_bytes_per_token": plan.kv.kv_bytes / plan.kv.num_blocks / self.options.block_size,
            "exactness": self.loaded.exactness.level,
            "effective_settings": [f"{one.name}: {one.effective} ({one.reason})" for one in self.loaded.settings],
        }

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        engine = self.loaded.engine
        before = engine.counters.generation_tokens_total
        start = time.perf_counter()
        ours(engine, [list(prompt) for prompt in prompts], tokens)
        seconds = time.perf_counter() - start
        check_lengths([engine.counters.generation_tokens_total - before], 1, len(prompts) * tokens)
        return seconds

    def verify(self, rows: int, temperature: float, repeats: int) -> dict[str, float]:
        """Seconds of a step with `rows` tokens of one text, each of which yields logits and a draw, of a step with one,
        and of a step with `rows` of which the last alone is drawn: medians. {"single_s", "verify_s", "chunk_s"}.

        The tokens stand as requests of one token each that share the blocks of one text: the same rows at the same
        positions over the same keys, written before any is read, as when drafts are verified. Attention reads the
        context once a row, so the cost found is, if anything, too high.
        """
        steps = self.verify_steps(rows, SamplingParams(temperature=temperature, seed=1))
        single, verify, chunk = _in_turns(self.loaded.runner, steps, repeats)
        self.loaded.runner.forget([one.request_id for step in steps for one in step])
        return {"single_s": single, "verify_s": verify, "chunk_s": chunk}

    def verify_steps(self, rows: int, sampling: SamplingParams) -> list[tuple[ScheduledRequest, ...]]:
        """Those three steps, over a text that has been computed."""
        blocks = self._blocks(0, VERIFY_CONTEXT + rows)
        names = ["single", *(f"row {index}" for index in range(rows))]
        for name in names:
            self._fill(name, 1, blocks)  # makes the table known
        self._fill("text", VERIFY_CONTEXT, blocks)  # over what the lines above have written
        single, *several = (
            _row(name, VERIFY_CONTEXT + max(0, index - 1), sampling) for index, name in enumerate(names)
        )
        tokens = tuple(token_id for one in several for token_id in one.token_ids)
        return [(single,), tuple(several), (replace(single, request_id="text", token_ids=tokens),)]

    def context(self, tokens: int, repeats: int) -> dict[str, float]:
        """Seconds of a greedy step at batch 1 behind `tokens` tokens, and behind a few: medians.

        {"short_s", "long_s", "kv_bytes": by which the two differ}.
        """
        sampling = SamplingParams(temperature=0)
        long_blocks = self._blocks(0, tokens + 1)
        short_blocks = self._blocks(len(long_blocks), SHORT_CONTEXT + 1)
        self._fill("long", tokens, long_blocks)
        self._fill("short", SHORT_CONTEXT, short_blocks)
        long, short = _row("long", tokens, sampling), _row("short", SHORT_CONTEXT, sampling)
        short_s, long_s = _in_turns(self.loaded.runner, [(short,), (long,)], repeats)
        self.loaded.runner.forget(["long", "short"])
        plan = self.loaded.plan
        per_token = plan.kv.kv_bytes / plan.kv.num_blocks / self.options.block_size
        return {"short_s": short_s, "long_s": long_s, "kv_bytes": per_token * (tokens - SHORT_CONTEXT)}

    def _blocks(self, taken: int, tokens: int) -> tuple[int, ...]:
        """Blocks for `tokens` tokens, behind `taken` ones and the null block. The engine itself has no request now."""
        count = -(-tokens // self.options.block_size)
        assert 1 + taken + count <= self.loaded.plan.kv.num_blocks
        return tuple(range(1 + taken, 1 + taken + count))

    def _fill(self, name: str, tokens: int, blocks: tuple[int, ...]) -> None:
        """Computes a prompt into these blocks, a step's budget at a time."""
        chunk = self.options.max_num_batched_tokens
        for start in range(0, tokens, chunk):
            token_ids = tuple(1 + position % 97 for position in range(start, min(tokens, start + chunk)))
            share = ScheduledRequest(
                request_id=name,
                first=start == 0,
                token_ids=token_ids,
                num_computed_tokens=start,
                block_ids=(blocks if start == 0 else NULL_TABLE,),
                samples=start + len(token_ids) == tokens,
                sampling=SamplingParams(temperature=0),
                seed=0,
                num_prompt_tokens=tokens,
            )
            self.loaded.runner.execute(SchedulerOutput((share,), ()))


def _row(name: str, position: int, sampling: SamplingParams) -> ScheduledRequest:
    """One token at `position` of a text whose block table the runner knows."""
    return ScheduledRequest(
        request_id=name,
        first=False,
        token_ids=(1 + position % 97,),
        num_computed_tokens=position,
        block_ids=(NULL_TABLE,),
        samples=True,
        sampling=sampling,
        seed=1,
        num_prompt_tokens=position,
    )


def _in_turns(runner: ModelRunner, steps: Sequence[tuple[ScheduledRequest, ...]], repeats: int) -> list[float]:
    """Median seconds of each of these steps, which take turns."""
    plans = [SchedulerOutput(step, ()) for step in steps]
    times: list[list[float]] = [[] for _ in plans]
    for number in range(repeats + WARM_UP_STEPS):
        for plan, seconds in zip(plans, times, strict=True):
            start = time.perf_counter()
            runner.execute(plan)
            if number >= WARM_UP_STEPS:
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def main() -> None:
    """Serves the questions of bench/compare.py."""
    engine = Pizarra()
    serve(
        {
            "load": engine.load,
            "decode": lambda prompts, short, long: by_difference(engine.generate, prompts, short, long),
            "prefill": lambda prompt: prefill(engine.generate, prompt),
            "verify": engine.verify,
            "context": engine.context,
        }
    )


if __name__ == "__main__":
    main()
