"""Many requests at once: each gets its own text, its own end and its own error.

That a request's bits do not depend on how it is served is `test_same_bits`; here are the default model, and draws that
depend on the text before them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
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
def test_sixteen_at_once_on_the_default_model(dtype: str, default_model_path: Path) -> None:
    loaded = load(default_model_path, dtype=dtype, max_model_len=256)
    assert loaded.exactness.level == "bits", loaded.exactness.reason
    requests = wishes(49152, longest=40, max_tokens=6)
    together = complete(loaded.engine, requests)
    alone = {name: complete(loaded.engine, {name: request})[name] for name, request in requests.items()}
    assert together == alone


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


def fancy_wishes() -> Wishes:
    """Sixteen requests that between them use every processor."""
    choices: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "temperature": 0.0},
        {"presence_penalty": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.02, "min_p": 0.01},
        {"bad_words": ((7,), (5, 6)), "typical_p": 0.9, "min_tokens": 10, "logit_bias": {2: 5.0}},
    ]
    return {
        name: (prompt, replace(params, **choices[index % 4]))
        for index, (name, (prompt, params)) in enumerate(wishes(320, longest=40, max_tokens=30).items())
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_penalties_see_the_whole_text_in_chunks_after_preemption_and_behind_cached_prefixes(
    dtype: str, tmp_path: Path
) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    requests = fancy_wishes()
    alone_engine = load(path, dtype=dtype, enable_prefix_caching=False).engine
    alone = {name: complete(alone_engine, {name: request})[name] for name, request in requests.items()}
    token_bytes = 2 * 2 * 2 * 16 * (4 if dtype == "float32" else 2)
    tight = load(
        path, dtype=dtype, max_num_batched_tokens=24, max_model_len=128, kv_cache_memory_bytes=24 * 16 * token_bytes
    ).engine
    assert complete(tight, requests) == alone
    assert tight.scheduler.num_preemptions > 0
    again = {f"again-{name}": request for name, request in requests.items()}
    assert list(complete(load_warm(path, dtype, requests), again).values()) == list(alone.values())


def load_warm(path: Path, dtype: str, requests: Wishes) -> Engine:
    """An engine whose cache holds the prompts and answers of the requests."""
    engine = load(path, dtype=dtype).engine
    complete(engine, requests)
    assert engine.pool.num_cached > 0
    return engine


def test_a_request_that_leaves_no_token_ends_with_its_own_error(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny")).engine
    engine.add_request("bad", [5, 6], SamplingParams(bad_words=tuple((token,) for token in range(320))))
    engine.add_request("good", [5, 6], SamplingParams(max_tokens=4, ignore_eos=True))
    ended = {row.request_id: row for row in rows_until_done(engine) if row.finish_reason is not None}
    assert ended["bad"].finish_reason == "error"
    assert ended["bad"].error is not None
    assert "no token is left" in ended["bad"].error
    assert ended["good"].finish_reason == "length"
    assert engine.pool.num_used == 0
    refused = engine.add_request("outside", [5], SamplingParams(logit_bias={320: 1.0}))
    assert refused is not None
    assert refused.error == "logit_bias: token id 320 lies outside the vocabulary of 320 tokens"
