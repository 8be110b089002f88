"""/api/engines/{id}: what can be changed of a loaded engine, what holds up its unload, and its benchmark."""

from __future__ import annotations

import time

from fastapi import APIRouter, Depends

from app.benchmark import BenchmarkWish
from app.errors import ApiError
from app.load_schemas import BenchmarkBody, Blocker, EngineBody, EngineNow
from app.loaded_engine import Engine
from app.schemas import JobStarted
from app.services import Services, services

router = APIRouter(prefix="/api/engines", tags=["engines"])


@router.get("/{engine_id}/now")
async def engine_now(engine_id: str, parts: Services = Depends(services)) -> EngineNow:
    """The requests that an unload would wait for, and when the engine goes by itself."""
    return _now(parts.engines.of_run(engine_id), parts)


@router.patch("/{engine_id}")
async def change_engine(engine_id: str, body: EngineBody, parts: Services = Depends(services)) -> EngineNow:
    """Change after which idle time a loaded engine is unloaded; null keeps it loaded. Its time begins anew."""
    engine = parts.engines.of_run(engine_id)
    if engine.supervisor.state != "ready":
        raise ApiError(409, f"{engine.model_id} is {engine.supervisor.state}", remedy="Load it first")
    engine.idle_unload_s = body.idle_unload_s
    parts.idle.restart(engine)
    parts.engines.changed()
    return _now(engine, parts)


@router.post("/{engine_id}/benchmark", status_code=202)
async def benchmark(
    engine_id: str, body: BenchmarkBody | None = None, parts: Services = Depends(services)
) -> JobStarted:
    """Measure time to the first token, decoding and prefill on a loaded engine, as a job of the kind `benchmark`.

    It waits until nobody else uses the engine, and repeats what somebody disturbed.
    """
    body = body or BenchmarkBody()
    if any(batch < 1 or batch > 256 for batch in body.batches):
        raise ApiError(400, "batches: each must lie between 1 and 256", param="batches", code="invalid_value")
    wish = BenchmarkWish(**body.model_dump(exclude={"batches"}), batches=tuple(sorted(set(body.batches))))
    return JobStarted(job_id=parts.benchmarks.start(parts.engines.of_run(engine_id), wish).id)


def _now(engine: Engine, parts: Services) -> EngineNow:
    supervisor, now = engine.supervisor, time.time()
    blockers = []
    for request_id in supervisor.client.running_ids if supervisor.alive else ():
        generation = parts.generations.running(request_id)
        row = None if generation is None else generation.row
        blockers.append(
            Blocker(
                id=request_id,
                source=None if row is None else row.source,
                state=None if row is None else row.state,
                age_s=None if row is None else now - row.created_at,
            )
        )
    return EngineNow(
        id=supervisor.run_id,
        model_id=engine.model_id,
        idle_unload_s=engine.idle_unload_s,
        idle_unload_at=engine.idle_unload_at,
        blockers=blockers,
        drain_timeout_s=parts.settings.drain_timeout_s,
    )
