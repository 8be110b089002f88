"""From tensors to the C ABI: pointers, dtype suffixes, and the checks that C++ cannot make."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int, c_void_p
from typing import Any

import torch
from torch import Tensor

from kernels.cpu_ops.build import library
from kernels.ops import KVCache
from kernels.registry import BackendUnavailable

SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


def function(name: str, num_pointers: int, num_ints: int, num_floats: int = 0) -> Callable[..., Any]:
    """The C function `name`, which takes pointers, then ints, then floats, and returns nothing."""
    try:
        found = getattr(library(), name)
    except AttributeError as error:
        raise BackendUnavailable(f"the library has no function {name}") from error
    found.argtypes = [c_void_p] * num_pointers + [c_int] * num_ints + [c_float] * num_floats
    found.restype = None
    return found  # type: ignore[no-any-return]


def by_dtype(name: str, num_pointers: int, num_ints: int, num_floats: int = 0) -> dict[torch.dtype, Callable[..., Any]]:
    """The variants of a function, by the dtype of its tensors."""
    return {
        dtype: function(f"{name}_{suffix}", num_pointers, num_ints, num_floats) for dtype, suffix in SUFFIXES.items()
    }


def pointer(tensor: Tensor, dtype: torch.dtype) -> int:
    """The address of a contiguous CPU tensor of `dtype`. TypeError otherwise: C++ would read rubbish."""
    if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
        raise TypeError(
            f"cpu_ops wants a contiguous CPU tensor of {dtype}, got {tensor.dtype} on {tensor.device}, "
            f"strides {tensor.stride()}"
        )
    return tensor.data_ptr()


def cache_pointers(cache: KVCache, dtype: torch.dtype) -> tuple[int, int, int | None, int | None]:
    """The addresses of keys, values and their scales; a model of `dtype` has numbers in it, without scales, or int8."""
    if cache.key_scales is None or cache.value_scales is None:
        return pointer(cache.keys, dtype), pointer(cache.values, dtype), None, None
    codes, scales = torch.int8, torch.float32
    return (
        pointer(cache.keys, codes),
        pointer(cache.values, codes),
        pointer(cache.key_scales, scales),
        pointer(cache.value_scales, scales),
    )


def rows_pointer(tensor: Tensor, dtype: torch.dtype) -> tuple[int, int]:
    """The address of a CPU matrix of `dtype` with contiguous rows, and how far they lie apart. TypeError otherwise."""
    apart, step = tensor.stride()
    if tensor.dtype != dtype or not tensor.is_cpu or (step != 1 and tensor.shape[1] > 1):
        raise TypeError(
            f"cpu_ops wants a CPU matrix of {dtype} with contiguous rows, got {tensor.dtype} on {tensor.device}, "
            f"strides {tensor.stride()}"
        )
    return tensor.data_ptr(), apart


def set_threads(count: int) -> None:
    """How many threads the kernels use, the caller's among them."""
    function("pz_set_threads", 0, 1)(count)
