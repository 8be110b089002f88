"""/api/samples: the recorded figures over time."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from app import schemas
from app.errors import ApiError
from app.monitor_schemas import Latencies, LatencyBucket, LatencySummary
from app.services import Services, services
from db.figures import DEVICE, ENGINE, SAMPLE_COLUMNS
from db.histogram import LatencyHistogram, upper_bound_s

router = APIRouter(prefix="/api/samples", tags=["samples"])

DEFAULT_SPAN_S = 900
MAX_POINTS = 20_000
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
Epoch = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False)]
GAUGES = (*ENGINE.gauges, *DEVICE.gauges)


@router.get("", response_model=schemas.Samples)
async def samples(
    since: Epoch | None = None,
    until: Epoch | None = None,
    step_s: Annotated[int, Query(ge=1, le=86400)] = 1,
    max_points: Annotated[int | None, Query(ge=2, le=5000)] = None,
    columns: Annotated[str | None, Query(max_length=8192)] = None,
    bands: Annotated[str, Query(max_length=8192)] = "",
    engine_run_id: str | None = None,
    parts: Services = Depends(services),
) -> Response:
    """The figures of [since, until) (default: the last 15 minutes), of one engine run or of all together.

    `max_points` chooses the step: the shortest round one with no more points; else it is `step_s`. Either grows where
    no such fine figures are kept. `columns`: names with commas between, default all; `bands`: gauges whose smallest and
    largest reading of each step are wanted, too, so that no peak is lost in a mean.
    """
    since, until = _window(since, until)
    if max_points is not None:
        step_s = next((step for step in STEPS_S if (until - since) / step <= max_points), STEPS_S[-1])
    if (until - since) / step_s > MAX_POINTS:
        raise ApiError(400, f"more than {MAX_POINTS} points", param="step_s", remedy="Ask for a larger step_s")
    names = None if columns is None else _names(columns, SAMPLE_COLUMNS, "columns")
    of_bands = _names(bands, GAUGES, "bands")

    def read() -> Response:
        series = parts.store.samples(since, until, step_s, engine_run_id, names=names, bands=of_bands)
        answer = {"t": [int(t) for t in series.t], "step_s": series.step_s, "columns": _compact(series.columns)}
        answer |= {"low": _compact(series.low), "high": _compact(series.high)}
        # not by way of the schema: a day's figures are many, and whole numbers would come out as 1024.0
        return Response(json.dumps(answer, separators=(",", ":"), allow_nan=False), media_type="application/json")

    return await asyncio.to_thread(read)


@router.get("/latencies")
async def latencies(
    since: Epoch | None = None,
    until: Epoch | None = None,
    engine_run_id: str | None = None,
    parts: Services = Depends(services),
) -> Latencies:
    """How latencies of [since, until) (default: the last 15 minutes) spread, of one engine run or of all."""
    since, until = _window(since, until)
    found = await asyncio.to_thread(parts.store.latencies, since, until, engine_run_id)
    return Latencies(
        since=found.since,
        until=found.until,
        ttft=_summary(found.histograms["ttft_histogram"]),
        itl=_summary(found.histograms["itl_histogram"]),
    )


def _window(since: float | None, until: float | None) -> tuple[float, float]:
    until = time.time() if until is None else until
    since = until - DEFAULT_SPAN_S if since is None else since
    if not since < until:
        raise ApiError(400, f"since={since} must lie before until={until}", param="since")
    return since, until


def _names(text: str, known: Iterable[str], param: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ApiError(400, f"there is no figure {unknown[0]!r}", param=param, remedy=f"Known are {', '.join(known)}")
    return names


def _compact(columns: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    """Nine digits are more than any figure has; whole numbers stay whole, however large."""
    return {name: [_short(value) for value in values] for name, values in columns.items()}


def _short(value: float | None) -> float | None:
    if value is None or value == math.floor(value):
        return value if value is None else int(value)
    return float(f"{value:.9g}")


def _summary(histogram: LatencyHistogram) -> LatencySummary:
    buckets = []
    for bucket in sorted(histogram.counts):
        high = upper_bound_s(bucket)
        low = upper_bound_s(bucket - 1) if bucket else 0.0
        buckets.append(
            LatencyBucket(low_s=low, high_s=None if math.isinf(high) else high, count=histogram.counts[bucket])
        )
    p50, p95, p99 = (histogram.quantile(q) for q in (0.5, 0.95, 0.99))
    return LatencySummary(count=histogram.count, p50_s=p50, p95_s=p95, p99_s=p99, buckets=buckets)
