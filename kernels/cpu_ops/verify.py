"""`kernels.ops.VerifyMatch` and `VerifyRejection` in C++: no distribution is written down, little noise computed."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.binding import function, pointer

_match = function("pz_verify_match", 5, 2)
_rejection = function("pz_verify_rejection", 7, 3)


def verify_match(out: Tensor, num_accepted: Tensor, drawn: Tensor, drafts: Tensor, starts: Tensor) -> None:
    """See `kernels.ops.VerifyMatch`."""
    _match(
        pointer(out, torch.int64),
        pointer(num_accepted, torch.int32),
        pointer(drawn, torch.int64),
        pointer(drafts, torch.int64),
        pointer(starts, torch.int32),
        len(num_accepted),
        len(out),
    )


def verify_rejection(
    out: Tensor,
    num_accepted: Tensor,
    scores: Tensor,
    draft_scores: Tensor,
    drafts: Tensor,
    starts: Tensor,
    addresses: Tensor,
) -> None:
    """See `kernels.ops.VerifyRejection`."""
    _rejection(
        pointer(out, torch.int64),
        pointer(num_accepted, torch.int32),
        pointer(scores, torch.float32),
        pointer(draft_scores, torch.float32),
        pointer(drafts, torch.int64),
        pointer(starts, torch.int32),
        pointer(addresses, torch.int64),
        len(num_accepted),
        *scores.shape,
    )
