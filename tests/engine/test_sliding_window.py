"""Texts of many windows through whole engines: blocks are freed as they go, and the text stays what it is without that.

The tiny Gemma 3 has 7 layers, 2 of full attention and 5 with a window of 20 tokens: KV groups of 2 layers, one of them
full, the last padded.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.checkpoint import read_checkpoint
from engine.core.kv_groups import kv_groups, most_blocks
from engine.core.sampling_params import SamplingParams
from engine.core.sizing import kv_bytes_per_block
from engine.engine import Engine
from engine.loading import LoadError
from tests.engine import transformers_oracle as oracle
from tests.engine.stepping import complete, load, rows_until_done
from tests.engine.test_families import oracle_model, prompts
from tests.engine.tiny_families import SHORT_WINDOW, family_checkpoint

SIZE, CHUNK = 8, 24
LIMITS = {"block_size": SIZE, "max_num_batched_tokens": CHUNK}
MOST_SLIDING = -(-(SHORT_WINDOW - 1 + CHUNK) // SIZE) + 1  # blocks of a sliding group at once


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family_checkpoint(tmp_path_factory.mktemp("gemma") / "tiny", "gemma3 uneven")


def sampled(seed: int, tokens: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=tokens, ignore_eos=True)


def steps_of(engine: Engine, prompt: list[int], sampling: SamplingParams) -> tuple[list[int], list[int]]:
    """One request's output, and after each step how many blocks each of its tables holds at most, by group."""
    assert engine.add_request("r", prompt, sampling) is None
    output: list[int] = []
    most = [0] * len(engine.scheduler.kv.groups)
    while engine.has_work():
        for row in engine.step():
            assert row.error is None
            output.extend(row.token_ids)
        engine.scheduler.kv.check()
        tables = engine.scheduler.kv.block_ids("r")
        most = [max(old, sum(block_id != 0 for block_id in table)) for old, table in zip(most, tables, strict=True)]
        assert engine.pool.num_used == sum(block_id != 0 for table in tables for block_id in table)
    return output, most


