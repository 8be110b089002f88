"""How fast this machine reads memory right now: what decoding is measured against. Measured by `kernels.roofs`."""

from __future__ import annotations

from kernels.roofs import read_bandwidth, synchronize

__all__ = ["read_bandwidth", "synchronize"]
