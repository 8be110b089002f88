"""What a GPU cannot capture: models with experts are left eager, and a capture that fails leaves torch as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import LoadOptions
from engine.runner import model_runner
from engine.runner.model_runner import ModelRunner
from engine.runner.recorded_step import recorded, recording_settings
from kernels import cuda_graphs
from kernels.cuda_graphs import CudaCapturing, CudaGraphs
from kernels.recording import Eager
from kernels.registry import KernelChoice
from tests.engine.stepping import load
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_families import family_checkpoint


class Streams:
    """Stands in for what torch.cuda says and does of streams, and for a capture that CUDA has found invalid."""

    current = "the engine's"

    def Stream(self, device: torch.device) -> str:  # noqa: N802
        return "the captures'"

    def current_stream(self, device: torch.device) -> str:
        return self.current

    def set_stream(self, stream: str) -> None:
        self.current = stream

    @contextmanager
    def graph(self, graph: object, pool: object, stream: str) -> Iterator[None]:
        self.current = stream
        with suppress(RuntimeError):  # torch's exit raises another one, before it puts the stream back
            yield
        raise RuntimeError("operation failed due to a previous error during capture")


def test_a_capture_that_fails_leaves_no_stream_of_its_own_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    for name in ("Stream", "current_stream", "set_stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(streams, name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    during: list[str] = []

    def reads_the_host() -> None:
        during.append(streams.current)
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs = CudaGraphs(CudaCapturing(torch.device("cuda")))
    monkeypatch.setattr(graphs._capturing, "warm_up", lambda step: None)
    graphs.prepare("shape", reads_the_host)
    assert during == ["the captures'"]
    assert streams.current == "the engine's"
    assert graphs.faults() == ("no CUDA graph of shape: operation failed due to a previous error during capture",)


@pytest.mark.parametrize("family", ["mixtral", "llama"])
def test_models_with_experts_are_not_captured_and_say_so(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a load on a GPU decides it: the runner's own question, asked once more for a card."""
    path = tiny_llama_checkpoint(tmp_path / family) if family == "llama" else family_checkpoint(tmp_path, family)
    asked: dict[str, Any] = {}

    def spy(*given: Any, **more: Any) -> Any:
        asked.update(more)
        return recorded(*given, **more)

    monkeypatch.setattr(model_runner, "recorded", spy)
    runner: ModelRunner = load(path).runner
    monkeypatch.setattr(cuda_graphs, "CudaCapturing", lambda device: None)
    choices = [KernelChoice(choice.op, "triton_ops", "") for choice in runner.kernels]
    recorder, ops = recorded(LoadOptions(), runner.model.ops, choices, torch.device("cuda"), **asked)
    assert ops is runner.model.ops
    if family == "llama":
        assert isinstance(recorder, CudaGraphs)
        assert recording_settings(recorder) == []
        return
    assert isinstance(recorder, Eager)
    (setting,) = recording_settings(recorder)
    assert (setting.requested, setting.effective) == ("true", "false")
    assert "the choice of experts is read on the host" in setting.reason
