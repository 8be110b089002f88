"""The job `train-drafter` at the size of a test: the call, small shards, and what a drafter weighs."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.jobs import Reporter, run_job
from engine.train import drafter_loop, drafter_text
from tests.engine.train.test_quantize import Lines


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of few stories, and a checkpoint after every step."""
    monkeypatch.setattr(drafter_text, "STORIES_PER_SHARD", 16)
    monkeypatch.setattr(drafter_text, "_REQUESTS_AT_ONCE", 16)
    monkeypatch.setattr(drafter_loop, "_SAVE_EVERY_S", 0.0)


def job(arguments: dict[str, Any], stop_at: tuple[str, int] | None = None) -> tuple[int, list[dict[str, Any]]]:
    lines = Lines(stop_at)
    reporter = Reporter(lines)
    before = signal.signal(signal.SIGTERM, reporter.stop)
    try:
        status = run_job("train-drafter", json.dumps(arguments), reporter)
    finally:
        signal.signal(signal.SIGTERM, before)
    return status, lines.seen


def weights_of(folder: Path) -> dict[str, bytes]:
    tensors = load_file(folder / "model.safetensors")
    return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
