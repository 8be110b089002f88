"""Drafts of the drafter that was loaded with the model, as a proposer: wishes become a plan for the executor.

Owns the translation, and knows neither tensors nor which drafter it is. Invariant: new blocks are told to the runner
once, here or in the next step's plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request
from engine.core.speculation import Draft, DraftPlan, DraftShare
from engine.runner.executor import Executor
from engine.spec.base import NO_RUN, DrafterRun, DraftWish


class ModelProposer:
    """See `engine.spec.base.Proposer`."""

    def __init__(self, name: str, executor: Executor, num_groups: int, longest: int | None = None) -> None:
        """name: of the drafter, a key of PROPOSERS. num_groups: KV groups of the model. longest: tokens of a sequence
        that the drafter can read, drafts included; None: as many as the model."""
        self.name = self.costly = name
        self.free = ""
        self.run = NO_RUN
        self._longest = longest
        self._executor = executor
        self._nothing_added = tuple(() for _ in range(num_groups))

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        """One draft for each wish, empty for those that the controller gives nothing costly."""
        self.run = NO_RUN
        drafts = [Draft(proposer=self.name)] * len(wishes)
        counts = [self._num_drafts(wish) for wish in wishes]
        asked = [index for index, count in enumerate(counts) if count > 0]
        if asked:
            plan = DraftPlan(tuple(self._share(wishes[index], counts[index]) for index in asked))
            result = self._executor.propose(plan)
            self.run = DrafterRun(result.num_rows, result.draft_s)
            for index, draft in zip(asked, result.drafts, strict=True):
                drafts[index] = draft.part(wishes[index].num_drafts)
        return drafts

    def end(self, request: Request) -> None:
        """The runner hears of it in the next step's plan."""

    def clear(self) -> None:
        """Nothing is learned from requests that ended."""

    def _num_drafts(self, wish: DraftWish) -> int:
        """What the controller gives, within the drafter's own context."""
        count = min(wish.num_costly, wish.num_drafts)
        return count if self._longest is None else min(count, self._longest - wish.request.num_tokens)

    def _share(self, wish: DraftWish, num_drafts: int) -> DraftShare:
        request = wish.request
        start = request.num_computed_tokens
        return DraftShare(
            request_id=request.request_id,
            token_ids=tuple(request.token_ids[start:]),
            num_computed_tokens=start,
            block_ids=request.take_untold_blocks(self._nothing_added),
            num_drafts=num_drafts,
            sampling=request.sampling,
            seed=request.seed,
            sample_index=request.sample_index,
            rule=request.speculation.rule or "match",
        )
