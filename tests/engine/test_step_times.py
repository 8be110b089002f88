"""Steps are timed at load on the real buffers, in little time, and nothing of it is left behind."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch

from engine.config import LoadOptions
from engine.runner import step_times
from engine.runner.step_times import measure
from tests.engine.stepping import complete, load
from tests.engine.test_batching import wishes
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_steps_of_several_sizes_are_timed(dtype: str, tmp_path: Path) -> None:
    options = LoadOptions(dtype=dtype, kv_cache_memory_bytes=64 << 20)
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), dtype=dtype, speculation="suffix")
    samples = measure(loaded.runner, options, budget_s=math.inf)
    assert all(sample.step_s > 0.0 for sample in samples)
    sizes = [(sample.num_rows, sample.num_requests) for sample in samples]
    assert sizes[:4] == [(1, 1), (4, 1), (9, 1), (16, 16)]
    assert len(set(sizes)) == len(sizes)
    assert max(rows for rows, _ in sizes) == 32


def test_a_slow_model_is_timed_at_two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"))
    monkeypatch.setattr(step_times, "_time", lambda runner, requests, each: time.sleep(0.02) or 0.02)
    samples = measure(loaded.runner, LoadOptions(), budget_s=0.01)
    assert [(sample.num_rows, sample.num_requests) for sample in samples] == [(1, 1), (4, 1)]


def test_a_small_engine_is_asked_for_no_more_than_it_holds(tmp_path: Path) -> None:
    small = {"max_num_seqs": 1, "num_speculative_tokens": 2, "max_num_batched_tokens": 16, "max_model_len": 32}
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), speculation="suffix", **small)
    samples = measure(loaded.runner, LoadOptions(**small), budget_s=math.inf)
    assert {(sample.num_rows, sample.num_requests) for sample in samples} == {(1, 1), (2, 1), (3, 1)}


def test_requests_and_caches_are_as_before(tmp_path: Path) -> None:
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), enable_prefix_caching=False)
    requests = wishes(320, longest=60, max_tokens=12)
    expected = complete(loaded.engine, requests)
    before = [[tensor.clone() for tensor in _tensors(cache)] for cache in loaded.runner.caches]
    measure(loaded.runner, LoadOptions())
    for old, cache in zip(before, loaded.runner.caches, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(old, _tensors(cache), strict=True))
    again = complete(loaded.engine, {f"again {name}": wish for name, wish in requests.items()})
    assert list(again.values()) == list(expected.values())


def _tensors(cache: object) -> list[torch.Tensor]:
    values = (getattr(cache, name, None) for name in getattr(cache, "__slots__", None) or vars(cache))
    found = [value for value in values if isinstance(value, torch.Tensor)]
    assert found
    return found
