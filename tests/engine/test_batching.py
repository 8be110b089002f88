"""Same seed, same text, whatever else is in the batch: alone against sixteen at once, and under preemption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.core.sampling_params import SamplingParams
from tests.engine.stepping import complete, load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

Wishes = dict[str, tuple[list[int], SamplingParams]]


def wishes(vocab_size: int, longest: int, max_tokens: int) -> Wishes:
    """Sixteen prompts of different lengths, half of them greedy."""
    generator = torch.Generator().manual_seed(3)
    found: Wishes = {}
    for index in range(16):
        length = 1 + (index * 37) % longest
        prompt = torch.randint(3, vocab_size, (length,), generator=generator).tolist()
        params = SamplingParams(
            temperature=0.0 if index % 2 else 1.0, top_p=1.0 if index % 4 else 0.9, seed=index, max_tokens=max_tokens
        )
        found[f"r{index}"] = (prompt, params)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sixteen_at_once_give_what_each_gives_alone(dtype: str, tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny"), dtype=dtype, max_num_batched_tokens=64).engine
    requests = wishes(320, longest=90, max_tokens=24)
    together = complete(engine, requests)
    alone = {name: complete(engine, {name: request})[name] for name, request in requests.items()}
    assert together == alone
    assert engine.pool.num_used == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sixteen_at_once_on_the_default_model(dtype: str, default_model_path: Path) -> None:
    loaded = load(default_model_path, dtype=dtype, max_model_len=256)
    assert loaded.exactness.level == "bits", loaded.exactness.reason
    requests = wishes(49152, longest=40, max_tokens=6)
    together = complete(loaded.engine, requests)
    alone = {name: complete(loaded.engine, {name: request})[name] for name, request in requests.items()}
    assert together == alone


def test_preemption_does_not_change_the_text(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    requests = wishes(320, longest=30, max_tokens=40)
    roomy = load(path).engine
    expected = complete(roomy, requests)
    assert roomy.scheduler.num_preemptions == 0
    tight = load(path, kv_cache_memory_bytes=24 * 16 * 2 * 2 * 2 * 16 * 2, max_model_len=128).engine
    assert complete(tight, requests) == expected
    assert tight.scheduler.num_preemptions > 0
    assert tight.pool.num_used == 0


def test_a_prompt_that_cannot_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny"), max_model_len=32).engine
    row = engine.add_request("long", [5] * 32, SamplingParams())
    assert row is not None
    assert row.finish_reason == "error"
    assert row.error is not None
    assert "32 tokens" in row.error
    for prompt, told in (([], "empty"), ([320], "outside the vocabulary"), ([-1], "outside the vocabulary")):
        row = engine.add_request("bad", prompt, SamplingParams())
        assert row is not None
        assert row.error is not None
        assert told in row.error
    assert not engine.has_work()


def test_an_answer_ends_at_the_end_of_the_context(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny"), max_model_len=32).engine
    engine.add_request("a", [5] * 20, SamplingParams(max_tokens=500, ignore_eos=True))
    rows = rows_until_done(engine)
    assert rows[-1].finish_reason == "length"
    assert sum(len(row.token_ids) for row in rows) == 12


def test_a_seed_that_was_not_given_is_told_and_repeats_the_text(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny")).engine
    engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=20))
    rows = rows_until_done(engine)
    assert rows[-1].summary is not None
    seed = rows[-1].summary.seed
    again = complete(engine, {"b": ([5, 6, 7], SamplingParams(max_tokens=20, seed=seed))})
    assert again["b"] == [token for row in rows for token in row.token_ids]
