"""From tensors to the C ABI: pointers, dtype suffixes, and the checks that C++ cannot make.

Owns how arguments are packed (packed.h reads them) and the one place where every call goes through, so that
`kernels.cpu_ops.tape` can keep the calls of a step.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import c_char_p, c_int
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.cpu_ops import build
from kernels.cpu_ops.build import library
from kernels.ops import KVCache
from kernels.registry import BackendUnavailable, Remark

MATRIX_TILES = {-1: "not built for", 0: "refused", 1: "granted"}
SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


class Watcher(Protocol):
    """Is told what happens, in its order."""

    def called(self, address: int, packet: bytes) -> None:
        """The function at `address` was called with the packed arguments."""

    def left(self, what: str) -> None:
        """Something was computed outside of the library."""


_watcher: Watcher | None = None


def function(name: str, num_pointers: int, num_ints: int, num_floats: int = 0) -> Callable[..., None]:
    """The C function `name`, which takes pointers, then ints, then floats. A pointer may be None."""
    call = symbol(name)
    call.argtypes, call.restype = [c_char_p], None
    address = ctypes.cast(call, ctypes.c_void_p).value or 0
    pack = struct.Struct(f"@{num_pointers}P{num_ints}i{num_floats}f").pack

    def packed(*arguments: Any) -> None:
        packet = pack(*(0 if argument is None else argument for argument in arguments))
        call(packet)
        if _watcher is not None:
            _watcher.called(address, packet)

    return packed


def symbol(name: str) -> Any:
    """The library's function `name`, without types. BackendUnavailable where it has none."""
    try:
        return getattr(library(), name)
    except AttributeError as error:
        raise BackendUnavailable(f"the library has no function {name}") from error


def watch(watcher: Watcher | None) -> None:
    """From now on `watcher` is told of every call, after it was made; None: nobody is."""
    global _watcher
    _watcher = watcher


def leaves(what: str) -> None:
    """To be called where an op of this backend computes something outside of the library: `what`, for people."""
    if _watcher is not None:
        _watcher.left(what)


def by_dtype(
    name: str, num_pointers: int, num_ints: int, num_floats: int = 0
) -> dict[torch.dtype, Callable[..., None]]:
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
    symbol("pz_set_threads")(c_int(count))


def matrix_tiles() -> str:
    """Whether the system grants this process the matrix tiles of AMX, if the library is built for them, or refuses."""
    return MATRIX_TILES[symbol("pz_matrix_tiles")()]


def remarks() -> list[Remark]:
    """See `kernels.registry.remarks_on`."""
    found = list(build.remarks())
    if matrix_tiles() == "refused":
        reason = (
            "the processor has AMX's matrix tiles, and the system refuses them to this process (arch_prctl), as Linux "
            "before 5.16 and some sandboxes do. Products and attention in bfloat16 are slower without them"
        )
        found.append(Remark("kernel_matrix_tiles", "granted", "refused", reason))
    return found
