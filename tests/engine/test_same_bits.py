"""The same bits, end to end: how a request is served changes neither its tokens nor their log probabilities.

What every variant is compared with: each request alone, its prompt whole, without cached prefixes, its steps not
recorded. Temperatures 0 and 1, in bfloat16 also with int8 keys and values and with weights in codes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.core.sampling_params import SamplingParams
from engine.core.sizing import kv_bytes_per_block
from engine.engine import Engine
from engine.loading import LoadedEngine
from kernels.cpu_ops.tape import Tape
from tests.engine.stepping import load, rows_until_done
from tests.engine.test_batching import Wishes, wishes
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

Answers = dict[str, list[tuple[int, float]]]  # a token and its log probability
TIGHT_BLOCKS = 24
CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 keys and values": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "bfloat16, weights in codes": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
}


@dataclass(frozen=True)
class Served:
    """A checkpoint with options, and what it answers to each request alone."""

    path: Path
    options: dict[str, Any]
    requests: Wishes
    expected: Answers

    def load(self, **options: Any) -> LoadedEngine:
        loaded = load(self.path, **self.options, **options)
        assert loaded.exactness.level == "bits", loaded.exactness.reason
        return loaded


def answers(engine: Engine, requests: Wishes) -> Answers:
    """All requests at once."""
    found: Answers = {name: [] for name in requests}
    for name, (prompt, sampling) in requests.items():
        assert engine.add_request(name, prompt, sampling) is None
    for row in rows_until_done(engine):
        assert row.error is None, row.error
        if row.token_ids:
            assert row.logprobs is not None
            found[row.request_id] += zip(row.token_ids, row.logprobs.logprobs, strict=True)
    assert engine.pool.num_used == 0
    return found


def one_by_one(engine: Engine, requests: Wishes) -> Answers:
    """Each with the engine to itself."""
    return {name: answers(engine, {name: request})[name] for name, request in requests.items()}


@pytest.fixture(scope="module", params=list(CASES))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder, options = tmp_path_factory.mktemp("bits") / "tiny", CASES[request.param]
    stored = {"format": "gguf", "dtype": "Q4_0"} if "codes" in request.param else {}
    path = tiny_llama_checkpoint(folder, **stored)
    requests = {
        name: (prompt, replace(sampling, logprobs=0))
        for name, (prompt, sampling) in wishes(320, longest=90, max_tokens=24).items()
    }
    assert {sampling.temperature for _, sampling in requests.values()} == {0.0, 1.0}
    plain = load(path, enable_prefix_caching=False, recorded_steps=False, **options)
    return Served(path, options, requests, one_by_one(plain.engine, requests))


def replays(loaded: LoadedEngine) -> int:
    recorder = loaded.runner.recorder
    assert isinstance(recorder, Tape)
    return recorder.num_replays


@pytest.mark.parametrize("recorded_steps", [True, False])
def test_sixteen_at_once(served: Served, recorded_steps: bool) -> None:
    loaded = served.load(enable_prefix_caching=False, recorded_steps=recorded_steps)
    assert answers(loaded.engine, served.requests) == served.expected


def test_recorded_steps(served: Served) -> None:
    loaded = served.load(enable_prefix_caching=False)
    before, steps = replays(loaded), loaded.engine.counters.steps_total
    assert one_by_one(loaded.engine, served.requests) == served.expected
    assert replays(loaded) - before > (loaded.engine.counters.steps_total - steps) / 2


def test_prompts_in_chunks(served: Served) -> None:
    loaded = served.load(enable_prefix_caching=False, max_num_batched_tokens=24, long_prefill_token_threshold=7)
    assert one_by_one(loaded.engine, served.requests) == served.expected
    assert answers(loaded.engine, served.requests) == served.expected


def test_hits_in_the_prefix_cache(served: Served) -> None:
    loaded = served.load()
    assert answers(loaded.engine, served.requests) == served.expected
    hits = loaded.engine.stats().prefix_cache_hits_total
    assert answers(loaded.engine, served.requests) == served.expected
    assert loaded.engine.stats().prefix_cache_hits_total > hits
    assert one_by_one(loaded.engine, served.requests) == served.expected


def test_preemption(served: Served) -> None:
    config, size = served.load().info.config, 4 if served.options["dtype"] == "float32" else 2
    block_bytes = kv_bytes_per_block(config, 16, size, served.options.get("kv_cache_dtype", "auto"))
    loaded = served.load(kv_cache_memory_bytes=TIGHT_BLOCKS * block_bytes, max_model_len=128)
    assert answers(loaded.engine, served.requests) == served.expected
    assert loaded.engine.scheduler.num_preemptions > 0


def test_company_that_comes_and_goes(served: Served) -> None:
    """Requests join and leave in the middle: other shapes, other places in the batch."""
    engine = served.load(max_num_seqs=5, max_num_batched_tokens=32).engine
    sampling = SamplingParams(temperature=1.0, seed=99, max_tokens=3, ignore_eos=True, logprobs=0)
    passing: Wishes = {f"passing {index}": ([7 + index] * (1 + 5 * index), sampling) for index in range(8)}
    mixed: Wishes = {}
    for pair in zip(served.requests.items(), (*passing.items(), *passing.items()), strict=True):
        for place, (name, request) in enumerate(pair):
            mixed[f"{name} {len(mixed)}" if place else name] = request
    found = answers(engine, mixed)
    assert {name: found[name] for name in served.requests} == served.expected
