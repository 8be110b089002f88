"""The plain records that enter and leave the database: frozen dataclasses and typed changes.

Owns the shape of what is stored, as the rest of the program sees it. Knows nothing of SQL, HTTP or the engine.
Invariant: times are epoch seconds, sizes are bytes, and None means "not known", never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from db.figures import ACCEPTED_POSITIONS, DRAFTED_POSITIONS, ENGINE, NUM_POSITIONS
from db.histogram import LatencyHistogram


@dataclass(frozen=True, slots=True)
class EngineRunRow:
    """One life of an engine process. `ended_at` is None while it lives."""

    id: str
    model_id: str
    state: str  # "loading" | "ready" | "draining" | "unloading" | "failed" | "stopped" | "interrupted"
    started_at: float
    pid: int | None = None
    device: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    exactness: str | None = None
    exactness_reason: str | None = None
    load_s: float | None = None
    ended_at: float | None = None
    error: str | None = None
    num_kv_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    effective_settings: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)
    model_hash: str | None = None  # of the weights, and of the drafter's: acceptance belongs to the pair
    drafter_hash: str | None = None
    speculation: str | None = None  # the proposer of requests that name none, "off" without one


@dataclass(frozen=True, slots=True)
class EngineSampleRow:
    """One second of one engine. `counted_at` is when the engine read its counters, `t` when the sample was taken."""

    engine_run_id: str
    t: float
    counted_at: float | None = None
    num_requests_running: int | None = None
    num_requests_waiting: int | None = None
    kv_blocks_used: int | None = None
    kv_blocks_cached: int | None = None
    kv_blocks_total: int | None = None
    engine_process_bytes: int | None = None
    engine_gpu_bytes: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    requests_finished_total: int | None = None
    preemptions_total: int | None = None
    steps_total: int | None = None
    step_s_total: float | None = None
    drafts_total: int | None = None
    drafted_total: int | None = None
    accepted_total: int | None = None
    draft_s_total: float | None = None
    verify_s_total: float | None = None
    speculation_gain: float | None = None
    weights_bytes: int | None = None
    draft_weights_bytes: int | None = None
    kv_bytes: int | None = None
    workspace_bytes: int | None = None
    runtime_bytes: int | None = None
    kv_used_bytes: float | None = None  # of kv_bytes, the share of the pool's blocks that running requests hold
    kv_cached_bytes: float | None = None  # and the share kept for reuse
    accepted_per_position: Sequence[int] | None = None  # ever-growing, too; shorter: no draft was that long
    drafted_per_position: Sequence[int] | None = None
    ttft_histogram: LatencyHistogram | None = None
    itl_histogram: LatencyHistogram | None = None

    def figures(self) -> dict[str, float | None]:
        """Gauges and counters by their names in `db.figures.ENGINE`, those of each position among them."""
        values = dict(zip(ACCEPTED_POSITIONS, _by_position(self.accepted_per_position), strict=True))
        values |= zip(DRAFTED_POSITIONS, _by_position(self.drafted_per_position), strict=True)
        return {
            name: values[name] if name in values else getattr(self, name) for name in (*ENGINE.gauges, *ENGINE.counters)
        }


def _by_position(counts: Sequence[int] | None) -> Sequence[float | None]:
    if counts is None:
        return [None] * NUM_POSITIONS
    return [*counts, *[0] * (NUM_POSITIONS - len(counts))][:NUM_POSITIONS]


@dataclass(frozen=True, slots=True)
class DeviceSampleRow:
    """One second of the machine. Several GPUs are one figure: memory and power summed, utilisation averaged,
    temperature of the hottest."""

    t: float
    host_memory_total_bytes: int | None = None
    host_memory_used_bytes: int | None = None
    host_memory_available_bytes: int | None = None
    host_cpu_percent: float | None = None
    app_process_bytes: int | None = None
    disk_free_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    gpu_memory_used_bytes: int | None = None
    gpu_utilization_percent: float | None = None
    gpu_temperature_c: float | None = None
    gpu_power_w: float | None = None


@dataclass(frozen=True, slots=True)
class SampleSeries:
    """Columns over an even grid of times: `t[i]` starts a bucket of `step_s`; None where nothing was recorded."""

    t: list[float]
    columns: dict[str, list[float | None]]
    step_s: int  # at least what was asked; larger where the store keeps no finer figures
    low: dict[str, list[float | None]] = field(default_factory=dict)  # of gauges whose band was asked for: the smallest
    high: dict[str, list[float | None]] = field(default_factory=dict)  # and the largest reading within each step


@dataclass(frozen=True, slots=True)
class Latencies:
    """All latencies of a stretch of time, [since, until) as it was widened to whole buckets of what is kept."""

    since: float
    until: float
    histograms: dict[str, LatencyHistogram]  # by the names in `db.figures.ENGINE`


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One generation request and its figures, without its text."""

    id: str
    model_id: str
    source: str  # "chat" | "completion" | "conversation" | "embedding"
    state: str  # "queued" | "running" | "finished" | "failed" | "interrupted"
    created_at: float
    engine_run_id: str | None = None  # a saved engine run, or None
    finished_at: float | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_preemptions: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    itl_p95_s: float | None = None
    tokens_per_s: float | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    seed: int | None = None
    accepted_per_position: list[int] | None = None
    drafted_per_position: list[int] | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    proposer: str | None = None  # that drafted for it; None: it was decoded plainly
    stop_cause: str | None = None  # what lies behind its finish_reason: see `app.request_timeline.STOP_CAUSES`
    slow: bool | None = None  # by the operator's limits at the time it ended


