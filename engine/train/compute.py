"""How offline work multiplies: many threads, and fp32 matrices by the processor's bf16 products where it has them.

Knows nothing of what is computed. Invariant: the process multiplies afterwards as it did before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def rounded_products(threads: int) -> Iterator[None]:
    """Products of fp32 matrices from factors rounded to bf16 where the CPU is faster at them; sums stay fp32."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, threads_before = matmul.fp32_precision, torch.get_num_threads()
    matmul.fp32_precision = "bf16"
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        matmul.fp32_precision = before
        torch.set_num_threads(threads_before)
