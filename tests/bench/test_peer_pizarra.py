"""Our own worker's hand-made steps compute what they claim to, on a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import peer_pizarra
from bench.peer_pizarra import Pizarra
from engine.core.sampling_params import SamplingParams
from engine.core.step import SchedulerOutput
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

CONTEXT, ROWS = 21, 4


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pizarra:
    monkeypatch.setattr(peer_pizarra, "VERIFY_CONTEXT", CONTEXT)
    monkeypatch.setattr(peer_pizarra, "SHORT_CONTEXT", 8)
    monkeypatch.setattr(peer_pizarra, "POOL_BYTES", 1 << 20)
    one = Pizarra()
    one.load(str(tiny_llama_checkpoint(tmp_path)), threads=1, max_seqs=8, max_len=64)
    return one


def logits(engine: Pizarra, tokens: int) -> torch.Tensor:
    """Of the last of so many tokens, computed as a prompt in blocks of its own."""
    blocks = engine._blocks(40, tokens)
    share = peer_pizarra._row("prompt", 0, SamplingParams(temperature=0))
    token_ids = tuple(1 + position % 97 for position in range(tokens))
    plan = SchedulerOutput((replace(share, first=True, token_ids=token_ids, block_ids=(blocks,)),), ())
    found = engine.loaded.runner.logits(plan)[0]
    engine.loaded.runner.forget(["prompt"])
    return found


def test_every_row_of_a_verifying_step_sees_the_text_before_it(engine: Pizarra) -> None:
    single, several, chunk = engine.verify_steps(ROWS, SamplingParams(temperature=0))
    runner = engine.loaded.runner
    found = runner.logits(SchedulerOutput(several, ()))
    assert len(found) == ROWS
    for index, row in enumerate(found):
        torch.testing.assert_close(row, logits(engine, CONTEXT + index + 1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(runner.logits(SchedulerOutput(single, ()))[0], found[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(runner.logits(SchedulerOutput(chunk, ()))[0], found[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_are_timed_and_leave_the_engine_as_it_was(engine: Pizarra, temperature: float) -> None:
    assert min(engine.verify(ROWS, temperature, repeats=2).values()) > 0
    found = engine.context(40, repeats=2)
    per_token = engine.loaded.plan.kv.kv_bytes / engine.loaded.plan.kv.num_blocks / engine.options.block_size
    assert found["kv_bytes"] == per_token * 32
    assert min(found.values()) > 0
    assert engine.generate([[1, 2, 3], [4, 5, 6]], 5) > 0
    assert not engine.loaded.engine.has_requests()
