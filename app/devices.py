"""What the machine has and uses now: host memory, CPU, processes, disk, GPUs.

Owns the readings from psutil and NVML. Knows nothing of models, of time series or of who asks; never makes a CUDA
context. Invariant: a figure that cannot be read is None with a reason under its name in `unavailable`, never 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pynvml

from app.process_memory import MemoryMeter, ProcessTreeMemory

NVML_RETRY_S = 30.0
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory this process may use: the machine's, or its container's limit where that is lower."""

    total_bytes: int
    available_bytes: int

    @property
    def used_bytes(self) -> int:
        """What is not available; caches the system would give back are not counted as used."""
        return self.total_bytes - self.available_bytes


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU. `process_bytes` holds the pids the driver lists, by its own numbering."""

    index: int
    name: str | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None
    process_bytes: dict[int, int] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One reading of everything. Engine figures are keyed as the caller named the pids."""

    t: float
    host_memory_total_bytes: int
    host_memory_available_bytes: int
    host_memory_used_bytes: int
    host_cpu_percent: float | None
    app_process_bytes: int | None
    engine_process_bytes: dict[str, int | None]
    engine_gpu_bytes: dict[str, int | None]
    disk_free_bytes: int | None
    gpus: tuple[GpuSample, ...]
    gpu_unavailable: str | None  # why `gpus` is empty
    unavailable: dict[str, str] = field(default_factory=dict)


def host_memory(cgroup: Path = CGROUP) -> HostMemory:
    """The machine's memory, bounded by this container's limit (cgroup v2) if it has one."""
    machine = psutil.virtual_memory()
    try:
        limit = int((cgroup / "memory.max").read_text())
        current = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file outside a container; "max" is no limit
        return HostMemory(machine.total, machine.available)
    cache = int(stat.get("inactive_file", 0))  # file pages the kernel takes back before it refuses memory
    left = max(0, limit - current + cache)
    return HostMemory(min(machine.total, limit), min(machine.available, left))


def free_memory(sample: DeviceSample | None, device: str) -> tuple[str, int, int]:
    """The device that `device` ("auto", "cpu" or "cuda") means here, with its available and its total bytes."""
    gpu = sample.gpus[0] if sample is not None and sample.gpus and device != "cpu" else None
    if gpu is not None and gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None:
        return "cuda", gpu.memory_total_bytes - gpu.memory_used_bytes, gpu.memory_total_bytes
    host = host_memory()
    return "cpu", host.available_bytes, host.total_bytes


class DeviceSampler:
    """Takes readings. Not for use by two threads at once."""

    def __init__(self, data_folder: Path, nvml: Any = pynvml, clock: Callable[[], float] = time.time) -> None:
        self._data_folder = data_folder
        self._clock = clock
        self._gpus = _Gpus(nvml)
        self._memory = MemoryMeter()
        psutil.cpu_percent()  # measures from here on: the first call has nothing to compare with and says 0.0

    def sample(self, pids: Mapping[str, int]) -> DeviceSample:
        """Read everything now. `pids`: name -> root pid of each engine's process tree."""
        t = self._clock()
        unavailable: dict[str, str] = {}
        memory = host_memory()
        gpus, gpu_unavailable = self._gpus.sample()
        trees = {name: self._memory.tree(pid) for name, pid in pids.items()}
        app = _own_memory(self._memory, unavailable)
        for name, tree in trees.items():
            if tree is None:
                unavailable[f"engine_process_bytes.{name}"] = f"process {pids[name]} has ended"
            elif tree.measure == "rss":
                unavailable[f"engine_process_uss.{name}"] = "the system hides USS of this process; RSS is shown"
        return DeviceSample(
            t=t,
            host_memory_total_bytes=memory.total_bytes,
            host_memory_available_bytes=memory.available_bytes,
            host_memory_used_bytes=memory.used_bytes,
            host_cpu_percent=psutil.cpu_percent(),
            app_process_bytes=app,
            engine_process_bytes={name: None if tree is None else tree.total_bytes for name, tree in trees.items()},
            engine_gpu_bytes={name: _gpu_bytes_of(name, tree, gpus, unavailable) for name, tree in trees.items()},
            disk_free_bytes=_disk_free(self._data_folder, unavailable),
            gpus=gpus,
            gpu_unavailable=gpu_unavailable,
            unavailable=unavailable,
        )


def _own_memory(meter: MemoryMeter, unavailable: dict[str, str]) -> int:
    """USS of this process alone: engines are its children but have figures of their own."""
    held, measure = meter.process(os.getpid())
    if measure == "rss":
        unavailable["app_process_uss"] = "the system hides USS of this process; RSS is shown"
    return held


def _disk_free(folder: Path, unavailable: dict[str, str]) -> int | None:
    try:
        return int(psutil.disk_usage(str(folder)).free)
    except OSError as error:
        unavailable["disk_free_bytes"] = f"{folder}: {error.strerror}"
        return None


def _gpu_bytes_of(
    name: str, tree: ProcessTreeMemory | None, gpus: Iterable[GpuSample], unavailable: dict[str, str]
) -> int | None:
    """What the driver says this process tree holds on all GPUs; None where it lists none of its pids."""
    listed = [gpu.process_bytes[pid] for gpu in gpus for pid in (tree.pids if tree else ()) if pid in gpu.process_bytes]
    if listed:
        return sum(listed)
    unavailable[f"engine_gpu_bytes.{name}"] = (
        "the driver lists no process of this engine: it uses no GPU, or pids are hidden (container)"
    )
    return None


class _Gpus:
    """NVML's life: opened at the first sample, opened again after a failure, at most every NVML_RETRY_S."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._open = False
        self._failed_at = 0.0
        self._reason: str | None = None

    def sample(self) -> tuple[tuple[GpuSample, ...], str | None]:
        """All GPUs, or none and the reason."""
        now = time.monotonic()
        if self._reason is not None and now - self._failed_at < NVML_RETRY_S:
            return (), self._reason
        try:
            if not self._open:
                self._nvml.nvmlInit()
                self._open = True
            count = self._nvml.nvmlDeviceGetCount()
            gpus = tuple(self._read(index) for index in range(count))
        except self._nvml.NVMLError as error:
            self._open, self._failed_at = False, now
            self._reason = f"no NVIDIA GPU can be read here ({error})"
            return (), self._reason
        self._reason = None
        return gpus, None if gpus else "the NVIDIA driver lists no GPU"

    def _read(self, index: int) -> GpuSample:
        nvml, unavailable = self._nvml, {}
        handle = nvml.nvmlDeviceGetHandleByIndex(index)

        def figure(name: str, read: Callable[[], Any]) -> Any:
            try:
                value = read()
            except nvml.NVMLError as error:
                unavailable[name] = f"the driver does not tell: {error}"
                return None
            return value.decode() if isinstance(value, bytes) else value

        memory = figure("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        processes = figure("process_bytes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        power_mw = figure("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        if any(process.usedGpuMemory is None for process in processes):
            unavailable["process_bytes"] = "the driver lists processes without their memory"
        return GpuSample(
            index=index,
            name=figure("name", lambda: nvml.nvmlDeviceGetName(handle)),
            memory_total_bytes=None if memory is None else memory.total,
            memory_used_bytes=None if memory is None else memory.used,
            utilization_percent=figure("utilization_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            temperature_c=figure(
                "temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            power_w=None if power_mw is None else power_mw / 1000.0,
            process_bytes={each.pid: each.usedGpuMemory for each in processes if each.usedGpuMemory is not None},
            unavailable=unavailable,
        )
