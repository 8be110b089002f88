"""Several samples of one prompt: each its own text, the prompt computed once, every block counted and freed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.outputs import RequestOutput
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from tests.engine.stepping import load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

PROMPT = [5 + index % 90 for index in range(70)]
WISH = SamplingParams(seed=11, max_tokens=20, ignore_eos=True)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return load(tiny_llama_checkpoint(tmp_path / "tiny")).engine


def texts(rows: list[RequestOutput]) -> dict[tuple[str, int], list[int]]:
    """Output tokens by request id and sample; each sample must end exactly once."""
    found: dict[tuple[str, int], list[int]] = {}
    ended: list[tuple[str, int]] = []
    for row in rows:
        found.setdefault((row.request_id, row.index), []).extend(row.token_ids)
        if row.finish_reason is not None:
            assert row.summary is not None
            ended.append((row.request_id, row.index))
    assert sorted(ended) == sorted(found)
    return found


def test_the_prompt_is_computed_once_and_its_blocks_are_shared(engine: Engine) -> None:
    engine.add_request("r", PROMPT, WISH, n=4)
    assert engine.stats().num_requests_waiting == 4
    engine.step()
    assert (len(engine.scheduler.running), len(engine.scheduler.waiting)) == (1, 3)
    engine.step()
    assert engine.pool.num_used == 4 + 4, "4 whole blocks of the prompt, and one block of each sample's own"
    rows = rows_until_done(engine)
    assert engine.stats().prompt_tokens_total == 70 + 3 * (70 - 64)
    summaries = [row.summary for row in rows if row.summary is not None]
    assert sorted(one.num_cached_tokens for one in summaries) == [0, 64, 64, 64]
    assert {one.seed for one in summaries} == {11}
    assert engine.pool.num_used == 0


@pytest.mark.parametrize("n", [1, 5])
def test_a_sample_is_the_same_whatever_their_number_and_differs_from_its_siblings(engine: Engine, n: int) -> None:
    engine.add_request("r", PROMPT, WISH, n=n)
    few = texts(rows_until_done(engine))
    assert len({tuple(text) for text in few.values()}) == n
    engine.add_request("r", PROMPT, WISH, n=7)
    many = texts(rows_until_done(engine))
    assert {key: many[key] for key in few} == few


def test_samples_survive_preemption_and_need_no_cache(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    roomy = load(path).engine
    tight = load(path, kv_cache_memory_bytes=14 * 16 * 2 * 2 * 2 * 16 * 2, max_model_len=128).engine
    uncached = load(path, enable_prefix_caching=False).engine
    found = []
    for engine in (roomy, tight, uncached):
        engine.add_request("r", PROMPT, replace(WISH, max_tokens=40, repetition_penalty=1.2), n=6)
        found.append(texts(rows_until_done(engine)))
        assert engine.pool.num_used == 0
    assert found[0] == found[1] == found[2]
    assert tight.scheduler.num_preemptions > 0


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_abort_ends_all_samples_in_whatever_state(engine: Engine, steps: int) -> None:
    engine.add_request("r", PROMPT, WISH, n=4)
    for _ in range(steps):
        engine.step()
    rows = engine.abort_request("r")
    assert sorted((row.index, row.finish_reason) for row in rows) == [(index, "abort") for index in range(4)]
    assert engine.abort_request("r") == []
    assert not engine.has_requests()
    assert engine.pool.num_used == 0
    engine.scheduler.kv.check()


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("steps", [0, 3])
def test_one_sample_can_be_ended_and_the_others_go_on(engine: Engine, index: int, steps: int) -> None:
    engine.add_request("r", PROMPT, WISH, n=4)
    rows = [row for _ in range(steps) for row in engine.step()]
    rows += engine.abort_request("r", 0, index=index)
    rows += rows_until_done(engine)
    lengths = {key[1]: len(text) for key, text in texts(rows).items()}
    assert {other: lengths[other] for other in range(4) if other != index} == dict.fromkeys({0, 1, 2, 3} - {index}, 20)
    assert lengths[index] < 20


def test_prompt_logprobs_come_with_the_first_sample_alone(engine: Engine) -> None:
    engine.add_request("r", PROMPT, replace(WISH, prompt_logprobs=2, logprobs=1), n=3)
    rows = rows_until_done(engine)
    prompts = [row for row in rows if row.prompt_logprobs is not None]
    assert [row.index for row in prompts] == [0]
    assert prompts[0].prompt_logprobs is not None
    assert len(prompts[0].prompt_logprobs.logprobs) == 69
    assert all(row.logprobs is not None for row in rows)


def test_a_number_of_samples_out_of_range_is_refused(engine: Engine) -> None:
    for n in (0, 129):
        refused = engine.add_request("r", PROMPT, WISH, n=n)
        assert refused is not None
        assert refused.error == f"n={n}: must lie between 1 and 128"
    engine.add_request("r", PROMPT, WISH, n=2)
    taken = engine.add_request("r", PROMPT, WISH)
    assert taken is not None
    assert taken.error is not None
    assert "already running" in taken.error
