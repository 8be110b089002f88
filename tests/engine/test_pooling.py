"""Pooled hidden states against transformers' last hidden state: whole, in chunks, preempted, cached, beside answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from engine.core.outputs import RequestOutput
from engine.core.sampling_params import Guided, SamplingParams
from engine.engine import Engine
from engine.models.decoder import Decoder
from tests.engine.stepping import complete, load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.tiny_foreign import FOREIGN, foreign_checkpoint

NOTHING = SamplingParams()
ANSWER = SamplingParams(seed=5, max_tokens=12, ignore_eos=True)
PROMPTS = [[3 + (index * 7 + length) % 300 for index in range(length)] for length in (1, 16, 37, 70)]
POOLINGS = ("last", "mean")
TIGHT_POOL_BYTES = 10 * 16 * 2 * 2 * 2 * 16 * 2  # 10 blocks of the tiny Llama's two layers, in bfloat16


def embeddings(engine: Engine, *, answers: bool = False, again: str = "") -> dict[tuple[int, str], list[float]]:
    """Every prompt in every pooling at once, with `answers` beside as many requests that generate."""
    for index, prompt in enumerate(PROMPTS):
        for pooling in POOLINGS:
            assert engine.add_request(f"{again}{index} {pooling}", prompt, NOTHING, pooling=pooling) is None
        if answers:
            assert engine.add_request(f"{again}{index} answer", prompt, ANSWER) is None
    found: dict[tuple[int, str], list[float]] = {}
    for row in rows_until_done(engine):
        name, kind = row.request_id.removeprefix(again).split()
        if kind == "answer":
            assert row.pooled is None
        else:
            assert (int(name), kind) not in found, "one row, the last"
            found[int(name), kind] = vector_of(row)
    assert engine.pool.num_used == 0
    return found


def vector_of(row: RequestOutput) -> list[float]:
    assert (row.error, row.token_ids, row.finish_reason) == (None, [], "stop")
    assert row.summary is not None
    assert (row.summary.num_output_tokens, row.summary.seed) == (0, None)
    assert (row.summary.timing.prefill_s, row.summary.timing.decode_s) == (None, None)
    assert row.pooled is not None
    assert math.hypot(*row.pooled) == pytest.approx(1.0, abs=1e-6)
    return row.pooled


def truth(model: Any, prompt: list[int], pooling: str) -> torch.Tensor:
    with torch.inference_mode():
        states = model(torch.tensor([prompt])).last_hidden_state[0]
    return torch.nn.functional.normalize(states[-1] if pooling == "last" else states.mean(0), dim=0)


@pytest.mark.parametrize("chunk", [512, 16])
@pytest.mark.parametrize("variant", ["mistral window", "gemma2", "qwen3_moe", "olmo2", "gpt2"])
def test_they_are_those_of_transformers(variant: str, chunk: int, tmp_path: Path) -> None:
    path = (foreign_checkpoint if variant in FOREIGN else family_checkpoint)(tmp_path / "tiny", variant)
    model = AutoModel.from_pretrained(path, dtype=torch.float32, experts_implementation="eager").eval()
    engine = load(path, dtype="float32", max_model_len=128, max_num_batched_tokens=chunk).engine
    for (index, pooling), vector in embeddings(engine).items():
        assert torch.allclose(torch.tensor(vector), truth(model, PROMPTS[index], pooling), atol=2e-5), (index, pooling)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_chunks_and_cached_prefixes_change_no_bit(dtype: str, tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    roomy = load(path, dtype=dtype, enable_prefix_caching=False).engine
    alone = {}
    for index, prompt in enumerate(PROMPTS):
        for pooling in POOLINGS:
            assert roomy.add_request("alone", prompt, NOTHING, pooling=pooling) is None
            (row,) = rows_until_done(roomy)
            alone[index, pooling] = vector_of(row)
    crowded = load(path, dtype=dtype, max_num_batched_tokens=24, max_num_seqs=5).engine
    assert embeddings(crowded, answers=True) == alone
    assert embeddings(crowded, answers=True, again="again ") == alone


def test_a_preempted_one_starts_over(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    limits = {"max_num_batched_tokens": 24, "long_prefill_token_threshold": 8, "max_model_len": 128}
    tight = load(path, kv_cache_memory_bytes=TIGHT_POOL_BYTES, **limits)
    vectors = []
    for engine in (load(path, enable_prefix_caching=False).engine, tight.engine):
        assert engine.add_request("first", PROMPTS[3] + [7] * 30, NOTHING, pooling="mean", priority=1) is None
        rows = [row for _ in range(6) for row in engine.step()]  # in the tight engine half of its prompt
        for name in ("second", "third"):
            assert engine.add_request(name, PROMPTS[3] + [8] * 30, NOTHING, pooling="mean") is None
        rows += rows_until_done(engine)
        vectors.append({row.request_id: vector_of(row) for row in rows})
        preempted = next(row.summary.num_preemptions for row in rows if row.request_id == "first" and row.summary)
        assert (preempted > 0) == (engine is tight.engine)
    assert vectors[0] == vectors[1]


def test_the_last_token_is_enough_behind_a_cached_prefix_and_a_mean_reads_none(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny")).engine
    complete(engine, {"warm": (PROMPTS[3], ANSWER)})
    for pooling, cached in (("last", 64), ("mean", 0)):
        assert engine.add_request(pooling, PROMPTS[3], NOTHING, pooling=pooling) is None
        (row,) = rows_until_done(engine)
        assert row.summary is not None
        assert row.summary.num_cached_tokens == cached
    stats = engine.stats()
    assert stats.generation_tokens_total == ANSWER.max_tokens


def test_answers_beside_them_are_the_same(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    alone = complete(load(path).engine, {"r": (PROMPTS[2], ANSWER)})
    engine = load(path, max_num_batched_tokens=24).engine
    for pooling in POOLINGS:
        engine.add_request(pooling, PROMPTS[3], NOTHING, pooling=pooling)
    engine.add_request("r", PROMPTS[2], ANSWER)
    tokens = [token for row in rows_until_done(engine) if row.request_id == "r" for token in row.token_ids]
    assert tokens == alone["r"]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_they_can_be_aborted_in_every_state(pooling: str, tmp_path: Path) -> None:
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), max_num_batched_tokens=16, max_num_seqs=1)
    engine = loaded.engine
    for name in ("first", "second"):
        assert engine.add_request(name, PROMPTS[3], NOTHING, pooling=pooling) is None
    assert engine.step() == []
    for name in ("second", "first"):  # one waits, one has a chunk behind it
        (row,) = engine.abort_request(name)
        assert (row.finish_reason, row.pooled) == ("abort", None)
    assert engine.pool.num_used == 0
    assert engine.add_request("first", PROMPTS[2], NOTHING, pooling=pooling) is None
    reused = vector_of(rows_until_done(engine)[-1])
    engine.add_request("other", PROMPTS[2], NOTHING, pooling=pooling)
    assert vector_of(rows_until_done(engine)[-1]) == reused, "nothing of the aborted one is left"


def test_the_whole_context_may_be_pooled_and_no_more(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny"), max_model_len=32).engine
    refused = engine.add_request("long", [5] * 33, NOTHING, pooling="last")
    assert refused is not None
    assert refused.error is not None
    assert "33 tokens" in refused.error
    assert engine.add_request("full", [5] * 32, NOTHING, pooling="mean") is None
    vector_of(rows_until_done(engine)[-1])


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"pooling": "max"}, "known are last, mean"),
        ({"pooling": "last", "n": 2}, "neither n above 1"),
        ({"pooling": "last", "sampling": SamplingParams(guided=Guided("json"))}, "nor a grammar"),
        ({"pooling": "last", "sampling": SamplingParams(prompt_logprobs=0)}, "nor prompt_logprobs"),
    ],
)
def test_what_cannot_be_pooled_is_refused(wish: dict[str, Any], told: str, tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny")).engine
    row = engine.add_request("r", [5, 6], **({"sampling": NOTHING} | wish))
    assert row is not None
    assert row.error is not None
    assert told in row.error
    assert not engine.has_requests()


@pytest.mark.parametrize("weight", [0.0, math.inf, math.nan])
def test_a_state_without_direction_is_the_requests_own_error(weight: float, tmp_path: Path) -> None:
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), dtype="float32")
    decoder = loaded.runner.model
    assert isinstance(decoder, Decoder)
    with torch.inference_mode():
        decoder.final_norm.weight.fill_(weight)
    loaded.engine.add_request("r", [5, 6], NOTHING, pooling="mean")
    (row,) = rows_until_done(loaded.engine)
    assert (row.finish_reason, row.pooled) == ("error", None)
    assert "hidden state" in (row.error or "")
    assert loaded.engine.pool.num_used == 0
