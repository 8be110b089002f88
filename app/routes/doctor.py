"""/api/doctor and /api/models/{id}/doctor: what a checkpoint is, and whether it can be served here."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends

from app.catalog import existing_path
from app.catalog.download import PullError
from app.doctor import DoctorReport
from app.errors import ApiError
from app.model_schemas import DoctorBody
from app.services import Services, services

router = APIRouter(prefix="/api", tags=["models"])


@router.get("/models/{model_id}/doctor")
async def examine_model(model_id: str, parts: Services = Depends(services)) -> DoctorReport:
    model = await parts.engines.local(model_id, allow_broken=True)
    return await asyncio.to_thread(parts.doctor.examine_model, model)


@router.post("/doctor")
async def examine_path(body: DoctorBody, parts: Services = Depends(services)) -> DoctorReport:
    """The same for a folder or file that need not be known here."""
    try:
        path = await asyncio.to_thread(existing_path, body.path)
    except PullError as error:
        raise ApiError(404, str(error), param="path") from error
    if path is None:
        remedy = "Give the path of a model folder or file on this machine; pull a repository first"
        raise ApiError(400, f"{body.path!r} is not a path on this machine", param="path", remedy=remedy)
    return await asyncio.to_thread(parts.doctor.examine_path, path)
