"""/api/models: the list, estimates, and the jobs that load, unload, fetch, quantise and delete."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError

from app import schemas
from app.errors import ApiError
from app.load_schemas import LoadBody, UnloadBody, WhatIf
from app.model_jobs import PullWish
from app.model_schemas import QuantizeBody, TrainDrafterBody
from app.quantize import QuantizeWish
from app.services import Services, services
from app.speculation_schemas import Drafter, Drafters
from app.train_drafter import TrainWish
from engine.config import LoadOptions

router = APIRouter(prefix="/api/models", tags=["models"])

_OPTIONS = TypeAdapter(LoadOptions)
_OPTION_NAMES = frozenset(field.name for field in dataclasses.fields(LoadOptions))


def load_options(given: dict[str, Any]) -> LoadOptions:
    """The operator's wishes as LoadOptions, or a 400 that names the first one at fault (422: unknown)."""
    unknown = sorted(given.keys() - _OPTION_NAMES)
    if unknown:
        known = ", ".join(sorted(_OPTION_NAMES))
        raise ApiError(
            422, f"unknown load option {unknown[0]!r}", param=f"options.{unknown[0]}", remedy=f"Known: {known}"
        )
    try:
        return _OPTIONS.validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(["options", *(str(part) for part in first["loc"])])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ApiError(400, message if name == "options" else f"{name}: {message}", param=name) from error


async def _wished(model_id: str, body: LoadBody, parts: Services) -> LoadOptions:
    """The options of a load, over those of the profile that it names."""
    if body.profile is None:
        return load_options(body.options)
    found = await parts.profiles.of(model_id)
    name = found.chosen if body.profile == "default" else body.profile
    if name is not None and all(row.name != name for row in found.profiles):
        known = ", ".join(row.name for row in found.profiles) or "none"
        raise ApiError(404, f"{model_id} has no profile {name!r}", param="profile", remedy=f"There are: {known}")
    return load_options({**found.options(name), **body.options})


@router.get("")
async def list_models(parts: Services = Depends(services)) -> schemas.Models:
    return schemas.Models(models=await asyncio.to_thread(parts.models.rows))


@router.post("/pull", status_code=202)
async def pull(body: schemas.PullBody, parts: Services = Depends(services)) -> schemas.JobStarted:
    return schemas.JobStarted(job_id=parts.model_jobs.pull(PullWish(**body.model_dump())).id)


@router.post("/{model_id}/estimate")
async def estimate(model_id: str, body: LoadBody | None = None, parts: Services = Depends(services)) -> WhatIf:
    """What a load with these options would take of the memory that is free now, and what would fit if it does not."""
    body = body or LoadBody()
    found = await parts.engines.estimate(model_id, await _wished(model_id, body, parts), body.unload_first)
    fit = found.fit
    kind = "does_not_fit" if fit.short_by_bytes else "options"
    refusal = None if fit.fits else {"kind": kind, "message": fit.message, "short_by_bytes": fit.short_by_bytes}
    around = {"learned": found.learned, "after_unload": found.after_unload, "ways_out": found.ways_out}
    told = schemas.Estimate.model_validate(fit).model_dump()
    return WhatIf.model_validate({**told, **around, "refusal": refusal})


@router.post("/{model_id}/load", status_code=202)
async def load(model_id: str, body: LoadBody | None = None, parts: Services = Depends(services)) -> schemas.JobStarted:
    """Load a model, as a job. Its options are kept as the profile "last used"."""
    body = body or LoadBody()
    options = await _wished(model_id, body, parts)
    # an unknown or broken model, or drafter, is this call's error, not the job's
    await parts.engines.with_drafter(options, await parts.engines.local(model_id))
    job = parts.model_jobs.load(model_id, options, body.unload_first)
    await parts.profiles.note_load(model_id, options)
    return schemas.JobStarted(job_id=job.id)


@router.get("/{model_id}/drafters")
async def drafters(model_id: str, parts: Services = Depends(services)) -> Drafters:
    """What the load option `drafter` may name for this model. Whether it fits is said when it is loaded."""
    model = await parts.engines.local(model_id)
    found = await asyncio.to_thread(parts.drafters.candidates, model)
    return Drafters(drafters=[Drafter.model_validate(each) for each in found])


@router.post("/{model_id}/unload", status_code=202)
async def unload(
    model_id: str, body: UnloadBody | None = None, parts: Services = Depends(services)
) -> schemas.JobStarted:
    """Unload a model, as a job; GET /api/engines/{id}/now says what it will wait for."""
    body = body or UnloadBody()
    return schemas.JobStarted(job_id=parts.model_jobs.unload(model_id, force=body.force, drain_s=body.drain_s).id)


@router.post("/{model_id}/quantize", status_code=202)
async def quantize(model_id: str, body: QuantizeBody, parts: Services = Depends(services)) -> schemas.JobStarted:
    given = body.model_dump()
    if body.calibration is not None:
        given["calibration"] = Path(body.calibration)
    job = await parts.model_jobs.quantize(QuantizeWish(model_id, **given))
    return schemas.JobStarted(job_id=job.id)


@router.post("/{model_id}/train-drafter", status_code=202)
async def train_drafter(
    model_id: str, body: TrainDrafterBody, parts: Services = Depends(services)
) -> schemas.JobStarted:
    given = body.model_dump()
    paths = {name: Path(given[name]) for name in ("texts", "start_from") if given[name] is not None}
    job = await parts.model_jobs.train_drafter(TrainWish(model_id, **(given | paths)))
    return schemas.JobStarted(job_id=job.id)


@router.delete("/{model_id}", status_code=204)
async def delete(model_id: str, parts: Services = Depends(services)) -> Response:
    await parts.engines.local(model_id, allow_broken=True)
    await asyncio.to_thread(parts.model_jobs.remove, model_id)
    return Response(status_code=204)
