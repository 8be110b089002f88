"""What a step tells the outside about each request: plain frozen data, encodable by msgspec, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Intervals of a finished request in seconds, stamped in the engine on one monotonic clock.

    queue_s: arrival to first scheduled; prefill_s: first scheduled to first token; decode_s: first token to last.
    A part that was never reached is None.
    """

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


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
    timing: RequestTiming = field(default_factory=RequestTiming)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One request's row of a step: its new tokens and, at the end, why it ended.

    finish_reason: None while running; "stop" (an end or stop token, which is the last of `token_ids`), "length",
    "abort", "error" (`error` says what).
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    error: str | None = None
    summary: RequestSummary | None = None
