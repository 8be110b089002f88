"""The one place where drafts are accepted or rejected, and where every step's tokens come from.

A share of a step has a row of logits for its last token, and one for each draft behind it. Two rules (design, section
7), both lossless: `match` draws the target's token of every row with the target's own noise, and accepts drafts while
they equal it (arXiv 2408.07978): the same seed gives the same text with or without drafts. `rejection` accepts a draft
with min(1, p/q) and replaces the first other one from the rest of p - q (arXiv 2211.17192): the same distribution.
Greedy rows have one possible token, so that they match under both. The target's side is the very chain of plain
decoding, with the drafts before a row taken for text. Knows no caches and no proposers.
Invariant: what leaves here is what plain decoding would have drawn (`match`), or is distributed like it (`rejection`);
a row that cannot be drawn spoils no row before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.core.inspection import Inspection
from engine.core.outputs import Logprobs
from engine.core.step import ScheduledRequest
from engine.sample.inspection import inspect_row
from engine.sample.logprobs import NO_TOKEN, log_probabilities
from engine.sample.row import SamplingRow
from engine.sample.sampler import Drawn, Sampler
from kernels.noise import Stream
from kernels.ops import Ops

FAULTY = -2  # in place of the token of a row that cannot be drawn: equal to no draft, and to no mark of the ops

DraftScores = Callable[[ScheduledRequest], Tensor | None]


@dataclass(slots=True)
class Verified:
    """What a step's sampled shares got, by request id.

    token_ids: the accepted drafts and one token more. faults: shares that got nothing, and why. logprobs: of token_ids.
    num_accepted: of shares with drafts. draft_probabilities: of shares that are traced. inspections: of those that ask.
    """

    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    num_accepted: dict[str, int] = field(default_factory=dict)
    draft_probabilities: dict[str, list[float]] = field(default_factory=dict)
    inspections: dict[str, Inspection] = field(default_factory=dict)


def no_scores(_share: ScheduledRequest) -> Tensor | None:
    """The scores of drafts that nobody sampled."""
    return None


class Verifier:
    """Turns the logits of a step into tokens."""

    def __init__(self, ops: Ops, sampler: Sampler, draft_scores: DraftScores = no_scores) -> None:
        """draft_scores: of a share's drafts, fp32 [num_drafts, V]: q = softmax of them is what they were drawn from; or
        None where they were not drawn, and q is all theirs."""
        self._ops = ops
        self._sampler = sampler
        self._draft_scores = draft_scores

    @torch.inference_mode()
    def verify(self, logits: Tensor, shares: Sequence[ScheduledRequest], rows: Sequence[SamplingRow]) -> Verified:
        """logits: [len(rows) or more, V]. shares: those that sample, 1 + num_drafts of `rows` each, in order."""
        starts = [0]
        for share in shares:
            starts.append(starts[-1] + 1 + share.num_drafts)
        rejecting = [index for index, share in enumerate(shares) if _rejects(share)]
        kept = {row for index in rejecting for row in range(starts[index], starts[index + 1])}
        drawn = self._sampler.draw(logits, rows, kept)
        emitted = list(drawn.token_ids)  # what stands behind each row; NO_TOKEN where a draft before it was rejected
        for row in drawn.faults:
            emitted[row] = FAULTY
        accepted = self._match(shares, starts, emitted)
        for index in rejecting:
            accepted[index] = self._reject(shares[index], rows, starts[index], drawn, emitted)
        verified = Verified()
        for index, share in enumerate(shares):
            _settle(verified, share, starts[index], accepted[index], emitted, drawn)
        self._add_logprobs(verified, logits, shares, rows, drawn, emitted)
        for index, share in enumerate(shares):
            if share.trace and share.num_drafts:
                verified.draft_probabilities[share.request_id] = self._probabilities(
                    logits, share, starts[index], drawn
                )
            if share.inspect is not None and (tokens := verified.token_ids.get(share.request_id)):
                row = starts[index]
                verified.inspections[share.request_id] = inspect_row(
                    logits[row], rows[row], share.inspect, tokens[0], self._ops
                )
        return verified

    def _match(self, shares: Sequence[ScheduledRequest], starts: list[int], emitted: list[int]) -> list[int]:
        """How many drafts of each share equal what was drawn. emitted becomes NO_TOKEN behind the first other one."""
        if len(emitted) == len(shares):
            return [0] * len(shares)
        drafts = [token for share in shares for token in (*share.draft_token_ids, NO_TOKEN)]
        out, accepted = torch.empty(len(emitted), dtype=torch.int64), torch.empty(len(shares), dtype=torch.int32)
        tensors = [torch.frombuffer(array("q", numbers), dtype=torch.int64) for numbers in (emitted, drafts)]
        bounds = torch.frombuffer(array("i", starts), dtype=torch.int32)
        device = self._sampler.device
        outputs = out.to(device), accepted.to(device)
        self._ops.verify_match(*outputs, *(tensor.to(device) for tensor in (*tensors, bounds)))
        emitted[:] = outputs[0].tolist()
        counts: list[int] = outputs[1].tolist()
        return counts

    def _reject(
        self, share: ScheduledRequest, rows: Sequence[SamplingRow], start: int, drawn: Drawn, emitted: list[int]
    ) -> int:
        """Verifies one share by rejection; what it got goes into emitted, how many drafts were accepted comes back."""
        end = start + 1 + share.num_drafts
        sound = next((row for row in range(start, end) if row in drawn.faults), end) - start
        if sound == 0:
            emitted[start:end] = [FAULTY] + [NO_TOKEN] * share.num_drafts
            return 0
        scores = self._sampler.scores(end)[start : start + sound]
        drafts = [*share.draft_token_ids[: sound - 1], NO_TOKEN]
        device = scores.device
        out = torch.empty(sound, dtype=torch.int64, device=device)
        accepted = torch.empty(1, dtype=torch.int32, device=device)
        numbers = array("Q")
        for row in rows[start : start + sound]:
            numbers.extend(row.address(Stream.TARGET))
        self._ops.verify_rejection(
            out,
            accepted,
            scores,
            self._proposal(share, drafts, scores),
            torch.tensor(drafts, dtype=torch.int64, device=device),
            torch.tensor([0, sound], dtype=torch.int32, device=device),
            torch.frombuffer(numbers, dtype=torch.int64).view(-1, 4).to(device),
        )
        emitted[start:end] = [*out.tolist(), *[NO_TOKEN] * (end - start - sound)]
        return int(accepted[0])

    def _proposal(self, share: ScheduledRequest, drafts: list[int], scores: Tensor) -> Tensor:
        """What the drafts were drawn from, as scores like the target's; the last row's are not read."""
        found = self._draft_scores(share)
        proposal = torch.full_like(scores, -torch.inf)
        if found is not None:
            proposal[: len(drafts) - 1] = found[: len(drafts) - 1]
        else:
            for row, token_id in enumerate(drafts[:-1]):
                proposal[row, token_id] = 0.0
        return proposal

    def _add_logprobs(
        self,
        verified: Verified,
        logits: Tensor,
        shares: Sequence[ScheduledRequest],
        rows: Sequence[SamplingRow],
        drawn: Drawn,
        emitted: list[int],
    ) -> None:
        """Log probabilities of what was emitted, the target's own."""
        if all(share.sampling.logprobs is None for share in shares):
            return
        names = [token_id if token_id >= 0 else NO_TOKEN for token_id in emitted]
        found = self._sampler.logprobs(logits, rows, drawn.processed, names)
        start = 0
        for share in shares:
            count = len(verified.token_ids.get(share.request_id, ()))
            if share.sampling.logprobs is not None and count:
                entries = verified.logprobs[share.request_id] = Logprobs()
                for row in range(start, start + count):
                    entries.extend(found[row])
            start += 1 + share.num_drafts

    def _probabilities(self, logits: Tensor, share: ScheduledRequest, start: int, drawn: Drawn) -> list[float]:
        """Of each draft, under what its row was drawn from; of a greedy request under the softmax of its logits."""
        found: list[float] = []
        for row, token_id in enumerate(share.draft_token_ids, start):
            inside = row in drawn.processed
            source = self._sampler.scores(row + 1) if inside else logits
            listed = log_probabilities(source[row : row + 1], [token_id], 0, self._ops)
            found.append(float(torch.tensor(listed.logprobs[0], dtype=torch.float64).exp()))
        return found


def _rejects(share: ScheduledRequest) -> bool:
    return share.num_drafts > 0 and share.rule == "rejection" and not share.sampling.greedy


def _settle(
    verified: Verified, share: ScheduledRequest, start: int, accepted: int, emitted: list[int], drawn: Drawn
) -> None:
    """Gives a share its tokens. A fault behind tokens that are sound waits for the step that begins with it."""
    run = emitted[start : start + accepted + 1]
    if run[-1] < 0:
        if accepted == 0:
            verified.faults[share.request_id] = drawn.faults[start]
            return
        run, accepted = run[:-1], accepted - 1
    verified.token_ids[share.request_id] = tuple(run)
    if share.num_drafts:
        verified.num_accepted[share.request_id] = accepted