def test_a_text_of_many_windows_equals_transformers_and_frees_its_blocks(gemma: Path) -> None:
    engine = load(gemma, dtype="float32", **LIMITS).engine
    groups = engine.scheduler.kv.groups
    assert [(group.window, group.layers) for group in groups] == [(0, (2, 5)), (20, (0, 1)), (20, (3, 4)), (20, (6,))]
    (prompt,) = prompts(300)
    output, most = steps_of(engine, prompt, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    assert output == oracle.greedy(oracle_model(gemma, torch.float32), prompt, 60)
    full, *sliding = most
    assert full == (300 + 60) // SIZE
    assert all(0 < blocks < MOST_SLIDING for blocks in sliding), "18 windows long, and never more than about two of it"
    assert engine.pool.num_used == 0


def test_what_does_not_fit_without_freeing_is_served_with_it(gemma: Path) -> None:
    """40 blocks of full attention and a few in each of three sliding groups, where 160 would be needed."""
    config = read_checkpoint(gemma).config
    blocks = most_blocks(kv_groups(config), 320, CHUNK, SIZE) + 1
    assert blocks == 40 + 3 * MOST_SLIDING + 1 < 4 * 40
    memory = blocks * kv_bytes_per_block(config, SIZE, 4)
    (prompt,) = prompts(290)
    roomy = load(gemma, dtype="float32", **LIMITS).engine
    tight = load(gemma, dtype="float32", kv_cache_memory_bytes=memory, max_model_len=320, **LIMITS)
    assert tight.plan.kv.num_blocks == blocks
    expected = complete(roomy, {"r": (prompt, sampled(3, 30))})
    assert complete(tight.engine, {"r": (prompt, sampled(3, 30))}) == expected
    assert tight.engine.scheduler.num_preemptions == 0
    with pytest.raises(LoadError, match="at most 312, the longest that fits") as refused:
        load(gemma, dtype="float32", kv_cache_memory_bytes=memory - 1, max_model_len=320, **LIMITS)
    assert refused.value.kind == "does_not_fit"


@pytest.mark.parametrize(("dtype", "kv_cache_dtype"), [("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "int8")])
def test_company_preemption_and_cached_windows_change_no_text(gemma: Path, dtype: str, kv_cache_dtype: str) -> None:
    config = read_checkpoint(gemma).config
    wishes = LIMITS | {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    requests = {f"r{index}": (prompt, sampled(index, 50)) for index, prompt in enumerate(prompts(150, 90, 33, 121, 8))}
    plain = load(gemma, enable_prefix_caching=False, **wishes)
    assert plain.exactness.level == "bits", plain.exactness.reason
    alone = {name: complete(plain.engine, {name: request})[name] for name, request in requests.items()}
    blocks = most_blocks(kv_groups(config), 208, CHUNK, SIZE) + 1
    memory = blocks * kv_bytes_per_block(config, SIZE, 4 if dtype == "float32" else 2, kv_cache_dtype)
    tight = load(gemma, kv_cache_memory_bytes=memory, max_model_len=208, **wishes).engine
    assert complete(tight, requests) == alone
    assert tight.scheduler.num_preemptions > 0
    assert tight.pool.num_used == 0
    warm = load(gemma, **wishes).engine
    assert complete(warm, requests) == alone
    again = {f"again {name}": request for name, request in requests.items()}
    assert list(complete(warm, again).values()) == list(alone.values())
    assert warm.stats().prefix_cache_hits_total >= 5 * 8


def test_a_second_turn_starts_behind_the_first_with_one_window_of_each_sliding_group(gemma: Path) -> None:
    engine = load(gemma, dtype="float32", **LIMITS).engine
    (prompt,) = prompts(200)
    first, _ = steps_of(engine, prompt, sampled(1, 40))
    turn = [*prompt, *first, 7, 8, 9]
    assert engine.add_request("turn", turn, sampled(2, 20)) is None
    engine.step()
    cached = (len(turn) - 4) // SIZE  # the last token of the first answer was drawn, never computed
    full, *sliding = engine.scheduler.kv.block_ids("turn")
    assert full.count(0) == 0
    assert all(table.count(0) >= cached - SHORT_WINDOW // SIZE - 1 for table in sliding)
    rows = rows_until_done(engine)
    assert rows[-1].summary is not None
    assert rows[-1].summary.num_cached_tokens == cached * SIZE
    plain = load(gemma, dtype="float32", enable_prefix_caching=False, **LIMITS).engine
    expected = complete(plain, {"turn": (turn, sampled(2, 20))})["turn"]
    assert [token for row in rows for token in row.token_ids] == expected[-sum(len(row.token_ids) for row in rows) :]


def test_samples_of_one_prompt_share_its_windows(gemma: Path) -> None:
    engine = load(gemma, dtype="float32", **LIMITS).engine
    (prompt,) = prompts(101)
    assert engine.add_request("r", prompt, sampled(4, 30), n=4) is None
    texts: dict[int, list[int]] = {index: [] for index in range(4)}
    most = 0
    while engine.has_work():
        for row in engine.step():
            texts[row.index].extend(row.token_ids)
        engine.scheduler.kv.check()
        most = max(most, engine.pool.num_used)
    assert len({tuple(text) for text in texts.values()}) == 4
    assert most <= 13 + 4 * 4 + 4 * 3 * MOST_SLIDING, "the prompt's 13 full blocks are held once"
    assert engine.pool.num_used == 0
    alone = load(gemma, dtype="float32", **LIMITS).engine
    assert complete(alone, {"r": (prompt, sampled(4, 30))})["r"] == texts[0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_no_kernel_sees_a_block_that_the_window_passed(gemma: Path, dtype: str) -> None:
    """The reference (float64) reads whole splits of keys, and NaN would survive that those outside weigh nothing.

    So the blocks that the engine gave back are filled with NaN, as an upset neighbour might leave them. The pool is so
    large that this request gets none of them again.
    """
    (prompt,) = prompts(120)
    expected = complete(load(gemma, dtype=dtype, **LIMITS).engine, {"r": (prompt, sampled(5, 20))})["r"]
    loaded = load(gemma, dtype=dtype, enable_prefix_caching=False, **LIMITS)
    assert loaded.engine.add_request("r", prompt, sampled(5, 20)) is None
    output: list[int] = []
    before: set[int] = set()
    poisoned = 0
    while loaded.engine.has_work():
        for row in loaded.engine.step():
            output.extend(row.token_ids)
        held = {block_id for table in loaded.engine.scheduler.kv.block_ids("r") for block_id in table}
        with torch.inference_mode():
            for block_id in before - held:
                poisoned += 1
                for cache in loaded.runner.caches:
                    cache.keys[block_id] = cache.values[block_id] = torch.nan
        before = held - {0}
    assert poisoned > 3 * (140 - SHORT_WINDOW - CHUNK) // SIZE
    assert output == expected
