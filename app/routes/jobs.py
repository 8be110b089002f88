"""/api/jobs: long work, its progress and its cancel."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app import schemas
from app.services import Services, services

router = APIRouter(prefix="/api/jobs", tags=["jobs"])


@router.get("")
async def list_jobs(
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before: Annotated[str | None, Query(max_length=100)] = None,
    kind: Annotated[str | None, Query(max_length=100)] = None,
    parts: Services = Depends(services),
) -> schemas.Jobs:
    """Newest first. `before`: the page behind the job with this id; `kind`: only jobs of this kind."""
    position = parts.jobs.position  # before the rows: what comes in between is heard again, not missed
    rows = parts.jobs.list(limit, before, kind)
    jobs = [schemas.Job.model_validate(parts.jobs.told(job)) for job in rows]
    return schemas.Jobs(jobs=jobs, next_before=jobs[-1].id if len(jobs) == limit else None, live_seq=position)


@router.get("/{job_id}")
async def get_job(job_id: str, parts: Services = Depends(services)) -> schemas.Job:
    return schemas.Job.model_validate(parts.jobs.told(parts.jobs.get(job_id)))


@router.post("/{job_id}/cancel", status_code=202)
async def cancel_job(job_id: str, parts: Services = Depends(services)) -> schemas.JobStarted:
    parts.jobs.cancel(job_id)
    return schemas.JobStarted(job_id=job_id)
