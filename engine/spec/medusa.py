"""Drafts by Medusa heads (arXiv 2401.10774): every token from one hidden state of the target, without a cache.

Owns the heads and the target's states in pages. Head i drafts the token i + 1 behind the last one, which the target
drew itself. Invariant: a draft depends on the state of the last token that the target has computed, and on nothing
else.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from engine.core.speculation import Draft, DraftPlan, DraftResult, DraftShare
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.layers.linear import Weight
from engine.models.features import FeatureTap
from engine.models.medusa import MedusaModel, MedusaWorkspace
from engine.runner.step_buffer import StepBuffer
from engine.spec.paged_drafter import MOST_STEPS, DraftingParts


class MedusaDrafter:
    """See `engine.spec.drafter.Drafter`."""

    name = "medusa"

    def __init__(self, parts: DraftingParts, model: MedusaModel, workspace: MedusaWorkspace, tap: FeatureTap) -> None:
        """tap: the states behind the target's final norm."""
        self.tap: FeatureTap | None = tap
        self.recorder = parts.recorder
        self._features = tap.features
        self._slots, self._sampler = parts.slots, parts.sampler
        self._model, self._workspace = model, workspace
        self._rows = StepBuffer(1, len(workspace.rows), torch.int64, workspace.rows.device)
        self._alignment = model.ops.row_alignment
        self._step = functools.lru_cache(MOST_STEPS)(self._make_step)

    @property
    def nbytes(self) -> int:
        """See `Drafter`."""
        return self._features.nbytes + self._slots.nbytes + self._workspace.nbytes + self._sampler.nbytes

    def see(self, plan: SchedulerOutput) -> None:
        """See `Drafter`."""
        self._slots.see(plan)

    def forget(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        self._slots.forget(request_ids)

    def draft_scores(self, share: ScheduledRequest) -> Tensor | None:
        """See `Drafter`."""
        return self._sampler.scores(share.request_id, share.num_drafts) if share.proposer == self.name else None

    def weights(self) -> Iterator[Weight]:
        """See `Drafter`."""
        return self._model.weights()

    @torch.inference_mode()
    def propose(self, plan: DraftPlan) -> DraftResult:
        """See `Drafter`. At most as many tokens as there are heads."""
        start = time.perf_counter()
        drafts = [Draft(proposer=self.name)] * len(plan.requests)
        states: dict[int, int] = {}  # of each request of the plan, the slot of its last computed token
        for index, share in enumerate(plan.requests):
            request, last = self._slots.take(share), share.num_computed_tokens - 1
            if last >= 0:
                states[index] = self._slots.slots(request, last, last + 1)[0]
        order = sorted(states, key=lambda index: -plan.requests[index].num_drafts)
        if order:
            shares = [plan.requests[index] for index in order]
            for index, draft in zip(order, self._run(shares, [states[index] for index in order]), strict=True):
                drafts[index] = draft
        return DraftResult(tuple(drafts), time.perf_counter() - start, len(order))

    def _run(self, shares: Sequence[DraftShare], slots: Sequence[int]) -> list[Draft]:
        """The drafts of requests, most tokens first, from the states in these slots."""
        most = len(self._model.heads)
        counts = self._sampler.begin(shares, [min(share.num_drafts, most) for share in shares])
        everybody = self._aligned(len(shares))
        self._rows.write(slots, everybody)
        self._rows.send(everybody)
        for head in range(max(counts, default=0)):
            wanted = max(row for row, count in enumerate(counts) if count > head) + 1
            rows = everybody if head == 0 else self._aligned(wanted)
            self.recorder.run((head, rows), self._step(head, rows))
            self._sampler.draw(head, rows, self._workspace.logits[:rows])
        return self._sampler.drafts(counts, self.name)

    def _aligned(self, rows: int) -> int:
        return -(-rows // self._alignment) * self._alignment

    def _make_step(self, head: int, rows: int) -> Callable[[], None]:
        """Drafts by one head for the first `rows` requests."""
        ws, numbers = self._workspace.cut(rows), self._rows.view(rows)

        def run() -> None:
            if head == 0:
                self._model.ops.gather_rows(ws.state, self._features, numbers)
            self._model.forward(ws, head)
            self._sampler.choose(head, rows, ws.logits)

        return run
