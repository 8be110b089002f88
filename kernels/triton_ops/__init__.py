"""The ops in Triton, for NVIDIA GPUs; on a CPU they run in Triton's interpreter, which is for tests alone.

Importing any module of this package raises `kernels.registry.BackendUnavailable` where Triton cannot run.
"""

from kernels.triton_ops.device import INTERPRETED

__all__ = ["INTERPRETED"]
