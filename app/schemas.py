"""Bodies of the /api calls: what comes in and what goes out. The ui imports these names.

Owns field names, types and ranges at the edge. Knows nothing of what is done with them. Invariant: bodies that come in
are strict (no text where a number belongs) and closed (an unknown field is refused).
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, field_validator

from app.schema_base import Incoming as Incoming
from app.schema_base import Outgoing as Outgoing
from app.schema_base import Text as Text
from app.schema_base import encodable
from app.speculation_schemas import SelfTestState, Speculation

# ---- system ---------------------------------------------------------------------------------------------------------


class Health(Outgoing):
    status: Literal["ok"] = "ok"
    version: str
    uptime_s: float
    home: str
    pid: int


class Ready(Outgoing):
    ready: bool
    models: list[str] = Field(default_factory=list)
    reason: str | None = None


# ---- models and engines ---------------------------------------------------------------------------------------------

ModelState = Literal[
    "available", "on_disk", "downloading", "loading", "loaded", "unloading", "failed", "broken"
]  # fmt: skip


Verdict = Literal["yes", "after_unload", "no", "unknown"]


class Fit(Outgoing):
    """Whether the model with default options fits now. `unload`: which loaded models would have to go first."""

    fits: Verdict
    needed_bytes: int | None = None
    available_bytes: int | None = None
    short_by_bytes: int | None = None
    unload: list[str] = Field(default_factory=list)


class ModelRow(Outgoing):
    id: str
    name: str
    description: str = ""
    state: ModelState
    on_disk: bool
    path: str | None = None
    size_bytes: int | None = None
    format: str | None = None
    quantization: str | None = None
    architecture: str | None = None
    num_parameters: int | None = None
    context_length: int | None = None
    license: str | None = None
    license_url: str | None = None
    gated: bool = False
    support: Literal["native", "fallback", "not_yet"] = "native"
    support_reason: str = ""
    error: str | None = None
    fit: Fit
    sources: list[str] = Field(default_factory=list)
    drafter_ids: list[str] = Field(default_factory=list)
    engine_id: str | None = None
    job_id: str | None = None
    default: bool = False
    last_used_at: float | None = None  # its newest load or request; None: never


class Models(Outgoing):
    models: list[ModelRow]


class PullBody(Incoming):
    source: Text = Field(min_length=1, max_length=1000)
    revision: str | None = None
    token: str | None = None
    accept_license: bool = False


class JobStarted(Outgoing):
    job_id: str


class MemoryHolder(Outgoing):
    """A share of the memory in use. `measured` is false where an engine's own word counts."""

    name: str
    kind: Literal["engine", "app", "other"]
    bytes: int
    measured: bool


class Estimate(Outgoing):
    """`total_bytes` = weights + drafter + kv + workspace + runtime; `workspace_parts` add up to `workspace_bytes`."""

    device: Literal["cpu", "cuda"]
    weights_bytes: int
    drafter_bytes: int
    kv_bytes: int
    workspace_bytes: int
    workspace_parts: dict[str, int]
    runtime_bytes: int
    reading_bytes: int
    total_bytes: int
    available_bytes: int
    free_bytes: int
    memory_total_bytes: int
    held: list[MemoryHolder]
    fits: bool
    short_by_bytes: int
    kv_bytes_per_token: int
    max_model_len: int
    max_model_len_that_fits: int
    message: str
    speculation: str
    drafter_note: str


EngineState = Literal["loading", "ready", "draining", "unloading", "failed", "stopped"]


class Engine(Outgoing):
    id: str
    model_id: str
    state: EngineState
    pid: int | None
    device: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    exactness: str | None = None
    exactness_reason: str | None = None
    effective_settings: list[dict[str, Any]] = Field(default_factory=list)
    memory: dict[str, int] = Field(default_factory=dict)
    kernels: dict[str, str] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    started_at: float
    load_s: float | None = None
    num_kv_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    sampling_defaults: dict[str, float] = Field(default_factory=dict)
    error: str | None = None
    failure_kind: str | None = None  # of a failed engine: the protocol's EngineFailed.kind, or "died"
    lost_requests: list[str] = Field(default_factory=list)  # what ran when it failed
    idle_unload_s: float | None = None  # None: it stays
    idle_unload_at: float | None = None  # epoch seconds; None: it is busy, or stays
    log_tail: list[str] = Field(default_factory=list)
    stats: dict[str, Any] | None = None
    speculation: Speculation | None = None  # None until the engine is ready
    selftest: SelfTestState | None = None


