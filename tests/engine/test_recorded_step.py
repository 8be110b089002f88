"""Recorded steps: a replay leaves the bits of the step it stands for; what cannot be replayed is not, and is told."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import ConfigError, LoadOptions, check_kernel_backend
from engine.core.sampling_params import SamplingParams
from engine.loading import LoadedEngine, LoadError
from engine.runner.recorded_step import StepShape, StepShapes, graph_classes
from kernels.cpu_ops import tape as tapes
from kernels.cpu_ops.tape import Tape
from kernels.cuda_graphs import Capturing, CudaGraphs, Graph
from tests.engine.stepping import complete, load
from tests.engine.test_batching import wishes
from tests.engine.test_families import prompts
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint
from tests.engine.tiny_foreign import foreign_checkpoint

CASES: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_llama_checkpoint,
    "llama in codes": lambda folder: tiny_llama_checkpoint(folder, format="gguf", dtype="Q4_0"),
    "windows in four KV groups": lambda folder: family_checkpoint(folder, "gemma3 uneven"),
    "norms behind": lambda folder: family_checkpoint(folder, "olmo2"),
    "scales": lambda folder: family_checkpoint(folder, "granite"),
}


class RunsAgain:
    """Stands in for CUDA where kernels run in Triton's interpreter: a graph calls the step."""

    def warm_up(self, step: Callable[[], None]) -> None:
        step()

    def capture(self, step: Callable[[], None]) -> Graph:
        class Replay:
            def replay(self) -> None:
                step()

        return Replay()


class CapturedOnCpu:
    """Stands in for CUDA: a graph keeps the addresses and sizes of the kernel calls, as a real one does."""

    def __init__(self, fails_at: StepShape | None = None) -> None:
        self.captured: list[int] = []
        self.warmed_up = 0
        self.fails_at = fails_at

    def warm_up(self, step: Callable[[], None]) -> None:
        self.warmed_up += 1
        step()

    def capture(self, step: Callable[[], None]) -> Graph:
        if self.fails_at is not None and len(self.captured) == 1:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        tape = Tape()
        tape.run("captured", step)
        assert not tape.faults()
        self.captured.append(self.warmed_up)

        class Replay:
            def replay(self) -> None:
                tape.run("captured", never)

        return Replay()


def never() -> None:
    raise AssertionError("a replay called the step")


def replays(loaded: LoadedEngine) -> int:
    recorder = loaded.runner.recorder
    assert isinstance(recorder, Tape | CudaGraphs)
    return recorder.num_replays


@pytest.mark.parametrize(("case", "dtype"), [*((case, "bfloat16") for case in CASES), ("llama", "float32")])
def test_replayed_steps_give_the_tokens_of_steps_that_run_as_they_are(case: str, dtype: str, tmp_path: Path) -> None:
    path = CASES[case](tmp_path / "tiny")
    requests = wishes(320, longest=60, max_tokens=20)
    options: dict[str, Any] = {"dtype": dtype, "max_num_batched_tokens": 64, "enable_prefix_caching": False}
    eager = load(path, recorded_steps=False, **options)
    expected = complete(eager.engine, requests)
    recorded = load(path, **options)
    assert not [setting for setting in recorded.settings if setting.name == "recorded_steps"]
    before, steps = replays(recorded), recorded.engine.counters.steps_total
    assert complete(recorded.engine, requests) == expected
    first = replays(recorded) - before
    again = complete(recorded.engine, {f"again {name}": wish for name, wish in requests.items()})
    assert list(again.values()) == list(expected.values())
    steps = recorded.engine.counters.steps_total - steps
    assert replays(recorded) - before - first == steps // 2, "the second time every step has its tape"


