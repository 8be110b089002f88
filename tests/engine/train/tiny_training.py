"""The job `train-drafter` at the size of a test: the call, small shards, and what a drafter weighs."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.train import drafter_loop, drafter_text
from tests.engine.train.job_lines import run

job = functools.partial(run, "train-drafter")


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of few stories, and a checkpoint after every step."""
    monkeypatch.setattr(drafter_text, "STORIES_PER_SHARD", 16)
    monkeypatch.setattr(drafter_text, "_REQUESTS_AT_ONCE", 16)
    monkeypatch.setattr(drafter_loop, "_SAVE_EVERY_S", 0.0)


def weights_of(folder: Path) -> dict[str, bytes]:
    tensors = load_file(folder / "model.safetensors")
    return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
