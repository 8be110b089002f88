"""A real engine process over a real pipe: handshake, tokens, abort, statistics, drain, and the lifeline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.core.sampling_params import Guided, SamplingParams
from engine.protocol import (
    PROTOCOL_VERSION,
    AbortRequest,
    AddRequest,
    CheckGrammar,
    Drain,
    EngineFailed,
    EngineReady,
    EngineStats,
    LoadProgress,
    RequestOutput,
    Shutdown,
    StepOutputs,
)
from tests.engine.spawned import PATIENCE_S, Spawned
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint


@pytest.fixture
def spawned(tmp_path: Path) -> Iterator[Spawned]:
    engine = Spawned(tiny_llama_checkpoint(tmp_path / "tiny"), kv_cache_memory_bytes=4 << 20, num_threads=1)
    yield engine
    engine.process.kill()
    engine.process.wait()


def test_a_life_from_load_to_drain(spawned: Spawned) -> None:
    stages = []
    while isinstance(message := spawned.receive(), LoadProgress):
        stages.append(message.stage)
    assert stages[0] == "start"
    assert "weights" in stages
    assert isinstance(message, EngineReady)
    assert message.protocol_version == PROTOCOL_VERSION
    assert message.pid == spawned.process.pid
    assert message.exactness == "bits"
    assert message.memory.weights_bytes > 0
    assert message.memory.kv_bytes <= 4 << 20
    assert set(message.kernels) >= {"linear", "paged_attention"}

    greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    spawned.send(AddRequest("a", [5, 6, 7], greedy))
    rows = list(spawned.rows("a"))
    assert sum(len(row.token_ids) for row in rows) == 5
    assert rows[-1].finish_reason == "length"
    summary = rows[-1].summary
    assert summary is not None
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (3, 5)
    assert None not in (summary.timing.queue_s, summary.timing.prefill_s, summary.timing.decode_s)

    spawned.send(AddRequest("b", [5], SamplingParams(max_tokens=30, ignore_eos=True)))
    spawned.send(Drain())
    assert sum(len(row.token_ids) for row in spawned.rows("b")) == 30
    assert spawned.process.wait(PATIENCE_S) == 0


def test_an_abort_ends_a_request_and_frees_its_blocks(spawned: Spawned) -> None:
    spawned.until(EngineReady)
    spawned.send(AddRequest("a", [5], SamplingParams(max_tokens=100_000, ignore_eos=True)))
    spawned.until(StepOutputs)
    spawned.send(AbortRequest("never seen"))
    spawned.send(AbortRequest("a", num_output_tokens=1))
    last = list(spawned.rows("a"))[-1]
    assert last.finish_reason == "abort"
    assert last.summary is not None
    assert last.summary.num_output_tokens == 1
    stats = spawned.until(EngineStats)
    while stats.num_requests_running:
        stats = spawned.until(EngineStats)
    assert (stats.kv_blocks_used, stats.num_requests_waiting, stats.requests_finished_total) == (0, 0, 1)


def test_statistics_come_at_most_four_times_a_second_also_when_idle(spawned: Spawned) -> None:
    spawned.until(EngineReady)
    told = [spawned.until(EngineStats).t_s for _ in range(5)]
    assert all(later - earlier > 0.2 for earlier, later in pairwise(told))
    spawned.send(Shutdown())
    assert spawned.process.wait(PATIENCE_S) == 0


def test_the_end_of_the_pipe_ends_the_engine(spawned: Spawned) -> None:
    spawned.until(EngineReady)
    spawned.send(AddRequest("a", [5], SamplingParams(max_tokens=100_000, ignore_eos=True)))
    spawned.until(StepOutputs)
    spawned.connection.close()
    assert spawned.process.wait(10) == 0


def test_a_refused_request_leaves_the_others_alone(spawned: Spawned) -> None:
    spawned.until(EngineReady)
    spawned.send(AddRequest("good", [5], SamplingParams(max_tokens=200, ignore_eos=True)))
    spawned.send(AddRequest("bad", [999_999], SamplingParams()))
    seen: dict[str, RequestOutput] = {}
    while len(seen) < 2:
        for row in spawned.until(StepOutputs).rows:
            if row.finish_reason is not None:
                seen[row.request_id] = row
    assert seen["bad"].finish_reason == "error"
    assert seen["good"].finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"dtype": "int3"}, "bad_options", "dtype"),
        ({"tensor_parallel_size": 2}, "bad_options", "tensor_parallel_size=2"),
        ({"no_such_option": 1}, "bad_options", "no_such_option"),
        ({"max_model_len": 4096, "kv_cache_memory_bytes": 100_000}, "does_not_fit", "max_model_len"),
    ],
)
def test_a_load_that_cannot_be_says_why(options: dict[str, Any], kind: str, told: str, tmp_path: Path) -> None:
    model = tiny_llama_checkpoint(tmp_path / "tiny", max_position_embeddings=8192)
    engine = Spawned(model, **options)
    failed = engine.until(EngineFailed)
    assert failed.kind == kind
    assert told in failed.message
    assert engine.process.wait(PATIENCE_S) == 1


def test_a_missing_model_says_so(tmp_path: Path) -> None:
    engine = Spawned(tmp_path / "nowhere")
    failed = engine.until(EngineFailed)
    assert failed.kind == "bad_checkpoint"
    assert "nowhere" in failed.message
    assert engine.process.wait(PATIENCE_S) == 1


def test_the_engine_runs_alone(tmp_path: Path) -> None:
    model = tiny_llama_checkpoint(tmp_path / "tiny")
    command = [sys.executable, "-m", "engine", str(model), "the and", "--max-tokens", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "tokens in" in done.stderr
    refused = subprocess.run([*command, "--temperature", "-1"], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: temperature=-1.0")


def test_samples_grammars_and_log_probabilities_cross_the_pipe(spawned: Spawned) -> None:
    """Every kind of field of a request, and its rows; a grammar that is compiled wakes a sleeping engine."""
    spawned.until(EngineReady)
    sampling = SamplingParams(
        seed=1,
        max_tokens=20,
        logit_bias={7: 1.5},
        bad_words=((5, 6), (9,)),
        guided=Guided("choice", '["yes", "no"]'),
        logprobs=2,
        prompt_logprobs=1,
    )
    spawned.send(AddRequest("a", [5, 6, 7], sampling, n=2))
    rows: list[RequestOutput] = []
    while sum(row.finish_reason is not None for row in rows) < 2:
        rows.extend(spawned.until(StepOutputs).rows)
    assert {(row.index, row.finish_reason) for row in rows if row.finish_reason} == {(0, "stop"), (1, "stop")}
    assert rows[0].prompt_logprobs is not None
    assert len(rows[0].prompt_logprobs.top_token_ids) == 2
    assert all(row.logprobs is not None and len(row.logprobs.logprobs) == len(row.token_ids) for row in rows)
    spawned.send(AddRequest("refused", [], sampling, n=3))
    assert [row.index for row in spawned.until(StepOutputs).rows] == [0, 1, 2]
    spawned.send(CheckGrammar("c", Guided("regex", "a+")))
    assert [row.finish_reason for row in spawned.rows("c")] == ["stop"]
    spawned.send(AddRequest("b", [5], SamplingParams(guided=Guided("regex", "a(b"))))
    spawned.send(Drain())
    assert [row.finish_reason for row in spawned.rows("b")] == ["error"]
    assert spawned.process.wait(PATIENCE_S) == 0


def test_books_that_do_not_balance_end_the_engine_and_are_told(tmp_path: Path) -> None:
    """The blocks are proved when the last request has ended; here the proof is made to fail."""
    code = (
        "from engine.core.kv_cache_manager import KVCacheManager\n"
        "from engine.process import main\n"
        "def broken(self): raise AssertionError('2 blocks are lost')\n"
        "KVCacheManager.check = broken\n"
        "raise SystemExit(main())"
    )
    engine = Spawned(tiny_llama_checkpoint(tmp_path / "tiny"), program=("-c", code), kv_cache_memory_bytes=4 << 20)
    engine.until(EngineReady)
    engine.send(AddRequest("a", [5], SamplingParams(max_tokens=1)))
    failed = engine.until(EngineFailed)
    assert (failed.kind, failed.message) == ("internal", "the block pool's books do not balance: 2 blocks are lost")
    assert engine.process.wait(PATIENCE_S) == 1
