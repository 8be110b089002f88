"""What the Monitor and Overview pages read besides samples: latency histograms, engine runs, the system itself.

Owns the shapes of these answers. Knows nothing of where the figures come from.
"""

from __future__ import annotations

from typing import Any

from app.schema_base import Outgoing


class LatencyBucket(Outgoing):
    """How many latencies lay above `low_s`, up to `high_s`; `high_s` null: no upper bound."""

    low_s: float
    high_s: float | None
    count: int


class LatencySummary(Outgoing):
    """All latencies of one kind; quantiles are interpolated inside buckets, ten a decade; null without any."""

    count: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    buckets: list[LatencyBucket]


class Latencies(Outgoing):
    """[since, until) as it was widened to whole buckets of what is kept. ttft: of each request, from its arrival to the
    first token; itl: between two tokens of a request."""

    since: float
    until: float
    ttft: LatencySummary
    itl: LatencySummary


class EngineRun(Outgoing):
    """One life of an engine process. `state` is as it ended, or as it is while it lives (`ended_at` null); `cause` says
    in words why it ended: what failed, who unloaded it, or that the server ended."""

    id: str
    model_id: str
    state: str
    started_at: float
    ended_at: float | None
    device: str | None
    load_s: float | None
    error: str | None
    cause: str | None


class EngineRuns(Outgoing):
    runs: list[EngineRun]


class System(Outgoing):
    """This server and what it runs on. Sizes are bytes; what cannot be read is null,
    and the reason under the figure's name in `unavailable`. `versions`: of Pizarra, Python and
    the packages that matter, as installed."""

    started_at: float
    uptime_s: float
    home: str
    pid: int
    platform: str
    cpu: str | None
    num_cpus: int
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    database_bytes: int
    memory_total_bytes: int
    gpus: list[str]
    gpu_unavailable: str | None
    unavailable: dict[str, str]
    versions: dict[str, str]
    events_24h: dict[str, Any]
