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


class Aborted(Outgoing):
    """aborted: how many requests were told to end."""

    aborted: int


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


class RequestProgress(Outgoing):
    """A request that has no token yet, as the engine last told. done, total: tokens of its prompt. ahead: requests
    before it; cause: what the first of the queue lacks: "blocks", "slots", "budget", or nothing."""

    state: Literal["waiting", "prefill", "preempted"]
    done: int
    total: int
    cached: int
    ahead: int
    cause: str


class Request(Outgoing):
    """One request's figures. queue_s: until its first share of a step. ttft_s: until its first token. itl_p95_s: 95th
    percentile of the times between its tokens. tokens_per_s: behind the first token. stop_cause: what lies behind
    finish_reason. slow: beyond the limits of the settings slow_ttft_s and slow_itl_s, or preempted."""

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
    stop_cause: str | None = None
    slow: bool | None = None
    progress: RequestProgress | None = None


class Requests(Outgoing):
    """A page of the list, newest first. next_before: `before` of the page after it, which may be there even after a
    short or empty page: where several filters are given, one call looks through a part of the list only."""

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
    """Settings of the dashboard; only those given are changed.

    expected: what the caller saw where (null: not set); where something else stands now, nothing is changed.
    """

    settings: dict[str, Any]
    expected: dict[str, Any] = Field(default_factory=dict)

    @field_validator("settings", "expected")
    @classmethod
    def _storable(cls, settings: dict[str, Any]) -> dict[str, Any]:
        encodable(json.dumps(settings, ensure_ascii=False, allow_nan=False))
        return settings


class SettingsValues(Outgoing):
    settings: dict[str, Any]


class Samples(Outgoing):
    """`t[i]` starts a step of `step_s`; null where nothing was recorded. Gauges are means over the step, rates the
    growth of a counter in it, quantiles of all latencies in it. `low` and `high`: the smallest and the largest reading
    of each gauge whose band was asked for."""

    t: list[float]
    columns: dict[str, list[float | None]]
    step_s: int
    low: dict[str, list[float | None]] = Field(default_factory=dict)
    high: dict[str, list[float | None]] = Field(default_factory=dict)