class Engines(Outgoing):
    engines: list[Engine]


# ---- jobs, requests, events, settings, samples ----------------------------------------------------------------------


class Job(Outgoing):
    id: str
    kind: str
    subject: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled", "interrupted"]
    stage: str
    done: int
    total: int
    unit: str
    message: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    error: str | None
    result: dict[str, Any] | None
    log: list[str]
    rate_per_s: float | None = None  # units a second of the stage it is in; None: not known
    eta_s: float | None = None  # seconds to go; None: not known


class Jobs(Outgoing):
    """`next_before` asks for the page behind this one, None at the end. `live_seq`: where to follow topic `jobs`."""

    jobs: list[Job]
    next_before: str | None = None
    live_seq: int = 0


class Request(Outgoing):
    id: str
    engine_run_id: str | None
    model_id: str
    source: Literal["chat", "completion", "conversation", "embedding"]
    state: Literal["queued", "running", "finished", "failed", "interrupted"]
    created_at: float
    finished_at: float | None
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    num_cached_tokens: int | None
    num_preemptions: int | None
    queue_s: float | None
    ttft_s: float | None
    e2e_s: float | None
    itl_p95_s: float | None
    tokens_per_s: float | None
    drafts: int | None
    drafted: int | None
    accepted: int | None
    finish_reason: str | None
    error: str | None
    seed: int | None
    accepted_per_position: list[int] | None
    drafted_per_position: list[int] | None
    draft_s: float | None
    verify_s: float | None
    proposer: str | None


class Requests(Outgoing):
    requests: list[Request]
    next_before: int | None


class Event(Outgoing):
    id: int
    t: float
    kind: str
    severity: Literal["info", "warning", "error"]
    message: str
    engine_run_id: str | None
    data: dict[str, Any]


class Events(Outgoing):
    events: list[Event]


class SettingsBody(Incoming):
    """Settings of the dashboard; only those given are changed."""

    settings: dict[str, Any]

    @field_validator("settings")
    @classmethod
    def _storable(cls, settings: dict[str, Any]) -> dict[str, Any]:
        encodable(json.dumps(settings, ensure_ascii=False, allow_nan=False))
        return settings


class SettingsValues(Outgoing):
    settings: dict[str, Any]


class Samples(Outgoing):
    t: list[float]
    columns: dict[str, list[float | None]]
    step_s: int


# ---- conversations --------------------------------------------------------------------------------------------------


class Sampling(Incoming):
    """How answers of a conversation are drawn; an absent field takes the model server's default."""

    temperature: float | None = Field(default=None, ge=0, le=10)
    top_k: int | None = Field(default=None, ge=0, le=2**31)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31)


class ConversationBody(Incoming):
    title: Text = Field(default="", max_length=200)
    system_prompt: Text = ""
    model_id: Text | None = None
    sampling: Sampling = Sampling()


class ConversationPatch(Incoming):
    version: int
    title: Text = Field(default="", max_length=200)
    system_prompt: Text = ""
    sampling: Sampling = Sampling()
    model_id: Text | None = None
    active_leaf_id: Text | None = None


class GenerateBody(Incoming):
    """`content` starts a new turn under `parent_id` (absent: the active leaf); null answers the message `parent_id`."""

    version: int
    content: Text | None = Field(default=None, min_length=1)
    parent_id: str | None = None
    model_id: str | None = None


class Message(Outgoing):
    id: str
    conversation_id: str
    parent_id: str | None
    role: Literal["user", "assistant"]
    content: str
    reasoning_content: str
    state: Literal["complete", "streaming", "interrupted", "failed"]
    finish_reason: str | None
    error: str | None
    model_id: str | None
    request_id: str | None
    stats: dict[str, Any] | None
    created_at: float


class ConversationSummary(Outgoing):
    id: str
    title: str
    model_id: str | None
    version: int
    created_at: float
    updated_at: float
    num_messages: int
    generating: bool


class Conversation(ConversationSummary):
    """`live_seq`: the newest message of the topic `conversation:{id}` that is in here; its `since` for the rest."""

    live_seq: int
    system_prompt: str
    sampling: dict[str, Any]
    active_leaf_id: str | None
    messages: list[Message]


class Conversations(Outgoing):
    conversations: list[ConversationSummary]


class Generated(Outgoing):
    conversation: ConversationSummary
    user_message: Message | None
    assistant_message: Message
