"""Ever-growing counters of an engine. Rates are the reader's work, so that any window is right afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.step import SchedulerOutput, StepResult


@dataclass(slots=True)
class EngineCounters:
    """prompt_tokens_total counts computed prompt tokens, recomputed ones again; the others are what they say."""

    steps_total: int = 0
    step_s_total: float = 0.0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    requests_finished_total: int = 0

    def observe(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Counts one step."""
        self.steps_total += 1
        self.step_s_total += result.step_s
        self.generation_tokens_total += sum(len(tokens) for tokens in result.token_ids.values())
        for request in plan.requests:
            end = request.num_computed_tokens + len(request.token_ids)
            self.prompt_tokens_total += max(0, min(end, request.num_prompt_tokens) - request.num_computed_tokens)

    def observe_finished(self, count: int) -> None:
        """Counts requests that ended, for whatever reason."""
        self.requests_finished_total += count
