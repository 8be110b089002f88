"""What the model runner needs of a drafter that lives beside it. Who implements it: draft_model, eagle, medusa.

Knows plans, not requests. Invariant: a drafter never touches what the target computes; a draft that is wrong costs
time, and the entries it left in the drafter's cache are written anew before they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from engine.core.speculation import DraftPlan, DraftResult
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.layers.linear import Weight
from engine.models.features import FeatureTap
from kernels.recording import Recorder


class Drafter(Protocol):
    """Drafts for the requests of a runner."""

    name: str  # its key in engine.spec.PROPOSERS
    tap: FeatureTap | None  # what the target's step has to leave behind
    recorder: Recorder  # of its passes

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers and of what it keeps in KV blocks; its weights are not among them."""

    def see(self, plan: SchedulerOutput) -> None:
        """A step that is about to run: its tokens, its new blocks, and the requests that ended before it."""

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is remembered of requests that will not run again."""

    def propose(self, plan: DraftPlan) -> DraftResult:
        """Drafts for requests that have been in a plan; empty ones where it has to catch up first."""

    def draft_scores(self, share: ScheduledRequest) -> Tensor | None:
        """The scores that the drafts of a share were drawn from, [num_drafts, V] over the target's vocabulary, -inf for
        tokens that are out: where this drafter sampled them under the rule "rejection", else None."""

    def weights(self) -> Iterator[Weight]:
        """Everything that was loaded, without what the target has loaded already."""
