"""What a step tells the outside about each request: plain frozen data, encodable by msgspec, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.inspection import Inspection


@dataclass(frozen=True, slots=True)
class QueueWait:
    """How a request waited for its first share of a step.

    num_ahead, num_running: the others when it joined the queue. held_s: before that, while its grammar was compiled or
    the first sample computed their prompt. Then, while the first in the queue lacked KV blocks (blocks_s), one of the
    `max_num_seqs` places (slots_s), or rows in the step (budget_s).
    """

    num_ahead: int = 0
    num_running: int = 0
    held_s: float = 0.0
    blocks_s: float = 0.0
    slots_s: float = 0.0
    budget_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One step's part of a prompt, in seconds after arrival: planned to computed. done: prompt tokens known after it,
    cached ones among them. recomputed: it was computed before, until a preemption."""

    start_s: float
    end_s: float
    num_tokens: int
    done: int
    recomputed: bool = False


@dataclass(frozen=True, slots=True)
class Preemption:
    """When its blocks were taken, in seconds after arrival, what was computed by then, and when it came back."""

    t_s: float
    num_computed_tokens: int
    resumed_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Intervals of a finished request in seconds, stamped in the engine on one monotonic clock.

    queue_s: arrival to first scheduled; prefill_s: first scheduled to first token; decode_s: first token to last.
    A part that was never reached is None. arrival_t: the arrival by the wall clock. end_s: arrival to its end.
    decode_steps: steps that gave it tokens; others_mean, others_max: requests beside it in these;
    others_prompt_tokens: tokens of others' prompts that these computed.
    """

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    arrival_t: float | None = None
    end_s: float | None = None
    wait: QueueWait | None = None
    chunks: list[PrefillChunk] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    decode_steps: int = 0
    others_mean: float | None = None
    others_max: int = 0
    others_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Where a request stands that has no token yet, or is computed anew.

    state: "waiting", "prefill" or "preempted". done, total: tokens of its prompt. ahead: requests before it in the
    queue; cause: what the first of the queue lacks ("blocks", "slots", "budget", or empty).
    """

    request_id: str
    state: str
    done: int = 0
    total: int = 0
    cached: int = 0
    ahead: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """What is known once a request ended. `seed` is the one that was drawn with, given or picked."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    seed: int | None = None
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    timing: RequestTiming = field(default_factory=RequestTiming)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log probabilities of a run of tokens, one entry a token.

    logprobs: of the token itself. top_token_ids, top_logprobs: the most likely tokens at its place, as many as were
    asked for, most likely first.
    """

    logprobs: list[float] = field(default_factory=list)
    top_token_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)

    def part(self, start: int, end: int | None = None) -> Logprobs:
        """The entries from `start` up to `end`."""
        return Logprobs(self.logprobs[start:end], self.top_token_ids[start:end], self.top_logprobs[start:end])

    def extend(self, other: Logprobs) -> None:
        """Appends the entries of `other`."""
        self.logprobs.extend(other.logprobs)
        self.top_token_ids.extend(other.top_token_ids)
        self.top_logprobs.extend(other.top_logprobs)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One request's row of a step: its new tokens and, at the end, why it ended.

    finish_reason: None while running; "stop" (an end or stop token, which is the last of `token_ids`), "length",
    "abort", "error" (`error` says what). logprobs: one entry for each of `token_ids`, where asked for. prompt_logprobs:
    with the first token of sample 0, one entry for each prompt token but the first, where asked for. index: which of
    the request's samples this is; each of them ends by itself. pooled: the embedding of a request that wants its hidden
    states pooled, with its "stop": a vector of length 1 and the model's hidden size. inspection: of a request that asks
    for one, with its only token.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    error: str | None = None
    summary: RequestSummary | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    index: int = 0
    pooled: list[float] | None = None
    inspection: Inspection | None = None
