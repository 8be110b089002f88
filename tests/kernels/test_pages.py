"""Huge pages are asked for, and a system that gives them shows them."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest
import torch

from kernels.pages import HUGE_PAGE_BYTES, prefer_huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_bytes(address: int) -> int:
    """Bytes in huge pages of the mapping that holds `address`."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        header = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if header:
            inside = int(header[1], 16) <= address < int(header[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


def test_a_large_tensor_gets_them_where_the_system_has_them() -> None:
    """In memory straight from the system: malloc's may have been written before. Half of it, since memory that is in
    small pieces already has no huge page for every place."""
    memory = mmap.mmap(-1, 40 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    asked = prefer_huge_pages(tensor)
    tensor.fill_(0)
    if not SETTING.exists() or "[never]" in SETTING.read_text():
        pytest.skip("this system gives no huge pages")
    assert asked
    assert huge_bytes(tensor.data_ptr() + 4 * HUGE_PAGE_BYTES) >= 20 * HUGE_PAGE_BYTES


def test_a_tensor_without_a_whole_one_is_left_alone() -> None:
    assert not prefer_huge_pages(torch.empty(HUGE_PAGE_BYTES // 2, dtype=torch.uint8))
