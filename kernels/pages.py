"""Huge pages for large CPU tensors: the processor then looks up an address once in 2 MB instead of once in 4 KB.

Owns the request to the system. It is a hint: where the system has no such pages, or none left, ordinary ones serve, and
nothing but the speed differs.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone


def prefer_huge_pages(tensor: Tensor) -> bool:
    """Asks for huge pages behind a contiguous tensor that was not written yet; the bytes it takes stay the same.

    False: not asked, or refused: on a GPU, on another system than Linux, for a tensor that holds no whole huge page.
    """
    if _ADVICE is None or sys.platform != "linux" or not tensor.is_cpu:
        return False
    begin, size = tensor.data_ptr(), tensor.nbytes
    first = -(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    whole = (begin + size - first) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if whole <= 0:
        return False
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes, madvise.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return int(madvise(first, whole, _ADVICE)) == 0
