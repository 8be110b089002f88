"""A KV cache in codes, through whole engines: what it costs, and that all that holds of texts holds with it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import ConfigError, LoadOptions, check_kv_cache_dtype
from engine.core.sampling_params import SamplingParams
from engine.core.sizing import kv_bytes_per_block
from engine.loading import LoadError
from tests.engine.stepping import complete, load, prompt_logits, rows_until_done
from tests.engine.test_batching import fancy_wishes
from tests.engine.test_families import prompts
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_foreign import foreign_checkpoint

INT8 = {"kv_cache_dtype": "int8"}
MEAN_ERROR, MAX_ERROR = 0.05, 1.0  # of log probabilities; measured: 0.024 and 0.36, in logits that vary by 1.6
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("kv") / "tiny")


@pytest.mark.parametrize(("dtype", "head_dim"), [("float32", 16), ("bfloat16", 64)])
def test_company_chunks_preemption_and_cached_prefixes_change_no_text(
    dtype: str, head_dim: int, tmp_path: Path
) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny", head_dim=head_dim)
    requests = fancy_wishes()
    plain = load(path, dtype=dtype, enable_prefix_caching=False, **INT8)
    assert plain.exactness.level == "bits", plain.exactness.reason
    alone = {name: complete(plain.engine, {name: request})[name] for name, request in requests.items()}
    memory = 24 * kv_bytes_per_block(plain.info.config, 16, 2, "int8")
    tight = load(
        path, dtype=dtype, max_num_batched_tokens=24, max_model_len=128, kv_cache_memory_bytes=memory, **INT8
    ).engine
    assert complete(tight, requests) == alone
    assert tight.scheduler.num_preemptions > 0
    warm = load(path, dtype=dtype, **INT8).engine
    complete(warm, requests)
    hits = warm.stats().prefix_cache_hits_total
    again = {f"again {name}": request for name, request in requests.items()}
    assert list(complete(warm, again).values()) == list(alone.values())
    assert warm.stats().prefix_cache_hits_total > hits


def test_another_dtype_of_the_cache_gives_its_blocks_other_names(tiny: Path) -> None:
    names: list[bytes] = []
    for kv_cache_dtype in ("auto", "auto", "int8"):
        engine = load(tiny, kv_cache_dtype=kv_cache_dtype).engine
        assert engine.add_request("r", list(range(3, 23)), GREEDY) is None
        engine.step()
        names.append(engine.scheduler.requests["r"].block_hashes[0])
    assert names[0] == names[1] != names[2]


def test_the_pool_is_the_planned_one_and_holds_nearly_twice_the_tokens(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny", head_dim=64)
    plain, coded = (load(path, kv_cache_memory_bytes=1 << 20, **wish) for wish in ({}, INT8))
    assert coded.plan.kv.num_blocks >= 1.8 * plain.plan.kv.num_blocks
    for loaded in (plain, coded):
        held = 0
        for cache in {id(cache): cache for cache in loaded.runner.caches}.values():
            tensors = (cache.keys, cache.values, cache.key_scales, cache.value_scales)
            held += sum(tensor.nbytes for tensor in tensors if tensor is not None)
        assert held == loaded.plan.kv.kv_bytes <= 1 << 20
        assert loaded.engine.pool.num_total == loaded.plan.kv.num_blocks - 1
    assert coded.runner.caches[0].keys.dtype == torch.int8


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_error_of_codes_is_small_and_there(dtype: str, tiny: Path) -> None:
    """Log probabilities at all positions of a prompt, against the same engine with its own dtype in the cache."""
    (prompt,) = prompts(120)

    def logprobs(**wish: Any) -> torch.Tensor:
        loaded = load(tiny, dtype=dtype, max_num_seqs=128, max_num_batched_tokens=128, **wish)
        return prompt_logits(loaded.runner, prompt).double().log_softmax(-1)

    apart = (logprobs(**INT8) - logprobs()).abs()
    assert 1e-4 < float(apart.mean()) < MEAN_ERROR
    assert float(apart.max()) < MAX_ERROR


def test_a_model_of_transformers_keeps_its_text(tmp_path: Path) -> None:
    path = foreign_checkpoint(tmp_path / "foreign", "starcoder2")
    engine = load(path, dtype="float32", max_num_batched_tokens=16, max_model_len=256, **INT8).engine
    wanted = {f"r{index}": (prompt, GREEDY) for index, prompt in enumerate(prompts(40, 77))}
    together = complete(engine, wanted)
    whole = load(path, dtype="float32", max_model_len=256, enable_prefix_caching=False, **INT8).engine
    assert {name: complete(whole, {name: request})[name] for name, request in wanted.items()} == together
    prompt, sampling = wanted["r1"]
    assert engine.add_request("again", prompt, sampling) is None
    rows = rows_until_done(engine)
    assert rows[-1].summary is not None
    assert rows[-1].summary.num_cached_tokens > 0
    assert [token for row in rows for token in row.token_ids] == together["r1"]


def test_fp8_is_refused_where_the_device_lacks_it(tiny: Path) -> None:
    with pytest.raises(LoadError, match=r'kv_cache_dtype="fp8": .* the device is a CPU; use "int8"') as refused:
        load(tiny, device="cpu", kv_cache_dtype="fp8")
    assert refused.value.kind == "bad_options"
    fp8 = LoadOptions(kv_cache_dtype="fp8")
    with pytest.raises(ConfigError, match=r'8\.9 or more, this one has 8\.6; use "int8"'):
        check_kv_cache_dtype(fp8, "cuda", (8, 6))
    for capability in ((8, 9), (9, 0), None):
        check_kv_cache_dtype(fp8, "cuda", capability)
    with pytest.raises(ConfigError, match="kv_cache_dtype='int4': known are auto, int8, fp8"):
        LoadOptions(kv_cache_dtype="int4")