def test_steps_of_one_shape_make_the_same_calls_whatever_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argument that depends on more than the shape, or a buffer that moves, would differ between two recordings."""
    made: dict[Hashable, list[list[tuple[int, bytes]]]] = {}
    path = CASES["windows in four KV groups"](tmp_path / "tiny")
    loaded = load(path, dtype="bfloat16", max_num_batched_tokens=64, enable_prefix_caching=False)

    class AlwaysRecords:
        def run(self, shape: Hashable, step: Callable[[], None]) -> None:
            calls = tapes._Calls()
            tapes.watch(calls)
            step()
            tapes.watch(None)
            assert calls.made
            assert not calls.outside
            made.setdefault(shape, []).append(calls.made)
            held.append(torch.empty(1 + len(held) * 3))  # so that memory which a step takes lies elsewhere next time

    held: list[torch.Tensor] = []
    monkeypatch.setattr(loaded.runner, "recorder", AlwaysRecords())
    complete(loaded.engine, wishes(320, longest=60, max_tokens=30))
    complete(loaded.engine, {f"more {name}": wish for name, wish in wishes(320, longest=33, max_tokens=30).items()})
    often = [recordings for recordings in made.values() if len(recordings) > 1]
    assert len(often) > 3
    for recordings in often:
        assert all(calls == recordings[0] for calls in recordings)


def test_what_leaves_the_library_is_never_replayed_and_told(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path / "tiny", "mixtral")
    loaded = load(path)
    requests = wishes(320, longest=40, max_tokens=8)
    expected = complete(load(path, recorded_steps=False).engine, requests)
    assert complete(loaded.engine, requests) == expected
    assert replays(loaded) == 0
    (setting,) = [setting for setting in loaded.settings if setting.name == "recorded_steps"]
    assert (setting.requested, setting.effective) == ("true", "false")
    assert "the choice of experts is computed outside of the C++ kernels" in setting.reason


def test_an_op_of_another_backend_is_called_in_every_step_and_told() -> None:
    tape, counts = Tape(), []

    def step() -> None:
        counts.append(1)
        tapes.leaves("the op add")

    for _ in range(3):
        tape.run("shape", step)
    assert len(counts) == 3
    assert tape.faults() == ("the op add is computed outside of the C++ kernels",)


def test_tapes_that_were_not_used_for_longest_are_dropped() -> None:
    tape, recorded = Tape(most=2), []
    for shape in ("a", "b", "a", "c", "a", "b"):
        tape.run(shape, lambda shape=shape: recorded.append(shape))  # type: ignore[misc]
    assert recorded == ["a", "b", "c", "b"]
    assert tape.num_replays == 2


def test_a_step_that_fails_leaves_no_tape() -> None:
    tape, counts = Tape(), []

    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        tape.run("shape", fail)
    tapes.leaves("nobody is told of this")
    tape.run("shape", lambda: counts.append(1))
    assert counts == [1]
    assert not tape.faults()


def test_float64_and_foreign_models_run_as_they_are_and_tell(tmp_path: Path) -> None:
    llama, foreign = tiny_llama_checkpoint(tmp_path / "tiny"), foreign_checkpoint(tmp_path / "foreign", "starcoder2")
    for path, dtype, reason in (
        (llama, "float64", "only the C++ kernels can be replayed on a CPU"),
        (foreign, "float32", "transformers computes the layers"),
    ):
        settings = [setting for setting in load(path, dtype=dtype).settings if setting.name == "recorded_steps"]
        assert [reason in setting.reason for setting in settings] == [True]
        plain = load(path, dtype=dtype, recorded_steps=False)
        assert "recorded_steps" not in {setting.name for setting in plain.settings}


def test_classes_of_a_gpu() -> None:
    assert [shape.requests for shape in graph_classes(12, 512, 12, 1)] == [1, 2, 4, 8, 12]
    assert [shape.requests for shape in graph_classes(16, 512, 16, 1)] == [1, 2, 4, 8, 16]
    assert [shape.requests for shape in graph_classes(1, 512, 1, 1)] == [1]
    assert [shape.rows for shape in graph_classes(64, 16, 64, 1)] == [1, 2, 4, 8, 16], "no more rows than buffers hold"
    verifying = graph_classes(4, 64, 64, 1, rows_each=(1, 5))
    assert [(shape.requests, shape.rows, shape.longest) for shape in verifying] == [
        *((1, 1, 1), (2, 2, 1), (4, 4, 1)),
        *((1, 5, 5), (2, 10, 5), (4, 20, 5)),
    ]
    shapes = StepShapes(1, verifying)
    assert shapes.of(3, 3, 3, 1) == StepShape(4, 4, 4, 1)
    assert shapes.of(4, 4, 2, 3) == StepShape(10, 10, 2, 5), "two requests of three rows and one"
    assert shapes.of(21, 21, 4, 6) == StepShape(21, 21, 4), "a chunk of a prompt is no class"
    assert StepShapes(16).of(17, 1, 1, 17) == StepShape(32, 16, 1)


def with_graphs(loaded: LoadedEngine, capturing: Capturing, rows_each: tuple[int, ...] = (1,)) -> CudaGraphs:
    """The loaded engine runs as one on a GPU does."""
    runner = loaded.runner
    graphs, alignment = CudaGraphs(capturing), runner.model.ops.row_alignment
    rows, sample_rows = len(runner.workspace.normed), len(runner.workspace.logits)
    shapes = graph_classes(min(13, sample_rows), rows, sample_rows, alignment, rows_each)
    runner.recorder, runner.batch.shapes = graphs, StepShapes(alignment, shapes)
    runner.prepare()
    return graphs


@pytest.mark.parametrize("rows_each", [(1,), (1, 4)])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("case", ["llama", "windows in four KV groups"])
def test_graphs_of_padded_steps_give_the_tokens_of_steps_that_run_as_they_are(
    case: str, kv_cache_dtype: str, rows_each: tuple[int, ...], tmp_path: Path
) -> None:
    path = CASES[case](tmp_path / "tiny")
    requests = wishes(320, longest=60, max_tokens=20)
    options: dict[str, Any] = {"max_num_seqs": 13, "max_num_batched_tokens": 64, "kv_cache_dtype": kv_cache_dtype}
    expected = complete(load(path, recorded_steps=False, **options).engine, requests)
    loaded = load(path, **options)
    capturing = CapturedOnCpu()
    graphs = with_graphs(loaded, capturing, rows_each)
    assert capturing.captured == [2 * count for count in range(1, len(loaded.runner.batch.shapes.classes) + 1)]
    assert not graphs.faults()
    assert complete(loaded.engine, requests) == expected
    assert 0 < graphs.num_replays < loaded.engine.counters.steps_total, "prompts of many rows run as they are"
    again = {f"again {name}": wish for name, wish in requests.items()}
    assert list(complete(loaded.engine, again).values()) == list(expected.values()), "behind cached prefixes"


def test_padded_steps_of_the_triton_kernels_give_the_tokens_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the interpreter, which copies what a kernel is given: the cache is small."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    options: dict[str, Any] = {
        "dtype": "float32",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_model_len": 64,
        "kv_cache_memory_bytes": 1 << 19,
        "long_prefill_token_threshold": 4,
    }
    sampled = SamplingParams(temperature=1.0, seed=5, max_tokens=4, ignore_eos=True)
    requests = {f"r{index}": (prompt, sampled) for index, prompt in enumerate(prompts(3, 20, 5))}
    expected = complete(load(path, kernel_backend="reference", **options).engine, requests)
    loaded = load(path, kernel_backend="triton_ops", **options)
    assert {choice.backend for choice in loaded.runner.kernels} >= {"triton_ops"}
    graphs = with_graphs(loaded, RunsAgain(), rows_each=(1, 4))
    assert complete(loaded.engine, requests) == expected
    assert graphs.num_replays > 0


def test_preparing_again_beside_running_requests_changes_nothing(tmp_path: Path) -> None:
    """What an idle step leaves in the buffers is written anew for those that run."""
    path = CASES["windows in four KV groups"](tmp_path / "tiny")
    request = {"r": (prompts(70)[0], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))}
    expected = complete(load(path, recorded_steps=False).engine, request)["r"]
    loaded = load(path)
    with_graphs(loaded, CapturedOnCpu())
    output: list[int] = []
    assert loaded.engine.add_request("r", *request["r"]) is None
    while loaded.engine.has_work():
        output += [token for row in loaded.engine.step() for token in row.token_ids]
        loaded.runner.prepare()
    assert output == expected


def test_a_capture_that_fails_leaves_steps_as_they_are_and_is_told(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    requests = wishes(320, longest=60, max_tokens=20)
    expected = complete(load(path, recorded_steps=False).engine, requests)
    loaded = load(path)
    graphs = with_graphs(loaded, CapturedOnCpu(fails_at=StepShape(8, 8, 8, 1)))
    (fault,) = graphs.faults()
    assert fault == (
        "no CUDA graph of StepShape(rows=8, sample_rows=8, requests=8, longest=1): "
        "operation not permitted when stream is capturing"
    )
    assert complete(loaded.engine, requests) == expected


def test_a_replay_that_leaves_other_logits_is_found_out_at_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tape that lost a call in the middle."""
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    requests = wishes(320, longest=60, max_tokens=20)
    expected = complete(load(path, recorded_steps=False).engine, requests)
    make = tapes._Tape.__init__
    monkeypatch.setattr(tapes._Tape, "__init__", lambda tape, made: make(tape, [*made[:9], *made[10:]]))
    loaded = load(path)
    (setting,) = [setting for setting in loaded.settings if setting.name == "recorded_steps"]
    assert "a replayed step left other logits" in setting.reason
    assert complete(loaded.engine, requests) == expected


