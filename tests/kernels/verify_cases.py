"""Cases of the two verifications: requests of no rows, of one and of several, with rows of padding behind the last.

A case's rows are requests here: for each its number of accepted drafts and its tokens. A request must come out the same
alone and among others.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernels.noise import Stream, gumbel, uniform
from kernels.ops import Ops, accumulation_dtype
from tests.kernels.case import Case, CaseMaker, normal

VOCABULARY = 203
MOST_ROWS = 5  # of a request
PADDING = 3  # rows behind the last request


def _request_starts(generator: torch.Generator, requests: int) -> Tensor:
    sizes = torch.randint(MOST_ROWS + 1, (requests,), generator=generator)
    sizes[:2] = torch.tensor([3, 0])[:requests]
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).to(torch.int32)


def _with_ends(drafts: Tensor, starts: Tensor) -> Tensor:
    """-1 in each request's last row."""
    ends = starts[1:][starts.diff() > 0].long() - 1
    return drafts.index_fill(0, ends, -1)


def _padded(values: Tensor, fill: float) -> Tensor:
    return torch.cat([values, values.new_full((PADDING, *values.shape[1:]), fill)])


def _by_request(tokens: Tensor, accepted: Tensor, starts: Tensor) -> Tensor:
    """int64 [requests, 1 + MOST_ROWS]: the number of accepted drafts, the tokens of the request's rows, and zeros."""
    result = torch.zeros(len(accepted), 1 + MOST_ROWS, dtype=torch.int64)
    result[:, 0] = accepted
    for request, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
        result[request, 1 : 1 + end - first] = tokens[first:end]
    return result


def _buffers(rows: int, requests: int) -> tuple[Tensor, Tensor]:
    """out and num_accepted, full of what nobody would write."""
    return torch.full((rows + PADDING,), 77), torch.full((requests,), 77, dtype=torch.int32)


def verify_match() -> CaseMaker:
    """Two drafts of three are right."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        starts = _request_starts(generator, rows)
        drawn = torch.randint(VOCABULARY, (int(starts[-1]),), generator=generator)
        wrong = torch.rand(len(drawn), generator=generator) < 1 / 3
        drafts = _with_ends(torch.where(wrong, (drawn + 1) % VOCABULARY, drawn), starts)

        def run(ops: Ops, first: int, last: int) -> Tensor:
            part, own = starts[first : last + 1] - starts[first], slice(int(starts[first]), int(starts[last]))
            out, counts = _buffers(int(part[-1]), last - first)
            ops.verify_match(out, counts, _padded(drawn[own], 5), _padded(drafts[own], 5), part)
            assert out[-PADDING:].tolist() == [-1] * PADDING
            return _by_request(out, counts, part)

        return Case(run, _match_truth(drawn, drafts, starts), rows)

    return make


def _match_truth(drawn: Tensor, drafts: Tensor, starts: Tensor) -> Tensor:
    tokens, accepted = torch.full_like(drawn, -1), torch.zeros(len(starts) - 1, dtype=torch.int64)
    for request, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
        for row in range(first, end):
            tokens[row] = drawn[row]
            if row == end - 1 or drawn[row] != drafts[row]:
                accepted[request] = row - first
                break
    return _by_request(tokens, accepted, starts).double()


def verify_rejection(closeness: float) -> CaseMaker:
    """closeness: of the drafter's scores to the target's, from 0 (strangers) to 1 (equal but for what is filtered)."""

    def make(generator: torch.Generator, dtype: torch.dtype, rows: int) -> Case:
        starts = _request_starts(generator, rows)
        kind, count = accumulation_dtype(dtype), int(starts[-1])
        scores, other = (normal(generator, count, VOCABULARY, dtype=kind) * 2 for _ in range(2))
        draft_scores = closeness * scores + (1 - closeness) * other
        for filtered, every in ((scores, 2), (draft_scores, 3)):
            out = torch.rand(filtered[::every].shape, generator=generator) < 0.4
            filtered[::every] = filtered[::every].masked_fill(out, -torch.inf)
        drawn = torch.multinomial(draft_scores.double().softmax(1), 1, generator=generator)[:, 0]
        drafts = _with_ends(drawn, starts)
        addresses = torch.tensor([[(-1) ** row * (row << 40), 1000 + row, row % 3, row % 2] for row in range(count)])
        unread = draft_scores.masked_fill((drafts < 0).unsqueeze(1), torch.nan)

        def run(ops: Ops, first: int, last: int) -> Tensor:
            part, own = starts[first : last + 1] - starts[first], slice(int(starts[first]), int(starts[last]))
            out, counts = _buffers(int(part[-1]), last - first)
            ops.verify_rejection(
                out,
                counts,
                _padded(scores[own], torch.nan),
                _padded(unread[own], torch.nan),
                _padded(drafts[own], 5),
                part,
                _padded(addresses[own], 5),
            )
            assert out[-PADDING:].tolist() == [-1] * PADDING
            return _by_request(out, counts, part)

        return Case(run, _rejection_truth(scores, draft_scores, drafts, starts, addresses), rows)

    return make


def _rejection_truth(scores: Tensor, draft_scores: Tensor, drafts: Tensor, starts: Tensor, addresses: Tensor) -> Tensor:
    tokens, accepted = torch.full_like(drafts, -1), torch.zeros(len(starts) - 1, dtype=torch.int64)
    target, proposed, ids = scores.double().softmax(1), draft_scores.double().softmax(1), torch.arange(VOCABULARY)
    for request, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
        for row in range(first, end):
            at, weights, stream = addresses[row, :3].tolist(), target[row], Stream.TARGET
            if row < end - 1:
                draft = int(drafts[row])
                if uniform(*at, Stream.ACCEPT) * float(proposed[row, draft]) < float(target[row, draft]):
                    tokens[row] = draft
                    continue
                weights, stream = (target[row] - proposed[row]).clamp(min=0), Stream.RESIDUAL
            tokens[row] = (weights.log() + gumbel(ids, *at, stream)).argmax()
            accepted[request] = row - first
            break
    return _by_request(tokens, accepted, starts).double()


VERIFY_CASES: dict[str, CaseMaker] = {
    "verify_match": verify_match(),
    "verify_rejection": verify_rejection(0.7),
    "verify_rejection: strangers": verify_rejection(0.0),
    "verify_rejection: equals": verify_rejection(1.0),
}
