"""Who runs a plan: in this process now, several ranks later. The engine knows only `Executor`."""

from __future__ import annotations

from typing import Protocol

from engine.core.speculation import DraftPlan, DraftResult
from engine.core.step import SchedulerOutput, StepResult


class Executor(Protocol):
    """Runs plans in the order they are given."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """Runs one step that is not empty."""

    def propose(self, plan: DraftPlan) -> DraftResult:
        """Drafts by the drafter that was loaded with the model. Its requests have been in an executed plan."""
