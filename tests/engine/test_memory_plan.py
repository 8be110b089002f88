"""The plan of a load against the tensors that are really there, and against a real engine process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from engine.checkpoint import CheckpointInfo, TensorInfo, read_checkpoint
from engine.checkpoint.drafting import decide
from engine.checkpoint.info import GROUP_SCHEMES, STORAGE_FORMATS
from engine.config import GIB, MIB, LoadOptions
from engine.core.memory_plan import FP32_BYTES, MemoryPlan, largest_reading, plan_memory, workspace_bytes
from engine.core.sampling_params import SamplingParams
from engine.core.sizing import DTYPE_BYTES, RUNTIME_BYTES, SizingError
from engine.core.speculation import most_sampled_rows
from engine.layers.rotary import RotaryTables
from engine.models.workspace import Workspace
from engine.protocol import EngineReady
from engine.quant import resolve_format
from engine.runner.model_runner import backend_wishes
from engine.sample.row import SamplingRow
from engine.sample.sampler import Sampler
from kernels.group_quant import GroupQuant
from kernels.ops import Ops, accumulation_dtype
from kernels.registry import load_ops
from kernels.triton_ops.attention import SCRATCH_NUMBERS
from tests.engine.drawing import draw
from tests.engine.spawned import Spawned
from tests.engine.stepping import load
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.tiny_foreign import foreign_checkpoint

CPU = torch.device("cpu")
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
NATIVE = ["qwen2", "qwen3", "qwen3_moe", "phi3", "smollm3", "granite", "gemma2", "gemma3", "olmo2", "mistral window"]


@pytest.fixture(scope="module")
def infos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckpointInfo]:
    folder = tmp_path_factory.mktemp("families")
    return {name: read_checkpoint(family_checkpoint(folder / name, name)) for name in NATIVE}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", NATIVE)
def test_the_tensors_of_a_step_are_those_of_the_plan(
    variant: str, dtype: str, infos: dict[str, CheckpointInfo]
) -> None:
    config, torch_dtype = infos[variant].config, DTYPES[dtype]
    options = LoadOptions(max_num_batched_tokens=64, max_num_seqs=16)
    planned = workspace_bytes(config, options, 100, DTYPE_BYTES[dtype], "cpu")
    workspace = Workspace.allocate(config, 64, most_sampled_rows(options), torch_dtype, CPU)
    assert planned.activations + planned.logits == workspace.nbytes
    assert planned.logits == workspace.picked.nbytes + workspace.logits.nbytes
    tables = RotaryTables(config, 100, accumulation_dtype(torch_dtype), CPU)
    made = {
        table.data_ptr(): table.nbytes for layer in range(config.num_hidden_layers) for table in tables.of_layer(layer)
    }
    assert planned.rotary == sum(made.values())
    assert planned.total == sum(planned.parts().values())


def test_rows_that_need_padding_are_planned_with_it(infos: dict[str, CheckpointInfo]) -> None:
    config = infos["qwen3"].config
    for speculation, sampled in (("off", 16), ("suffix", 32)):  # 3 requests, and with 8 drafts each 27 rows
        options = LoadOptions(max_num_batched_tokens=50, max_num_seqs=3, speculation=speculation)
        planned = workspace_bytes(config, options, 100, 4, "cpu")
        step = Workspace.allocate(config, 64, sampled, torch.float32, CPU)
        assert planned.activations + planned.logits == step.nbytes


@pytest.mark.parametrize("variant", ["qwen3_moe", "gemma3", "smollm3"])
def test_the_weights_and_the_pool_are_those_of_the_plan(variant: str, infos: dict[str, CheckpointInfo]) -> None:
    info = infos[variant]
    loaded = load(info.path, max_model_len=128, dtype="bfloat16")
    assert loaded.runner.weights_bytes == loaded.plan.weights_bytes
    caches = {cache.keys.data_ptr(): cache.keys.nbytes + cache.values.nbytes for cache in loaded.runner.caches}
    assert sum(caches.values()) == loaded.plan.kv.kv_bytes


# ---- what ops allocate for a moment ---------------------------------------------------------------------------------


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that tensors allocated by `work` held at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    results: Any = profiled.profiler
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in results.kineto_results.events()
        if event.name() == "[memory]"
    )  # fmt: skip
    level = peak = 0
    for _, change in changes:
        level += change
        peak = max(peak, level)
    return peak


def ops_of(backend: str, dtype: torch.dtype) -> Ops:
    return load_ops(backend_wishes(CPU, dtype) if backend == "cpu_ops" else [], dtype, CPU, 1)[0]


@pytest.mark.parametrize("backend", ["cpu_ops", "reference"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("agree", [True, False])
def test_a_mixture_stays_within_its_share(agree: bool, dtype: str, backend: str, infos: Any) -> None:
    """The share is for tokens that all pick the same experts, which takes the most."""
    rows, experts, hidden, inner, chosen = 128, 8, 256, 192, 3
    config = replace(
        infos["qwen3_moe"].config,
        hidden_size=hidden,
        intermediate_size=inner,
        num_experts=experts,
        num_experts_per_token=chosen,
    )
    share = workspace_bytes(config, LoadOptions(max_num_batched_tokens=rows), 1, DTYPE_BYTES[dtype], "cpu").experts
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DTYPES[dtype])

    x = random(rows, hidden).abs() if agree else random(rows, hidden)
    router = random(experts, hidden)
    if agree:
        router.copy_(torch.linspace(0, 1, experts).unsqueeze(1).expand_as(router))
    weights = router, random(experts, 2 * inner, hidden), random(experts, hidden, inner)
    ops, out = ops_of(backend, DTYPES[dtype]), torch.empty_like(x)
    used = peak_bytes(lambda: ops.mixture_mlp(out, x, *weights, chosen, True))
    assert used <= share
    assert not agree or used > 0.8 * share


@pytest.mark.parametrize("backend", ["cpu_ops", "reference"])
@pytest.mark.parametrize(
    "wish",
    [
        {"typical_p": 0.9},
        {"top_p": 0.99999, "top_k": 0, "repetition_penalty": 1.2},
        {"xtc_probability": 1.0, "xtc_threshold": 1e-9, "min_p": 1e-9, "logit_bias": {5: 1.0}},
        {"logprobs": 20},
    ],
    ids=lambda wish: next(iter(wish)),
)
def test_sampling_stays_within_its_share(wish: dict[str, Any], backend: str, infos: dict[str, CheckpointInfo]) -> None:
    rows, vocabulary = 8, 20_000
    config = replace(infos["qwen3"].config, vocab_size=vocabulary)
    share = workspace_bytes(config, LoadOptions(max_num_seqs=rows), 1, 4, "cpu").sampling
    params = SamplingParams(temperature=1.0, **wish)
    row = SamplingRow(sampling=params, seed=7, position=3, sample_index=0, num_prompt_tokens=2, token_ids=[3, 4])
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    ops = ops_of(backend, torch.float32)
    used = peak_bytes(lambda: draw(Sampler(ops, logits), logits, [row] * rows))
    assert (0 if "logprobs" in wish else logits.nbytes) < used <= share


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("model_type", ["gpt2", "olmoe"])
def test_transformers_layers_stay_within_their_share(model_type: str, dtype: str, tmp_path: Path) -> None:
    path = foreign_checkpoint(tmp_path / model_type, model_type)
    loaded = load(path, dtype=dtype, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=256)
    options = LoadOptions(max_num_seqs=4, max_num_batched_tokens=256)
    share = workspace_bytes(loaded.info.config, options, 256, DTYPE_BYTES[dtype], "cpu")
    for index in range(2):
        loaded.engine.add_request(str(index), [5 + token % 200 for token in range(128)], SamplingParams(max_tokens=1))
    used = peak_bytes(loaded.engine.step)
    assert 0.3 * share.transformers < used <= share.transformers + share.sampling


# ---- what the plan makes of it --------------------------------------------------------------------------------------


def planned(info: CheckpointInfo, available: int, **options: Any) -> MemoryPlan:
    return plan_memory(info.config, info.weights_bytes(2), LoadOptions(**options), available, 2, "cpu", 10 * MIB)


def test_a_plan_that_fits_holds_everything_at_once(infos: dict[str, CheckpointInfo]) -> None:
    for available in range(11 * MIB, 16 * MIB, MIB // 7):
        plan = planned(infos["gemma3"], available)
        if plan.kv is not None:
            assert plan.fixed_bytes + plan.kv.kv_bytes <= available
            assert plan.workspace.rotary >= 2 * 2 * plan.kv.max_model_len * 8 * 4
            assert "KV cache" in plan.items()
        else:
            assert plan.refusal is not None


def test_the_longest_context_of_a_refusal_fits_when_it_is_asked_for(tmp_path: Path) -> None:
    info = read_checkpoint(tiny_llama_checkpoint(tmp_path / "tiny", max_position_embeddings=1_000_000))
    refused = 0
    for available in range(11 * MIB, 60 * MIB, 3 * MIB):
        plan = planned(info, available, max_model_len=900_000)
        if plan.refusal is None or plan.refusal.max_model_len_that_fits == 0:
            continue
        refused += 1
        longest = plan.refusal.max_model_len_that_fits
        assert f"{longest}" in plan.refusal_message()
        assert planned(info, available, max_model_len=longest).kv is not None
    assert refused > 5


@pytest.mark.parametrize("form", ["BF16", "F32", "Q8_0", "Q4_1", "Q4_K", "Q5_1", "Q6_K"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_reading_a_tensor_stays_within_its_share(dtype: str, form: str) -> None:
    layout = STORAGE_FORMATS[form]
    shape, nbytes = (1024, 256), 1024 * 256 // layout.elements * layout.nbytes
    tensor = TensorInfo("w", form, shape, Path("w.gguf"), 0, nbytes, scheme=GROUP_SCHEMES.get(form))
    raw = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    ops, _ = load_ops(backend_wishes(CPU, DTYPES[dtype]), DTYPES[dtype], CPU, num_threads=1)

    def load() -> None:
        weights = resolve_format(form)(tensor, {"": raw})
        if isinstance(weights, GroupQuant):
            ops.prepare_group_quant(weights)
        else:
            (weights.clone() if form == "F32" else weights).to(DTYPES[dtype])  # which lies in the file as it is

    used = peak_bytes(load)
    share = largest_reading([TensorInfo("v", "F32", (5, 5), Path("w.gguf"), 0, 100), tensor], DTYPE_BYTES[dtype])
    assert 0.4 * share < used <= share


def test_what_cannot_be_read_is_refused_though_it_could_be_kept(infos: dict[str, CheckpointInfo]) -> None:
    info, options = infos["qwen3"], LoadOptions(max_model_len=64, kv_cache_memory_bytes=MIB)
    for reading, fits in ((MIB, True), (20 * MIB, False)):
        plan = plan_memory(info.config, info.weights_bytes(2), options, 16 * MIB, 2, "cpu", 10 * MIB, reading)
        assert (plan.kv is not None) == fits
    assert plan.peak_while_reading == plan.weights_bytes + 30 * MIB
    assert "while the weights are read" in plan.refusal_message()
    assert "one tensor 20.0 MiB more" in plan.refusal_message()


def test_a_refusal_names_the_items_and_who_has_the_rest(infos: dict[str, CheckpointInfo]) -> None:
    plan = planned(infos["qwen3"], 10 * MIB)
    with pytest.raises(SizingError, match=r"runtime 10\.0 MiB") as refused:
        plan.required_kv("In use already: other programs 3.00 GiB")
    for words in ("weights", "workspace", "short by", "other programs 3.00 GiB", "Unload another model"):
        assert words in str(refused.value)
    assert (refused.value.needed_bytes, refused.value.max_model_len_that_fits) == (plan.fixed_bytes, 0)
    exact = planned(infos["qwen3"], 20 * MIB, kv_cache_memory_bytes=GIB)
    assert "kv_cache_memory_bytes" in exact.refusal_message("held")
    assert f"At most {infos['qwen3'].config.max_position_embeddings} tokens would fit" in exact.refusal_message()


@pytest.mark.parametrize("options", [{}, {"dtype": "float32", "max_num_batched_tokens": 2048, "max_num_seqs": 64}])
def test_a_real_process_holds_what_was_planned(options: dict[str, Any], default_model_path: Path) -> None:
    """To 200 MiB: the plan allows for a larger torch, and for what a step needs and a process at rest does not."""
    wishes = {"kv_cache_memory_bytes": 256 * MIB, **options}
    engine = Spawned(default_model_path, num_threads=1, **wishes)
    try:
        ready = engine.until(EngineReady)
    finally:
        engine.process.kill()
        engine.process.wait()
    info, size = read_checkpoint(default_model_path), DTYPE_BYTES[wishes.get("dtype", "auto")]
    chosen = LoadOptions(**wishes)
    needs = decide(info, chosen).needs(info, chosen, size)
    plan = plan_memory(
        info.config, info.weights_bytes(size), chosen, 16 * GIB, size, "cpu", RUNTIME_BYTES, draft=needs
    )  # fmt: skip
    assert plan.kv is not None
    memory = ready.memory
    assert (memory.weights_bytes, memory.kv_bytes) == (plan.weights_bytes, plan.pool_bytes)
    assert memory.draft_weights_bytes == needs.weights
    assert memory.workspace_bytes <= plan.workspace.activations + plan.workspace.logits + needs.buffers
    assert 0 <= plan.fixed_bytes + plan.pool_bytes - memory.process_bytes <= 200 * MIB


def test_what_a_gpus_attention_leaves_behind_is_planned(infos: dict[str, CheckpointInfo]) -> None:
    config, options = infos["qwen2"].config, LoadOptions()
    on_cpu, on_gpu = (workspace_bytes(config, options, 100, 4, device) for device in ("cpu", "cuda"))
    at_most = SCRATCH_NUMBERS * FP32_BYTES
    assert on_cpu.kernels == 0
    assert at_most * 1.04 <= on_gpu.kernels <= at_most * 1.1
    assert on_gpu.total - on_cpu.total == on_gpu.kernels
