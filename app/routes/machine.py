"""/api/system and /api/engine-runs: the server itself, what it runs on, and which engines lived when."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
import time
from functools import cache
from importlib import metadata
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app import about
from app.devices import DeviceSample, host_memory
from app.monitor_schemas import EngineRun, EngineRuns, System
from app.services import Services, services
from app.version import app_version
from db.rows import EngineRunRow, EventRow

router = APIRouter(prefix="/api", tags=["system"])

Epoch = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False)]
PACKAGES = ("torch", "triton", "tokenizers", "safetensors", "fastapi", "gradio", "plotly", "sqlalchemy")
DAY_S = 86_400
MAX_EVENTS = 1000


@router.get("/system")
async def system(parts: Services = Depends(services)) -> System:
    """What the server is, what it runs on, and how many of the newest 1,000 events of the last 24 hours are how bad."""
    return await asyncio.to_thread(_system, parts)


@router.get("/engine-runs")
async def engine_runs(
    since: Epoch | None = None,
    until: Epoch | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    parts: Services = Depends(services),
) -> EngineRuns:
    """Engine processes that lived at some time of [since, until), newest first, and why each ended."""
    rows, events = await asyncio.gather(
        asyncio.to_thread(parts.store.list_engine_runs, limit, since, until),
        asyncio.to_thread(parts.store.list_events, MAX_EVENTS, None, since),
    )
    causes = {event.engine_run_id: _told(event) for event in events if event.kind == "unload"}
    return EngineRuns(runs=[_run(row, causes.get(row.id)) for row in rows])


def _told(event: EventRow) -> str:
    return str(event.data.get("cause") or event.message)


def _run(row: EngineRunRow, told: str | None) -> EngineRun:
    cause = None
    if row.ended_at is not None:
        cause = row.error or told or ("the server ended" if row.state == "interrupted" else "unloaded")
    return EngineRun(
        id=row.id,
        model_id=row.model_id,
        state=row.state,
        started_at=row.started_at,
        ended_at=row.ended_at,
        device=row.device,
        load_s=row.load_s,
        error=row.error,
        cause=cause,
    )


def _system(parts: Services) -> System:
    now, home = time.time(), parts.settings.home
    try:
        disk = shutil.disk_usage(home)
    except OSError:
        disk = None
    sample = parts.engines.latest_sample()
    counts = {"info": 0, "warning": 0, "error": 0}
    for event in parts.store.list_events(MAX_EVENTS, since=now - DAY_S):
        counts[event.severity] = counts.get(event.severity, 0) + 1
    return System(
        started_at=parts.started_at,
        uptime_s=now - parts.started_at,
        home=str(home),
        pid=os.getpid(),
        platform=f"{platform.system()} {platform.release()}",
        cpu=_processor()["name"],
        num_cpus=_processor()["cores"],
        disk_free_bytes=None if disk is None else disk.free,
        disk_total_bytes=None if disk is None else disk.total,
        database_bytes=parts.store.size_bytes(),
        memory_total_bytes=host_memory().total_bytes,
        gpus=[gpu.name or f"GPU {gpu.index}" for gpu in (sample.gpus if sample else ())],
        gpu_unavailable=None if sample is None else sample.gpu_unavailable,
        unavailable=_unavailable(sample),
        versions=_versions(),
        events_24h=counts,
    )


def _unavailable(sample: DeviceSample | None) -> dict[str, str]:
    """Why figures of the machine and its GPUs are missing; those of single engines are told elsewhere."""
    if sample is None:
        return {}
    reasons = {name: reason for name, reason in sample.unavailable.items() if "." not in name}
    for gpu in sample.gpus:
        reasons |= gpu.unavailable
    return reasons


@cache
def _versions() -> dict[str, str]:
    found = {"pizarra": app_version(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # not needed here: Triton where there is no GPU
            continue
    return found


_processor = cache(about.processor)
