"""What /api/requests says of a single request. Times within a course are seconds since the server received it.

Owns field names and their meaning. Knows nothing of where they come from.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from app.schema_base import Outgoing
from app.schemas import Request, RequestProgress


class PhasePart(Outgoing):
    """What it was doing. server: on its way to the engine. held: its grammar was compiled, or another sample computed
    its prompt. delivery: its last token was made, its end not told yet."""

    name: Literal["server", "held", "queue", "prefill", "decode", "preempted", "delivery"]
    start_s: float
    end_s: float


class Chunk(Outgoing):
    """A part of the prompt that one step computed. done: prompt tokens known after it. recomputed: again."""

    start_s: float
    end_s: float
    num_tokens: int
    done: int
    recomputed: bool


class Preempted(Outgoing):
    """When its blocks were taken, how much was computed by then, and when it came back."""

    t_s: float
    resumed_s: float | None
    num_computed_tokens: int


class Wait(Outgoing):
    """Its wait. num_ahead, num_running: others when it joined the queue. blocks_s, slots_s, budget_s: while the first
    of the queue lacked KV blocks, one of the `max_num_seqs` places, or rows in the step. held_s: before it joined."""

    num_ahead: int
    num_running: int
    held_s: float
    blocks_s: float
    slots_s: float
    budget_s: float


class Decode(Outgoing):
    """Its steps behind the first token. others_*: requests beside it in these, and tokens of their prompts."""

    steps: int
    others_mean: float | None
    others_max: int
    others_prompt_tokens: int


class Timeline(Outgoing):
    """The course. clock: "engine" where the engine stamped the marks, "server" where only the server saw them (the
    request still runs, or its engine ended). A mark that was not reached is null. last_progress: the engine's last word
    on its prompt."""

    clock: Literal["engine", "server"]
    received_t: float
    queued_s: float | None
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    engine_end_s: float | None
    end_s: float
    wait: Wait | None
    chunks: list[Chunk]
    preemptions: list[Preempted]
    decode: Decode | None
    num_samples: int
    last_progress: RequestProgress | None
    phases: list[PhasePart]


class Reason(Outgoing):
    """A cause of slowness. seconds: what it cost, where that is known. numbers: what else is known of it."""

    code: str
    seconds: float | None = None
    numbers: dict[str, Any] = Field(default_factory=dict)


class RequestBody(Outgoing):
    """The texts of a request, kept because the setting `store_bodies` was on. prompt: as it came, or as the model read
    it. truncated: something was longer than what is kept."""

    prompt: str
    messages: list[dict[str, Any]] | None
    sampling: dict[str, Any]
    answers: list[str]
    truncated: bool


class RequestDetail(Request):
    """Everything of one request. seed_text: the seed, for readers whose numbers are not exact beyond 53 bits. timeline
    is null where it was not recorded. trace: its verifications are kept, see /api/requests/{id}/trace. body: its texts,
    where they were kept; stores_bodies: whether they are at present."""

    running: bool
    seed_text: str | None
    timeline: Timeline | None
    why_slow: list[Reason]
    trace: bool
    body: RequestBody | None
    stores_bodies: bool


class BodiesDeleted(Outgoing):
    """Of how many requests the texts were removed."""

    deleted: int
