"""The plan of one step and what comes back: frozen plain data, no Request objects, no torch.

Between the scheduler, which plans, and the executor, which may be several ranks one day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.core.inspection import Inspection, InspectionWish
from engine.core.outputs import Logprobs
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import BlockIds


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: plain data, no Request object.

    token_ids: the tokens to compute, which stand at positions num_computed_tokens and up. block_ids: of each KV group
    the whole block table where `first` is true (a new or resumed request), else the blocks added since the last step.
    samples: whether the last row yields a token (a chunk in the middle of a prompt does not). known_token_ids: with
    `first`, the tokens before token_ids, where the draw depends on them. end_token_ids: those that end the answer,
    where min_tokens holds them back. prompt_targets: the prompt tokens that follow token_ids, shifted by one, where
    their log probabilities are wanted. sample_index: which of several samples of one prompt. allowed: the grammar's
    masks for the tokens that are sampled, a bit per token id; empty: all are. pooling: how the prompt's hidden states
    are pooled; such a share never samples. num_drafts: how many of token_ids, the last ones, are drafts; where it
    samples, each of them and the token before them yields a row of logits. rule: how drafts are accepted.
    proposer: who made them. trace: whether their probabilities are wanted. inspect: whether the chain is to be told.
    """

    request_id: str
    first: bool
    token_ids: tuple[int, ...]
    num_computed_tokens: int
    block_ids: BlockIds
    samples: bool
    sampling: SamplingParams
    seed: int
    num_prompt_tokens: int
    known_token_ids: tuple[int, ...] = ()
    end_token_ids: tuple[int, ...] = ()
    prompt_targets: tuple[int, ...] = ()
    sample_index: int = 0
    allowed: tuple[bytes, ...] = ()
    pooling: str = ""
    num_drafts: int = 0
    rule: str = "match"
    proposer: str = ""
    trace: bool = False
    inspect: InspectionWish | None = None

    @property
    def draft_token_ids(self) -> tuple[int, ...]:
        """The drafts among token_ids."""
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    @property
    def num_prompt_part(self) -> int:
        """How many of token_ids belong to the prompt."""
        return max(
            0, min(self.num_computed_tokens + len(self.token_ids), self.num_prompt_tokens) - self.num_computed_tokens
        )

    @property
    def completes_pooling(self) -> bool:
        """Whether the pooled state is known after this share."""
        return self.pooling != "" and self.num_computed_tokens + len(self.token_ids) == self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step. `ended`: requests whose rows the runner may forget (finished, aborted, preempted)."""

    requests: tuple[ScheduledRequest, ...]
    ended: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the executor brings back: the new tokens of each request that sampled, and the step's own time.

    faults: requests that could not be drawn, and why; they have no tokens. logprobs: of token_ids; prompt_logprobs: of
    the shares' prompt_targets. pooled: of the shares that complete a pooling. num_accepted: of the shares with drafts;
    their token_ids are those drafts and one token more. draft_probabilities: those of
    the drafts of traced shares, under what was drawn from (see `VerifiedDraft`). inspections: of shares that ask.
    """

    token_ids: Mapping[str, tuple[int, ...]]
    step_s: float
    faults: Mapping[str, str] = field(default_factory=dict)
    logprobs: Mapping[str, Logprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, Logprobs] = field(default_factory=dict)
    pooled: Mapping[str, list[float]] = field(default_factory=dict)
    num_accepted: Mapping[str, int] = field(default_factory=dict)
    draft_probabilities: Mapping[str, list[float]] = field(default_factory=dict)
    inspections: Mapping[str, Inspection] = field(default_factory=dict)
