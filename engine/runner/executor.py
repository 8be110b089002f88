"""Who runs a plan: in this process now, several ranks later. The engine knows only `Executor`."""

from __future__ import annotations

from typing import Protocol

from engine.core.scheduler import SchedulerOutput, StepResult


class Executor(Protocol):
    """Runs plans in the order they are given."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """Runs one step that is not empty."""
