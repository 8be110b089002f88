"""Running an engine in a test: load it, put requests in, collect their tokens.

Owns nothing of the engine; `complete` drives `Engine.step` until all requests are done.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.config import LoadOptions
from engine.core.outputs import RequestOutput
from engine.core.sampling_params import SamplingParams
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.engine import Engine
from engine.loading import LoadedEngine, load_engine
from engine.runner.model_runner import ModelRunner

POOL_BYTES = 64 << 20


def load(path: Path, **options: Any) -> LoadedEngine:
    """An engine with a small pool, silent about its progress; it speculates only where a test asks for that."""
    options.setdefault("speculation", "off")
    options.setdefault("kv_cache_memory_bytes", POOL_BYTES)
    return load_engine(path, LoadOptions(**options), lambda stage, done, total, message: None)


def complete(engine: Engine, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, list[int]]:
    """All requests at once; their output tokens by id. Fails when one is refused or ends with an error."""
    output: dict[str, list[int]] = {request_id: [] for request_id in requests}
    for request_id, (prompt, sampling) in requests.items():
        assert engine.add_request(request_id, prompt, sampling) is None
    for row in rows_until_done(engine):
        assert row.error is None, row.error
        output[row.request_id].extend(row.token_ids)
    return output


def rows_until_done(engine: Engine) -> list[RequestOutput]:
    """Every row of every step until nothing is left to run."""
    rows: list[RequestOutput] = []
    while engine.has_requests():
        if not engine.has_work():
            time.sleep(0.001)  # a grammar is being compiled
        rows.extend(engine.step())
        engine.scheduler.kv.check()
    return rows


def prompt_logits(runner: ModelRunner, prompt: list[int], block_size: int = 16) -> torch.Tensor:
    """Logits [len(prompt), V] at every position, from one pass over the whole prompt.

    A step yields logits for as many rows as the engine serves requests: load with max_num_seqs >= len(prompt).
    """
    blocks = -(-len(prompt) // block_size)
    request = ScheduledRequest(
        request_id="logits",
        first=True,
        token_ids=tuple(prompt),
        num_computed_tokens=0,
        block_ids=tuple(
            tuple(range(1 + group * blocks, 1 + (group + 1) * blocks)) for group in range(len(runner.batch.groups))
        ),
        samples=True,
        sampling=SamplingParams(temperature=0),
        seed=0,
        num_prompt_tokens=len(prompt),
    )
    inputs = runner.batch.build(SchedulerOutput((request,), ()))
    rows = torch.arange(inputs.shape.rows)
    workspace = runner.workspace.cut(len(rows), len(rows))
    with torch.inference_mode():
        runner.model.forward(workspace, replace(inputs.step, sample_rows=rows), runner.caches)
    return workspace.logits[: len(prompt)].clone()
