"""An engine whose drafter is watched: every draft that it makes, with the text that stood before it.

Owns the recording and the stand-in controller; the engine, its scheduler and its drafter are the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.core.speculation import Draft, DraftPlan, DraftResult
from engine.loading import LoadedEngine
from engine.spec.model_proposer import ModelProposer
from engine.spec.speculator import Speculation, Speculator
from tests.engine.spec.stand_ins import AlwaysAll
from tests.engine.stepping import load


@dataclass(frozen=True)
class Made:
    """A draft and what it was made of."""

    request_id: str
    tokens: list[int]  # all of the request's
    draft: Draft
    wanted: int


class Watched:
    """Runs an engine by a drafter; `made` is what it drafted."""

    def __init__(self, target: Path, drafter: Path, kind: str, *, k: int = 4, **options: Any) -> None:
        self.loaded: LoadedEngine = load(
            target, speculation=kind, drafter=str(drafter), num_speculative_tokens=k, **options
        )
        self.engine, self.runner = self.loaded.engine, self.loaded.runner
        self.made: list[Made] = []
        self.skipping = 0  # turns that are drafted by nobody
        proposer = ModelProposer(kind, self, len(self.loaded.plan.kv.groups), self.loaded.plan.drafting.longest)
        rule = options.get("speculation_rule", "match")
        speculation = Speculation({kind: proposer}, kind, _Skipping(self))
        self.engine.speculate_by(Speculator(self.engine.scheduler, speculation, max_drafts=k, rule=rule))

    def execute(self, plan: Any) -> Any:
        """The runner's own; only `propose` is asked of this executor."""
        return self.runner.execute(plan)

    def propose(self, plan: DraftPlan) -> DraftResult:
        """The runner's own, written down."""
        result = self.runner.propose(plan)
        for share, draft in zip(plan.requests, result.drafts, strict=True):
            tokens = list(self.engine.scheduler.requests[share.request_id].token_ids)
            self.made.append(Made(share.request_id, tokens, draft, share.num_drafts))
        return result


class _Skipping(AlwaysAll):
    """Drafts everything, but in the turns that are to be skipped."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def plan(self, candidates: Any, num_other_rows: int) -> list[int]:
        if self._watched.skipping:
            self._watched.skipping -= 1
            return [0] * len(candidates)
        return super().plan(candidates, num_other_rows)
