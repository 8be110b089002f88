"""Which drafts the target accepts, in plain torch, a request at a time: `verify_match` and `verify_rejection`."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernels.noise import Stream, gumbel_vocabulary, uniform


def verify_match(out: Tensor, num_accepted: Tensor, drawn: Tensor, drafts: Tensor, starts: Tensor) -> None:
    """See `kernels.ops.VerifyMatch`."""
    out.fill_(-1)
    for request, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
        if first == end:
            num_accepted[request] = 0
            continue
        same = drawn[first : end - 1] == drafts[first : end - 1]
        count = int(same.long().cumprod(0).sum())
        num_accepted[request] = count
        out[first : first + count + 1] = drawn[first : first + count + 1]


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
    out.fill_(-1)
    for request, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
        num_accepted[request] = 0
        for row in range(first, end):
            seed, position, sample_index, _ = addresses[row].tolist()
            target = torch.softmax(scores[row].double(), 0)
            if row == end - 1:
                out[row] = _draw(target, (seed, position, sample_index, Stream.TARGET))
                break
            draft, draft_id = torch.softmax(draft_scores[row].double(), 0), int(drafts[row])
            if uniform(seed, position, sample_index, Stream.ACCEPT) < float(target[draft_id] / draft[draft_id]):
                out[row] = draft_id
                num_accepted[request] += 1
                continue
            residual = (target - draft).clamp_(min=0)
            out[row] = _draw(residual, (seed, position, sample_index, Stream.RESIDUAL))
            break


def _draw(weights: Tensor, address: tuple[int, int, int, int]) -> int:
    """A token with probability in proportion to weights fp64 [V], by the Gumbel-max trick."""
    noise = gumbel_vocabulary(len(weights), *address, weights.device)
    return int((weights.log() + noise).argmax())
