"""A tiny model, the text that it wrote, and the arguments of a job that learns from it. A module's own come first."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import read_checkpoint
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.train.drafter_text import TextWish, write_text
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.train.tiny_training import make_small


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=4)


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text that most tests learn from, written once."""
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        fingerprint = weights_fingerprint(read_checkpoint(model))
        write_text(TextWish(model, fingerprint, folder, 1200, longest=192, answer_tokens=40), lambda done, total: None)
    return folder


@pytest.fixture
def arguments(model: Path, written: Path, tmp_path: Path) -> dict[str, Any]:
    shutil.copytree(written, tmp_path / "out.partial")
    return {
        "model": str(model),
        "output": str(tmp_path / "out"),
        "tokens": 1200,
        "passes": 2,
        "vocabulary": 128,
        "steps": 3,
        "batch_tokens": 256,
        "longest": 192,
        "answer_tokens": 40,
        "learning_rate": 3e-3,
        "measure_every": 2000,
        "num_threads": 1,
    }
