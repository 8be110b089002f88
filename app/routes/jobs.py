"""/api/jobs: long work, its progress and its cancel."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app import schemas
from app.services import Services, services

router = APIRouter(prefix="/api/jobs", tags=["jobs"])


@router.get("")
async def list_jobs(
    limit: Annotated[int, Query(ge=1, le=1000)] = 50, parts: Services = Depends(services)
) -> schemas.Jobs:
    return schemas.Jobs(jobs=[schemas.Job.model_validate(job) for job in parts.jobs.list(limit)])


@router.get("/{job_id}")
async def get_job(job_id: str, parts: Services = Depends(services)) -> schemas.Job:
    return schemas.Job.model_validate(parts.jobs.get(job_id))


@router.post("/{job_id}/cancel", status_code=202)
async def cancel_job(job_id: str, parts: Services = Depends(services)) -> schemas.JobStarted:
    parts.jobs.cancel(job_id)
    return schemas.JobStarted(job_id=job_id)
