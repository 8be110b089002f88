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
    tensor = torch.empty(16 * HUGE_PAGE_BYTES, dtype=torch.uint8)
    asked = prefer_huge_pages(tensor)
    tensor.fill_(0)
    if not SETTING.exists() or "[never]" in SETTING.read_text():
        pytest.skip("this system gives no huge pages")
    assert asked
    with mmap.mmap(-1, 16 * HUGE_PAGE_BYTES) as control:
        control.madvise(mmap.MADV_HUGEPAGE)
        control.write(bytes(len(control)))
        address = torch.frombuffer(control, dtype=torch.uint8).data_ptr()
        if huge_bytes(address + 4 * HUGE_PAGE_BYTES) < 8 * HUGE_PAGE_BYTES:
            pytest.skip("this system's memory is too scattered for huge pages at the moment")
    assert huge_bytes(tensor.data_ptr() + 4 * HUGE_PAGE_BYTES) >= 8 * HUGE_PAGE_BYTES


def test_a_tensor_without_a_whole_one_is_left_alone() -> None:
    assert not prefer_huge_pages(torch.empty(HUGE_PAGE_BYTES // 2, dtype=torch.uint8))
