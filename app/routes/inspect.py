"""/api/engines/{id}/inspect, /sampling, /grammar: what the playground asks of an engine beside its answers."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends

from app.errors import ApiError
from app.grammar_check import check_grammar
from app.inspect_answer import inspect_answer
from app.inspect_schemas import GrammarBody, GrammarVerdict, InspectBody, Inspected, SamplingFieldList
from app.loaded_engine import Engine
from app.sampling_fields import sampling_fields
from app.services import Services, services

router = APIRouter(prefix="/api", tags=["playground"])


@router.post("/engines/{engine_id}/inspect")
async def inspect(engine_id: str, body: InspectBody, parts: Services = Depends(services)) -> Inspected:
    """How tokens of an answer were drawn: the model's own distribution there, and each step of the chain on it."""
    return await inspect_answer(_ready(parts, engine_id), body, parts.settings.max_waiting_requests)


@router.get("/engines/{engine_id}/sampling")
async def list_sampling_fields(engine_id: str, parts: Services = Depends(services)) -> SamplingFieldList:
    """The sampling fields that are numbers: what holds where a request does not say, who says so, and the range."""
    engine = _ready(parts, engine_id)
    models = await asyncio.to_thread(parts.catalog.local)
    path = next((model.path for model in models if model.id == engine.model_id), None)
    return await asyncio.to_thread(sampling_fields, engine, path)


@router.post("/engines/{engine_id}/grammar")
async def check(engine_id: str, body: GrammarBody, parts: Services = Depends(services)) -> GrammarVerdict:
    """Whether an answer can be held to this grammar; if not, what is wrong and where."""
    return await check_grammar(_ready(parts, engine_id), body)


def _ready(parts: Services, engine_id: str) -> Engine:
    engine = parts.engines.of_run(engine_id)
    if engine.supervisor.state != "ready":
        raise ApiError(
            409,
            f"the engine {engine_id!r} is {engine.supervisor.state}: it takes no requests",
            remedy="Wait until it is ready, or load the model again",
            code="engine_not_ready",
        )
    return engine
