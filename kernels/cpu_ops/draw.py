"""`kernels.ops.Draw` in C++: most of the noise is never computed, and the token is the reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.binding import function, pointer

_draw = function("pz_draw", 3, 2)


def draw(out: Tensor, scores: Tensor, addresses: Tensor) -> None:
    """See `kernels.ops.Draw`."""
    _draw(pointer(out, torch.int64), pointer(scores, torch.float32), pointer(addresses, torch.int64), *scores.shape)
