"""What it costs to have the default model draft for larger ones: milliseconds of a draft, of its verification, of a
step without, and of a drafter's first draft, for which it has to compute the prompt as well.

Owns the two pairs. One target has random weights: its text means nothing, nor does its acceptance, and none is given.
The other is the default model in bf16, for which its own 4-bit form drafts: there acceptance is real. Every request
drafts all it may in every step, whether that pays or not. Invariant: plain steps and drafted ones take turns.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.random_checkpoint import write_random
from bench.serving import make_prompts
from bench.speculation_engine import MAX_LEN, POOL_BYTES
from bench.speculation_results import Results
from bench.transformers_llama import export
from engine.checkpoint import read_checkpoint
from engine.config import LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams
from engine.engine import Engine
from engine.loading import LoadError, load_engine
from engine.vocab import write_tokenizer

RANDOM_FORM, RANDOM_SIZE = "AWQ", "1B of 49152 tokens"
RANDOM_NAME = "Llama of 1B random weights, AWQ"
PROMPT_TOKENS, TOKENS, QUICK_TOKENS = 256, 64, 40  # so many that a draft follows the first, even if all are accepted
DRAFTS, BATCHES = (2, 4, 8), (1, 4)
ROUNDS = 3


@dataclass
class _Steps:
    """Seconds of the decoding turns of one run."""

    plain: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    first_draft: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


def measure(model: Path, threads: int, quick: bool, results: Results, say: Callable[[str], None]) -> None:
    """Adds a line for each target, number of drafts and batch; a pair that does not load goes to the failures."""
    info = read_checkpoint(model)
    with tempfile.TemporaryDirectory() as folder:
        random = write_random(Path(folder) / "random", RANDOM_FORM, RANDOM_SIZE)
        write_tokenizer(info, random)
        _pair(RANDOM_NAME, random, model, threads, quick, results, say, means_something=False)
        dense = Path(folder) / "bf16"
        dense.mkdir()
        export(info, dense, torch.bfloat16)
        _pair(f"{info.path.stem} in bf16", dense, model, threads, quick, results, say, means_something=True)


def _pair(
    name: str,
    target: Path,
    drafter: Path,
    threads: int,
    quick: bool,
    results: Results,
    say: Callable[[str], None],
    *,
    means_something: bool,
) -> None:
    options = LoadOptions(
        kv_cache_memory_bytes=POOL_BYTES,
        max_model_len=MAX_LEN,
        num_threads=threads,
        enable_prefix_caching=False,
        speculation="draft_model",
        drafter=str(drafter),
    )
    try:
        loaded = load_engine(target, options, lambda stage, done, total, message: None)
    except LoadError as error:
        results.failures[f"draft model for {name}"] = str(error)
        say(f"{name}: {error}")
        return
    torch.set_num_threads(1)  # as in the engine process: the kernels have threads of their own
    for batch in BATCHES[:1] if quick else BATCHES:
        prompts = make_prompts(loaded.info.config.vocab_size, batch, PROMPT_TOKENS, ("costs", batch))
        for count in DRAFTS[-1:] if quick else DRAFTS:
            steps = _run(loaded.engine, prompts, count, QUICK_TOKENS if quick else TOKENS, 1 if quick else ROUNDS)
            line = _line(steps, means_something)
            results.costs.append({"target": name, "drafter": drafter.stem, "k": count, "batch": batch, **line})
            say(f"{name}, k = {count}, batch {batch}: {line}")


def _line(steps: _Steps, means_something: bool) -> dict[str, Any]:
    """Medians in milliseconds. pays_from: tokens that a verification has to yield to be as fast as plain steps."""
    plain, draft, verify = (1e3 * statistics.median(each) for each in (steps.plain, steps.draft, steps.verify))
    return {
        "plain_ms": plain,
        "draft_ms": draft,
        "verify_ms": verify,
        "catch_up_ms": 1e3 * statistics.median(steps.first_draft) - draft,
        "acceptance": steps.accepted / steps.drafted if means_something and steps.drafted else None,
        "pays_from": (draft + verify) / plain,
    }


def _run(engine: Engine, prompts: Sequence[Sequence[int]], count: int, tokens: int, rounds: int) -> _Steps:
    """Plain and drafted answers in turns, after one of each that is not counted."""
    drafting = SpeculationParams(adaptive=False, num_speculative_tokens=count)
    steps = _Steps()
    for number in range(rounds + 1):
        for wish in (SpeculationParams(enabled=False), drafting):
            _answer(engine, prompts, wish, tokens, steps if number else _Steps())
    return steps


def _answer(
    engine: Engine, prompts: Sequence[Sequence[int]], wish: SpeculationParams, tokens: int, steps: _Steps
) -> None:
    """One answer to each prompt; only turns in which all of them decode are timed."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    before = (engine.speculator.total.drafted, engine.speculator.total.accepted)
    for index, prompt in enumerate(prompts):
        refused = engine.add_request(f"cost {index}", list(prompt), sampling, speculation=wish)
        if refused is not None:
            raise RuntimeError(refused.error)
    is_first = True
    while engine.has_requests():
        prompted, drafts = engine.counters.prompt_tokens_total, engine.speculator.total.drafts
        step_s, draft_s = engine.counters.step_s_total, engine.speculator.total.draft_s
        rows = engine.step()
        if engine.counters.prompt_tokens_total > prompted or len(rows) < len(prompts):
            continue
        took = engine.counters.step_s_total - step_s
        if engine.speculator.total.drafts == drafts:
            if not wish.enabled:
                steps.plain.append(took)
            continue
        drafting_s = engine.speculator.total.draft_s - draft_s
        (steps.first_draft if is_first else steps.draft).append(drafting_s)
        steps.verify.append(took)
        is_first = False
    steps.drafted += engine.speculator.total.drafted - before[0]
    steps.accepted += engine.speculator.total.accepted - before[1]
