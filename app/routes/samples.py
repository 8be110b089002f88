"""/api/samples: the recorded figures over time."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app import schemas
from app.errors import ApiError
from app.services import Services, services

router = APIRouter(prefix="/api/samples", tags=["samples"])

DEFAULT_SPAN_S = 900
MAX_POINTS = 20_000


@router.get("")
async def samples(
    since: float | None = None,
    until: float | None = None,
    step_s: Annotated[int, Query(ge=1, le=86400)] = 1,
    engine_run_id: str | None = None,
    parts: Services = Depends(services),
) -> schemas.Samples:
    until = time.time() if until is None else until
    since = until - DEFAULT_SPAN_S if since is None else since
    if not since < until:
        raise ApiError(400, f"since={since} must lie before until={until}", param="since")
    if (until - since) / step_s > MAX_POINTS:
        raise ApiError(400, f"more than {MAX_POINTS} points", param="step_s", remedy="Ask for a larger step_s")
    return schemas.Samples.model_validate(
        await asyncio.to_thread(parts.store.samples, since, until, step_s, engine_run_id)
    )