def test_backends_that_cannot_serve_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    with pytest.raises(LoadError, match=r"set TRITON_INTERPRET=1 and dtype=\"float32\"") as refused:
        load(path, kernel_backend="triton_ops")
    assert refused.value.kind == "bad_options"
    with pytest.raises(LoadError, match=r'kernel_backend="cpu_ops": has no kernels for float64; use "reference"'):
        load(path, kernel_backend="cpu_ops", dtype="float64")
    with pytest.raises(ConfigError, match="the device is a GPU"):
        check_kernel_backend(LoadOptions(kernel_backend="cpu_ops"), "cuda")
    check_kernel_backend(LoadOptions(kernel_backend="triton_ops"), "cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ConfigError, match=r"found dtype='auto'"):
        check_kernel_backend(LoadOptions(kernel_backend="triton_ops"), "cpu")
    check_kernel_backend(LoadOptions(kernel_backend="triton_ops", dtype="float32"), "cpu")
    with pytest.raises(ConfigError, match="known are auto, cpu_ops, triton_ops, reference"):
        LoadOptions(kernel_backend="cuda")


def test_the_reference_serves_every_op_where_it_is_asked_for(tmp_path: Path) -> None:
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), kernel_backend="reference")
    assert {choice.backend for choice in loaded.runner.kernels} == {"reference"}
    assert loaded.exactness.level == "bits"
