"""/api/models/{id}/profiles: saved load options of a model."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Depends, Path

from app.load_schemas import ProfileBody, Profiles
from app.profiles import ModelProfiles
from app.routes.models import load_options
from app.services import Services, services

router = APIRouter(prefix="/api/models/{model_id}/profiles", tags=["models"])

Name = Annotated[str, Path(min_length=1, max_length=100)]


@router.get("")
async def list_profiles(model_id: str, parts: Services = Depends(services)) -> Profiles:
    """The model's profiles, what a load with the default one takes and where each value comes from."""
    return _told(model_id, await parts.profiles.of(model_id), parts)


@router.put("/{name}")
async def save_profile(model_id: str, name: Name, body: ProfileBody, parts: Services = Depends(services)) -> Profiles:
    """Save load options for this model with the weights it has now."""
    options = load_options(body.options)
    return _told(model_id, await parts.profiles.save(model_id, name, options, body.default), parts)


@router.delete("/{name}")
async def delete_profile(model_id: str, name: Name, parts: Services = Depends(services)) -> Profiles:
    return _told(model_id, await parts.profiles.delete(model_id, name), parts)


def _told(model_id: str, found: ModelProfiles, parts: Services) -> Profiles:
    engine = parts.engines.of_model(model_id)
    loaded = engine is not None and engine.supervisor.state == "ready"
    differences = parts.profiles.differences(engine, found) if loaded and engine is not None else []
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    return Profiles.model_validate({**fields, "model_id": model_id, "reload_to_apply": differences})
