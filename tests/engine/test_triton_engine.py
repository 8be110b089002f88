"""The whole engine on the Triton kernels in their interpreter: a tiny fp32 model gives what the reference does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.loading import LoadedEngine
from kernels.triton_ops.group_words import WordsQuant
from tests.engine.stepping import complete, load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

BLOCK = 16
PROMPT, VERIFIED = 21, 8


def engine_on(backend: str, path: Path, **wishes: Any) -> LoadedEngine:
    """The interpreter copies what a kernel is given, the whole cache too: it is small."""
    sizes = {"max_num_seqs": VERIFIED, "max_num_batched_tokens": 48, "max_model_len": 96}
    sizes["kv_cache_memory_bytes"] = 1 << 19
    return load(path, kernel_backend=backend, dtype="float32", **(sizes | wishes))


def test_greedy_and_drawn_tokens_are_those_of_the_reference(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    generator = torch.Generator().manual_seed(3)
    requests = {
        f"r{index}": (
            torch.randint(3, 320, (length,), generator=generator).tolist(),
            SamplingParams(temperature=temperature, top_p=top_p, seed=index, max_tokens=4, ignore_eos=True),
        )
        for index, (length, temperature, top_p) in enumerate(((5, 0.0, 1.0), (18, 1.0, 0.9), (33, 1.0, 1.0)))
    }
    expected = complete(engine_on("reference", path).engine, requests)
    loaded = engine_on("triton_ops", path)
    assert loaded.exactness.level == "bits", loaded.exactness.reason
    served = {choice.op: choice.backend for choice in loaded.runner.kernels}
    for op in ("linear", "paged_attention", "rotary_kv_write", "add_rms_norm", "silu_mul", "embedding", "draw"):
        assert served[op] == "triton_ops", op
    assert complete(loaded.engine, requests) == expected


def test_drafts_change_no_token(tmp_path: Path) -> None:
    """Prompt lookup in texts of three tokens, which repeat: drafted as much as may be, some right and some wrong."""
    path = tiny_llama_checkpoint(tmp_path / "tiny", num_hidden_layers=1)
    options = {"num_speculative_tokens": 3, "max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 32}
    few = SamplingParams(max_tokens=9, ignore_eos=True, allowed_token_ids=(7, 8, 9), seed=3)
    requests = {
        "greedy": ([5, 7, 8, 9, 7, 8], replace(few, temperature=0.0)),
        "drawn": ([7, 8, 9, 8, 7, 7, 8, 8], replace(few, temperature=1.0)),
    }
    engine = engine_on("triton_ops", path, speculation="ngram", **options).engine

    def told(wish: SpeculationParams) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {name: [] for name in requests}
        for name, (prompt, sampling) in requests.items():
            assert engine.add_request(name, prompt, sampling, speculation=wish) is None
        for row in rows_until_done(engine):
            assert row.error is None, row.error
            found[row.request_id] += row.token_ids
        return found

    plain = told(SpeculationParams(enabled=False))
    assert plain == complete(engine_on("reference", path, **options).engine, requests)
    total = engine.speculator.total
    assert total.drafts == 0
    assert told(SpeculationParams(adaptive=False, proposer="ngram")) == plain
    assert 0 < total.accepted < total.drafted
    drafted = total.drafted
    rejecting = told(SpeculationParams(adaptive=False, proposer="ngram", rule="rejection"))
    assert total.drafted > drafted
    assert rejecting["greedy"] == plain["greedy"]
    assert [len(tokens) for tokens in rejecting.values()] == [few.max_tokens] * 2


def share(name: str, tokens: list[int], start: int, first_block: int) -> SchedulerOutput:
    """A step of one request, whose blocks stand side by side from `first_block` on."""
    blocks = range(first_block, first_block + -(-(PROMPT + VERIFIED) // BLOCK)) if start == 0 else range(0)
    request = ScheduledRequest(
        request_id=name,
        first=start == 0,
        token_ids=tuple(tokens),
        num_computed_tokens=start,
        block_ids=(tuple(blocks),),
        samples=True,
        sampling=SamplingParams(temperature=0),
        seed=0,
        num_prompt_tokens=PROMPT + VERIFIED,
    )
    return SchedulerOutput((request,), ())


def test_eight_rows_of_a_request_in_one_step_are_eight_steps(tmp_path: Path) -> None:
    """With weights in codes: the dense ones are in the test above."""
    path = tiny_llama_checkpoint(tmp_path / "tiny", format="gguf", dtype="Q4_1")
    runner = engine_on("triton_ops", path).runner
    assert {choice.op: choice.backend for choice in runner.kernels}["group_linear"] == "triton_ops"
    assert any(isinstance(weight, WordsQuant) for weight in runner.model.weights())
    tokens = torch.randint(3, 320, (PROMPT + VERIFIED,), generator=torch.Generator().manual_seed(4)).tolist()
    for name, first_block in (("together", 1), ("single", 5)):
        runner.logits(share(name, tokens[:PROMPT], 0, first_block))
    runner.logits(share("together", tokens[PROMPT:], PROMPT, 1))
    with torch.inference_mode():
        together = runner._row_logits(0, VERIFIED)[:VERIFIED].clone()
    for row in range(VERIFIED):
        alone = runner.logits(share("single", [tokens[PROMPT + row]], PROMPT + row, 5))
        assert torch.equal(alone[0], together[row]), row
