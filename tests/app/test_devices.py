"""Device readings: real ones of this machine, and GPUs through a stand-in for NVML."""

# ruff: noqa: N802 - the stand-in has the names of NVML

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from app import devices
from app.devices import DeviceSampler, host_memory

MIB = 1024 * 1024


class NVMLError(Exception):
    """The stand-in's own error."""


@dataclass
class FakeGpu:
    name: str = "Test GPU"
    figures: dict[str, Any] = field(
        default_factory=lambda: {"memory": (800 * MIB, 300 * MIB), "gpu": 37, "temperature": 61, "power_mw": 55_500}
    )
    processes: list[tuple[int, int | None]] = field(default_factory=list)

    def figure(self, name: str) -> Any:
        if name not in self.figures:
            raise NVMLError("Not Supported")
        return self.figures[name]


class FakeNvml:
    """The few calls the sampler makes."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: FakeGpu, broken: str | None = None) -> None:
        self.gpus = gpus
        self.broken = broken
        self.num_inits = 0

    def nvmlInit(self) -> None:
        self.num_inits += 1
        if self.broken:
            raise NVMLError(self.broken)

    def nvmlDeviceGetCount(self) -> int:
        if self.broken:
            raise NVMLError(self.broken)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:
        return gpu.name.encode()

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        total, used = gpu.figure("memory")
        return SimpleNamespace(total=total, used=used)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=gpu.figure("gpu"))

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, _kind: int) -> int:
        return int(gpu.figure("temperature"))

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return int(gpu.figure("power_mw"))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes]


def test_this_machine(tmp_path: Path) -> None:
    sample = DeviceSampler(tmp_path, FakeNvml()).sample({"run": os.getpid()})
    assert sample.host_memory_total_bytes == sample.host_memory_used_bytes + sample.host_memory_available_bytes
    assert 0 < sample.host_memory_available_bytes < sample.host_memory_total_bytes
    assert sample.app_process_bytes is not None
    assert MIB < sample.app_process_bytes < sample.host_memory_total_bytes
    assert sample.engine_process_bytes["run"] is not None
    assert sample.host_cpu_percent is not None
    assert sample.disk_free_bytes == pytest.approx(psutil.disk_usage(str(tmp_path)).free, rel=0.1)
    assert (sample.gpus, sample.gpu_unavailable) == ((), "the NVIDIA driver lists no GPU")


def test_the_real_nvml_module_never_fails_a_sample(tmp_path: Path) -> None:
    sample = DeviceSampler(tmp_path).sample({})
    assert bool(sample.gpus) != bool(sample.gpu_unavailable)


def test_a_missing_driver_is_a_reason_and_is_not_asked_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(FakeGpu(), broken="NVML Shared Library Not Found")
    sampler = DeviceSampler(tmp_path, nvml)
    for _ in range(3):
        sample = sampler.sample({})
        assert sample.gpus == ()
        assert sample.gpu_unavailable == "no NVIDIA GPU can be read here (NVML Shared Library Not Found)"
    assert nvml.num_inits == 1
    monkeypatch.setattr(devices, "NVML_RETRY_S", 0.0)
    nvml.broken = None
    sample = sampler.sample({})
    assert (len(sample.gpus), sample.gpu_unavailable) == (1, None)


def test_a_driver_that_is_lost_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "NVML_RETRY_S", 0.0)
    nvml = FakeNvml(FakeGpu())
    sampler = DeviceSampler(tmp_path, nvml)
    assert len(sampler.sample({}).gpus) == 1
    nvml.broken = "GPU is lost"
    assert sampler.sample({}).gpu_unavailable == "no NVIDIA GPU can be read here (GPU is lost)"
    nvml.broken = None
    assert len(sampler.sample({}).gpus) == 1


def test_gpu_figures(tmp_path: Path) -> None:
    own = os.getpid()
    nvml = FakeNvml(FakeGpu(processes=[(own, 100 * MIB), (999_999, 50 * MIB)]), FakeGpu(processes=[(own, 20 * MIB)]))
    sample = DeviceSampler(tmp_path, nvml).sample({"run": own})
    gpu = sample.gpus[0]
    assert (gpu.name, gpu.memory_total_bytes, gpu.memory_used_bytes) == ("Test GPU", 800 * MIB, 300 * MIB)
    assert (gpu.utilization_percent, gpu.temperature_c, gpu.power_w) == (37, 61, 55.5)
    assert (gpu.process_bytes, gpu.unavailable) == ({own: 100 * MIB, 999_999: 50 * MIB}, {})
    assert sample.engine_gpu_bytes == {"run": 120 * MIB}


@pytest.mark.parametrize("processes", [[], [(999_999, 50 * MIB)], [(os.getpid(), None)]])
def test_hidden_pids_are_unknown_not_zero(tmp_path: Path, processes: list[tuple[int, int | None]]) -> None:
    sample = DeviceSampler(tmp_path, FakeNvml(FakeGpu(processes=processes))).sample({"run": os.getpid()})
    assert sample.engine_gpu_bytes == {"run": None}
    assert "pids are hidden" in sample.unavailable["engine_gpu_bytes.run"]


def test_what_a_driver_does_not_tell_is_none_with_a_reason(tmp_path: Path) -> None:
    gpu = DeviceSampler(tmp_path, FakeNvml(FakeGpu(figures={}))).sample({}).gpus[0]
    figures = (gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.utilization_percent, gpu.temperature_c, gpu.power_w)
    assert figures == (None,) * 5
    assert set(gpu.unavailable) == {"memory", "utilization_percent", "temperature_c", "power_w"}
    assert all("Not Supported" in reason for reason in gpu.unavailable.values())


def test_an_engine_that_has_ended_is_unknown_with_a_reason(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    sample = DeviceSampler(tmp_path, FakeNvml()).sample({"run": process.pid})
    assert sample.engine_process_bytes == {"run": None}
    assert sample.unavailable["engine_process_bytes.run"] == f"process {process.pid} has ended"


def test_rss_stands_in_where_uss_is_forbidden_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: psutil.Process) -> None:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", forbidden)
    sample = DeviceSampler(tmp_path, FakeNvml()).sample({"run": os.getpid()})
    assert sample.app_process_bytes is not None
    assert "RSS is shown" in sample.unavailable["app_process_uss"]
    assert "RSS is shown" in sample.unavailable["engine_process_uss.run"]


def test_a_data_folder_that_vanished_is_a_reason(tmp_path: Path) -> None:
    sample = DeviceSampler(tmp_path / "gone", FakeNvml()).sample({})
    assert sample.disk_free_bytes is None
    assert "No such file" in sample.unavailable["disk_free_bytes"]


@pytest.fixture
def cgroup(tmp_path: Path) -> Callable[[str], Path]:
    def write(limit: str) -> Path:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{60 * MIB}\n")
        (tmp_path / "memory.stat").write_text(f"anon {30 * MIB}\ninactive_file {20 * MIB}\n")
        return tmp_path

    return write


def test_a_containers_limit_bounds_the_memory(cgroup: Callable[[str], Path]) -> None:
    memory = host_memory(cgroup(str(100 * MIB)))
    assert (memory.total_bytes, memory.available_bytes, memory.used_bytes) == (100 * MIB, 60 * MIB, 40 * MIB)


def test_a_container_without_a_limit_has_the_machines_memory(cgroup: Callable[[str], Path]) -> None:
    assert host_memory(cgroup("max")).total_bytes == psutil.virtual_memory().total
