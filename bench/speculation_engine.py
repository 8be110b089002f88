"""Our engine as bench/speculation.py drives it: one group of prompts at a time, until all of them are answered.

Owns the loop, its clock and what is counted meanwhile. Knows nothing of ratios. Invariants: the clock runs over
decoding alone, since every prompt has been computed before and its blocks are found; what proposers kept of past
outputs is dropped before the clock starts, unless the run is to be warm.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.speculation_results import Counts
from bench.speculation_sets import EncodedPrompt
from engine.config import MIB, LoadOptions
from engine.core.outputs import RequestOutput
from engine.core.sampling_params import Guided, SamplingParams
from engine.core.speculation import SpeculationParams
from engine.loading import LoadedEngine, load_engine, make_speculation
from engine.protocol import EngineStats
from engine.spec.speculator import Speculator

POOL_BYTES = 512 * MIB
MAX_LEN = 1024  # tokens of a prompt and its answer, more than any here has
WAIT_S = 0.001  # for a grammar to be compiled


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts that are sent at once. seeds: one each; greedy answers do not depend on them."""

    prompts: Sequence[EncodedPrompt]
    seeds: Sequence[int]
    max_tokens: int
    temperature: float

    def sampling(self, index: int, max_tokens: int) -> SamplingParams:
        schema = self.prompts[index].prompt.schema
        return SamplingParams(
            temperature=self.temperature,
            seed=self.seeds[index],
            max_tokens=max_tokens,
            guided=Guided("json_schema", schema) if schema else None,
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """token_ids: of each answer. seconds: of each answer, from sending all prompts to its last token."""

    token_ids: list[list[int]]
    seconds: list[float]
    counts: Counts


class BenchEngine:
    """One way for a loaded engine to decode. name: what its gains are shown under."""

    def __init__(
        self, name: str, loaded: LoadedEngine, wish: SpeculationParams, speculator: Speculator | None = None
    ) -> None:
        """speculator: of this way alone, where several share the engine; None: the engine's own."""
        self.name = name
        self.loaded = loaded
        self.engine = loaded.engine
        self.speculator = speculator or loaded.engine.speculator
        self._wish = wish
        self._number = 0

    def prepare(self, work: Work) -> None:
        """Computes the prompts and compiles their grammars, so that neither is timed later."""
        self._add(work, 1, SpeculationParams(enabled=False))
        while self.engine.has_requests():
            self._step()

    def answer(self, work: Work, *, keep: bool = False) -> Answered:
        """Answers all prompts at once. keep: what was learned of past outputs stays. RuntimeError on a refusal."""
        engine = self.engine
        engine.speculate_by(self.speculator)
        if not keep:
            self.speculator.clear()
        before = engine.stats()
        verify_steps, plain_s, drafts = 0, 0.0, self.speculator.total
        names = self._add(work, work.max_tokens, self._wish)
        answers: dict[str, list[int]] = {name: [] for name in names}
        ends = dict.fromkeys(names, 0.0)
        start = time.perf_counter()
        while engine.has_requests():
            seen, verified = drafts.drafts, engine.counters.step_s_total
            for row in self._step():
                if row.error is not None:
                    raise RuntimeError(f"{self.name}: {row.error}")
                answers[row.request_id].extend(row.token_ids)
                ends[row.request_id] = time.perf_counter() - start
            if drafts.drafts > seen:
                verify_steps += 1
            else:
                plain_s += engine.counters.step_s_total - verified
        counts = _counts(before, engine.stats(), len(names))
        counts.verify_steps, counts.plain_s = verify_steps, plain_s
        return Answered([answers[name] for name in names], [ends[name] for name in names], counts)

    def _add(self, work: Work, max_tokens: int, wish: SpeculationParams) -> list[str]:
        names = []
        for index, prompt in enumerate(work.prompts):
            self._number += 1
            name = f"{self.name} {self._number}"
            sampling = work.sampling(index, max_tokens)
            refused = self.engine.add_request(name, list(prompt.token_ids), sampling, speculation=wish)
            if refused is not None:
                raise RuntimeError(f"{self.name}: {refused.error}")
            names.append(name)
        return names

    def _step(self) -> list[RequestOutput]:
        if not self.engine.has_work():
            time.sleep(WAIT_S)
        return self.engine.step()


def load(name: str, model: Path, options: LoadOptions, wish: SpeculationParams) -> BenchEngine:
    """Loads an engine that proposes as `options.speculation` says. LoadError."""
    loaded = load_engine(model, options, lambda stage, done, total, message: None)
    torch.set_num_threads(1)  # as in the engine process: the kernels have threads of their own
    return BenchEngine(name, loaded, wish)


def another_way(name: str, loaded: LoadedEngine, options: LoadOptions, speculation: str) -> BenchEngine:
    """The same engine, speculating by `speculation`, with proposers and a controller that have learned nothing."""
    plan = loaded.plan
    drafting = replace(plan.drafting, speculation=speculation)
    fresh = make_speculation(loaded.runner, drafting, len(plan.kv.groups), options)
    limits: dict[str, Any] = {"max_drafts": options.num_speculative_tokens, "rule": options.speculation_rule}
    speculator = Speculator(loaded.engine.scheduler, fresh, **limits)
    return BenchEngine(name, loaded, SpeculationParams(enabled=speculation != "off"), speculator)


def _counts(before: EngineStats, after: EngineStats, answers: int) -> Counts:
    """What was counted between two moments. Empty places stand for 0."""
    made, taken = (
        [now - then for now, then in zip(later, [*earlier, *([0] * (len(later) - len(earlier)))], strict=True)]
        for earlier, later in (
            (before.drafted_per_position_total, after.drafted_per_position_total),
            (before.accepted_per_position_total, after.accepted_per_position_total),
        )
    )
    earlier = {one.name: one.draft_s_total for one in before.proposers}
    return Counts(
        tokens=after.generation_tokens_total - before.generation_tokens_total,
        answers=answers,
        drafts=after.drafts_total - before.drafts_total,
        drafted=after.drafted_total - before.drafted_total,
        accepted=after.accepted_total - before.accepted_total,
        drafted_at=made,
        accepted_at=taken,
        steps=after.steps_total - before.steps_total,
        draft_s=after.draft_s_total - before.draft_s_total,
        verify_s=after.verify_s_total - before.verify_s_total,
        draft_by={one.name: one.draft_s_total - earlier.get(one.name, 0.0) for one in after.proposers},
    )
