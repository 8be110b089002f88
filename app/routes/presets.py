"""/api/presets: system prompts and ways to draw, under names."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app import conversation_schemas as schemas
from app.services import Services, services

router = APIRouter(prefix="/api/presets", tags=["conversations"])


@router.get("")
async def list_presets(parts: Services = Depends(services)) -> schemas.Presets:
    return schemas.Presets(presets=[schemas.Preset.model_validate(each) for each in await parts.presets.all()])


@router.post("", status_code=201)
async def add_preset(body: schemas.PresetBody, parts: Services = Depends(services)) -> schemas.Preset:
    added = await parts.presets.add(body.name, body.system_prompt, body.sampling.model_dump(exclude_none=True))
    return schemas.Preset.model_validate(added)


@router.put("/{preset_id}")
async def change_preset(
    preset_id: str, body: schemas.PresetBody, parts: Services = Depends(services)
) -> schemas.Preset:
    sampling = body.sampling.model_dump(exclude_none=True)
    changed = await parts.presets.change(preset_id, body.name, body.system_prompt, sampling)
    return schemas.Preset.model_validate(changed)


@router.delete("/{preset_id}", status_code=204)
async def remove_preset(preset_id: str, parts: Services = Depends(services)) -> Response:
    await parts.presets.remove(preset_id)
    return Response(status_code=204)
