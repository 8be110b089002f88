"""Whether Triton can run here at all, and what it must not be given.

Owns the reasons for `BackendUnavailable` and the interpreter's traps. Knows no op.
Invariant: where the interpreter would be silently wrong, an exception is raised or the cause is removed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.registry import BackendUnavailable

try:
    import triton
except ImportError as error:
    raise BackendUnavailable(f"Triton is not installed ({error}); its wheels are for Linux on x86-64") from error

INTERPRETED = bool(triton.knobs.runtime.interpret)
FLOAT8_CAPABILITY = (8, 9)  # the first NVIDIA GPUs that convert float8_e4m3fn

if INTERPRETED:
    from kernels.triton_ops import interpreter

    interpreter.adapt()
elif not torch.cuda.is_available():
    raise BackendUnavailable("there is no CUDA device (TRITON_INTERPRET=1 runs the kernels on a CPU, for tests)")


def check_dtypes(*tensors: Tensor) -> None:
    """TypeError for tensors whose numbers Triton would get wrong here."""
    for tensor in tensors:
        if tensor.dtype == torch.float64:
            raise TypeError("triton_ops computes in fp32: a float64 model needs the reference ops")
        if INTERPRETED and tensor.dtype == torch.bfloat16:
            raise TypeError("Triton's interpreter is silently wrong in bfloat16; use float32 or float16 there")


def check_contiguous(*tensors: Tensor | None) -> None:
    """TypeError for a tensor whose elements do not lie one after the other."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_contiguous():
            raise TypeError(f"triton_ops wants a contiguous tensor here, got strides {tensor.stride()}")


def check_codes(codes: Tensor) -> None:
    """TypeError for float8 codes on a GPU without them."""
    if codes.dtype != torch.float8_e4m3fn or INTERPRETED:
        return
    if torch.cuda.get_device_capability(codes.device) < FLOAT8_CAPABILITY:
        raise TypeError(
            "this GPU has no float8_e4m3fn (compute capability 8.9 or later has); use int8 for the KV cache"
        )
