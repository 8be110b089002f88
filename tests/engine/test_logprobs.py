"""Log probabilities against transformers' log_softmax: of answers and prompts, whole, in chunks, preempted, cached."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.transformers_llama import build
from engine.core.outputs import Logprobs, RequestOutput
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.sample.logprobs import log_probabilities
from kernels.registry import load_ops
from tests.engine import transformers_oracle as oracle
from tests.engine.stepping import load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

TOP = 3
WISH = SamplingParams(seed=5, max_tokens=12, ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP)
PROMPTS = [[3 + (index * 7 + length) % 300 for index in range(length)] for length in (1, 2, 37, 70)]
TOLERANCE = 2e-5
TIGHT_POOL_BYTES = 11 * 16 * 2 * 2 * 2 * 16 * 4


def run(engine: Engine, params: SamplingParams = WISH) -> dict[str, tuple[list[int], Logprobs, Logprobs | None]]:
    """Every prompt at once: output tokens, their log probabilities and the prompt's."""
    for index, prompt in enumerate(PROMPTS):
        assert engine.add_request(str(index), prompt, params) is None
    found: dict[str, tuple[list[int], Logprobs, Logprobs | None]] = {}
    for row in rows_until_done(engine):
        collect(found, row)
    assert engine.pool.num_used == 0
    return found


def collect(found: dict[str, tuple[list[int], Logprobs, Logprobs | None]], row: RequestOutput) -> None:
    assert row.error is None
    assert row.logprobs is not None
    if row.request_id not in found:
        found[row.request_id] = ([], Logprobs(), row.prompt_logprobs)
    else:
        assert row.prompt_logprobs is None, "the prompt's come once, with the first token"
    found[row.request_id][0].extend(row.token_ids)
    found[row.request_id][1].extend(row.logprobs)


def check(logprobs: Logprobs, truth: torch.Tensor, tokens: list[int]) -> None:
    """truth: log probabilities [len(tokens), V] at the tokens' places."""
    assert len(logprobs.logprobs) == len(logprobs.top_logprobs) == len(tokens)
    for index, token_id in enumerate(tokens):
        assert logprobs.logprobs[index] == pytest.approx(float(truth[index, token_id]), abs=TOLERANCE)
        best = torch.topk(truth[index], TOP)
        assert logprobs.top_token_ids[index] == best.indices.tolist()
        assert logprobs.top_logprobs[index] == pytest.approx(best.values.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="whole"),
        pytest.param({"max_num_batched_tokens": 16, "max_num_seqs": 3}, id="chunks"),
        pytest.param({"kv_cache_memory_bytes": TIGHT_POOL_BYTES, "max_model_len": 128}, id="preempted"),
    ],
)
def test_they_are_those_of_transformers(options: dict[str, int], tmp_path: Path) -> None:
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), dtype="float32", **options)
    model = build(loaded.info, torch.float32)
    found = run(loaded.engine)
    assert ("kv_cache_memory_bytes" in options) == (loaded.engine.scheduler.num_preemptions > 0)
    for index, prompt in enumerate(PROMPTS):
        output, logprobs, prompt_logprobs = found[str(index)]
        truth = torch.log_softmax(oracle.logits(model, [*prompt, *output]), -1)
        check(logprobs, truth[len(prompt) - 1 : -1], output)
        assert prompt_logprobs is not None
        check(prompt_logprobs, truth[: len(prompt) - 1], prompt[1:])


def test_a_cached_prefix_is_not_read_where_the_prompts_are_wanted(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny"), dtype="bfloat16").engine
    cold = run(engine)
    assert engine.pool.num_cached > 0
    assert run(engine) == cold, "the same bits, though every block was in the cache"
    assert engine.scheduler.prefix_hits == 0
    answers = run(engine, replace(WISH, prompt_logprobs=None))
    assert engine.scheduler.prefix_hits > 0
    assert {name: answer[:2] for name, answer in answers.items()} == {name: one[:2] for name, one in cold.items()}


def test_processed_ones_are_of_what_was_drawn_from(tmp_path: Path) -> None:
    engine = load(tiny_llama_checkpoint(tmp_path / "tiny"), dtype="float32").engine
    params = replace(WISH, temperature=0.5, top_k=2, logprobs=5, logprobs_mode="processed", prompt_logprobs=None)
    for output, logprobs, prompt_logprobs in run(engine, params).values():
        assert prompt_logprobs is None
        for token_id, own, ids, values in zip(
            output, logprobs.logprobs, logprobs.top_token_ids, logprobs.top_logprobs, strict=True
        ):
            assert len(ids) == 2, "what the filters dropped is not listed"
            assert sum(map(math.exp, values)) == pytest.approx(1.0, abs=1e-5)
            assert own == values[ids.index(token_id)]


@pytest.mark.parametrize("backend", ["reference", "cpu_ops"])
def test_ties_are_listed_by_id_and_zero_alternatives_are_none(backend: str) -> None:
    ops = load_ops([backend], torch.float32, torch.device("cpu"), num_threads=2)[0]
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0], [-math.inf, 2.0, -math.inf, 5.0, -math.inf]])
    found = log_probabilities(logits, [4, 1], 3, ops)
    assert found.top_token_ids == [[1, 3, 0], [3, 1]], "what cannot come is not listed"
    assert found.logprobs[1] == found.top_logprobs[1][1]
    alone = log_probabilities(logits, [4, 1], 0, ops)
    assert (alone.logprobs, alone.top_token_ids, alone.top_logprobs) == (found.logprobs, [[], []], [[], []])
