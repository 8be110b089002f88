"""The tiny model that quantisation is measured on: it learns, and an interrupted training ends in the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bench import tiny_model
from bench.tiny_model import TRAIN_TEXT, train
from engine.train.source import Source


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name, value in {"VOCABULARY": 280, "LAYERS": 1, "HIDDEN": 32, "INNER": 64, "HEADS": 2, "KEY_HEADS": 1}.items():
        monkeypatch.setattr(tiny_model, name, value)
    for name, value in {"HEAD_DIM": 16, "ROW": 32, "BATCH": 2, "STEPS": 9, "KEEP_EVERY": 3, "WARM_UP": 1}.items():
        monkeypatch.setattr(tiny_model, name, value)
    (tmp_path / TRAIN_TEXT).write_text("the cat sat on the mat and the dog sat on the log. " * 30)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    return tmp_path


def test_training_goes_on_from_its_last_checkpoint_to_the_same_weights(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = torch.backends.mkldnn.matmul.fp32_precision
    loss = train(small, small / "whole")
    assert torch.backends.mkldnn.matmul.fp32_precision == precision
    batches, seen = tiny_model._batches, []

    def interrupted(token_ids: Any, first: int) -> Any:
        for step, batch in batches(token_ids, first):
            if step == 7:
                raise KeyboardInterrupt
            seen.append(step)
            yield step, batch

    with monkeypatch.context() as patch:
        patch.setattr(tiny_model, "_batches", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(small, small / "parts")
    assert seen == list(range(7))
    assert train(small, small / "parts") == loss
    whole, parts = (load_file(small / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())
    assert loss < 5.6  # the logarithm of the vocabulary's size, where it began
    assert Source(small / "whole").config.num_hidden_layers == 1