@dataclass(frozen=True, slots=True)
class RequestPage:
    """Newest first. `next_before` asks for the page after this one, which may be short or empty; None at the end."""

    rows: list[RequestRow]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation without its messages. `version` grows with every change that a client asks for."""

    id: str
    title: str
    model_id: str | None
    system_prompt: str
    sampling: dict[str, Any]
    active_leaf_id: str | None
    version: int
    created_at: float
    updated_at: float
    num_messages: int
    generating: bool  # a message is in the state "streaming"
    folder: str = ""  # "": in none


class ConversationChanges(TypedDict, total=False):
    """What a client may change of a conversation; an absent key stays as it is."""

    title: str
    model_id: str | None
    system_prompt: str
    sampling: dict[str, Any]
    active_leaf_id: str | None
    folder: str


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A node of a conversation's tree; `parent_id` None is a root."""

    id: str
    conversation_id: str
    parent_id: str | None
    role: str  # "user" | "assistant"
    content: str
    state: str  # "complete" | "streaming" | "interrupted" | "failed"
    created_at: float
    finish_reason: str | None = None
    error: str | None = None
    model_id: str | None = None
    request_id: str | None = None
    stats: dict[str, Any] | None = None
    reasoning_content: str = ""  # what a model thought before its answer, where it tells
    attachments: list[dict[str, Any]] | None = None  # texts that belong to a question, each with its name


class MessageChanges(TypedDict, total=False):
    """What the server may still write to an answer it streams; an absent key stays as it is."""

    content: str
    reasoning_content: str
    state: str
    finish_reason: str | None
    error: str | None
    model_id: str | None
    request_id: str | None
    stats: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class PresetRow:
    """A system prompt and a way to draw, under a name of the operator's."""

    id: str
    name: str
    system_prompt: str
    sampling: dict[str, Any]
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class JobRow:
    """One piece of long work."""

    id: str
    kind: str
    subject: str
    state: str  # "queued" | "running" | "succeeded" | "failed" | "cancelled" | "interrupted"
    created_at: float
    stage: str = ""
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    message: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    error: str | None = None
    result: dict[str, Any] | None = None
    log: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something worth an operator's eye. `id` grows in the order of writing."""

    id: int
    t: float
    kind: str
    severity: str  # "info" | "warning" | "error"
    message: str
    engine_run_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelfTestRow:
    """What a self-test of one model with one drafter has found. `parts`: see app.selftest."""

    id: str  # of its job
    model_id: str
    engine_run_id: str
    model_hash: str
    drafter_hash: str
    proposer: str
    state: str  # "passed" | "failed" | "inconclusive"
    started_at: float
    finished_at: float
    versions: dict[str, Any] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Load options that were saved for a model with these weights, under a name."""

    model_id: str
    model_hash: str
    name: str
    options: dict[str, Any]
    is_default: bool
    updated_at: float


@dataclass(frozen=True, slots=True)
class LoadMeasurementRow:
    """What one load was estimated at, and what its process was seen to hold at the most."""

    engine_run_id: str
    model_id: str
    model_hash: str
    t: float
    load_s: float  # what one waited for
    estimated_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What one round of upkeep did."""

    rolled_up: int  # rollup rows written
    pruned: int  # rows of any table removed
