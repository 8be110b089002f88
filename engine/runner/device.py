"""The device an engine runs on and the memory it has: torch's view of a GPU, the kernel's view of the host."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import ConfigError, LoadOptions

KIB = 1024
CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """total_bytes and available_bytes are of the memory that weights and KV cache will live in."""

    device: torch.device
    name: str
    total_bytes: int
    available_bytes: int


def pick_device(options: LoadOptions) -> DeviceInfo:
    """The device that `options.device` asks for; "auto" takes a GPU if there is one. ConfigError if there is none."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            'device="cuda": torch sees no CUDA device here; use device="cpu" or install a CUDA build of torch'
        )
    if options.device != "cpu" and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info(0)
        return DeviceInfo(torch.device("cuda:0"), torch.cuda.get_device_name(0), total, free)
    total, available = host_memory()
    return DeviceInfo(torch.device("cpu"), cpu_name(), total, available)


def host_memory(group: Path = CONTROL_GROUP) -> tuple[int, int]:
    """Total and available bytes of the host, within the memory limit of this process's control group if it has one."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    available = os.sysconf("SC_AVPHYS_PAGES") * page
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * KIB
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no control group, or "max"
        return total, available
    cache = int(stat.get("inactive_file", 0))  # file pages, which the kernel takes back before it refuses memory
    return min(total, limit), min(available, max(0, limit - used + cache))


def cpu_name() -> str:
    """The processor's name as the kernel gives it, else the architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """A CUDA device's, None for others."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def pick_dtype(options: LoadOptions) -> torch.dtype:
    """The compute dtype: bfloat16 unless asked otherwise (fp16 checkpoints run in bfloat16 too)."""
    names = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
    return names[options.dtype]
