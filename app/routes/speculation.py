"""/api/engines/{id}/speculation, /verdict and /selftest, /api/selftests, /api/requests/{id}/trace."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.engine_verdict import engine_verdict
from app.errors import ApiError
from app.schemas import JobStarted
from app.services import Services, services
from app.speculation import set_speculation, speculation_view
from app.speculation_schemas import (
    EngineSelfTest,
    RequestTrace,
    SelfTest,
    SelfTestBody,
    SelfTests,
    Speculation,
    SpeculationBody,
    Verdict,
)
from engine.protocol import SetSpeculation

router = APIRouter(prefix="/api", tags=["speculation"])


@router.post("/engines/{engine_id}/speculation")
async def change_speculation(engine_id: str, body: SpeculationBody, parts: Services = Depends(services)) -> Speculation:
    """Change how an engine speculates, from its next step on."""
    change = SetSpeculation(**body.model_dump())
    if change == SetSpeculation():
        fields = ", ".join(SpeculationBody.model_fields)
        raise ApiError(400, "nothing is to be changed", remedy=f"Give one of {fields}", code="invalid_value")
    engine = parts.engines.of_run(engine_id)
    set_speculation(engine, change)
    view = speculation_view(engine, parts.selftests.failed(engine))
    assert view is not None, "only a ready engine takes a change"
    return Speculation.model_validate(view)


@router.get("/engines/{engine_id}/verdict")
async def get_verdict(engine_id: str, parts: Services = Depends(services)) -> Verdict:
    """Whether speculation pays on an engine: measured, by batch and context, with what to do about it."""
    engine = parts.engines.of_run(engine_id)
    failed = parts.selftests.failed(engine)
    view = speculation_view(engine, failed)
    drafting = {"enabled": False, "proposers": []} if view is None else view
    return Verdict.model_validate({**drafting, **engine_verdict(engine, failed)})


@router.post("/engines/{engine_id}/selftest", status_code=202)
async def start_selftest(
    engine_id: str, body: SelfTestBody | None = None, parts: Services = Depends(services)
) -> JobStarted:
    """Begin a self-test of an engine's pair of model and drafter, as a job."""
    body = body or SelfTestBody()
    engine = parts.engines.of_run(engine_id)
    return JobStarted(job_id=parts.selftests.start(engine, body.proposer, body.num_samples).id)


@router.get("/engines/{engine_id}/selftest")
async def get_selftest(engine_id: str, parts: Services = Depends(services)) -> EngineSelfTest:
    """The result that an engine's pair stands by, and whether a self-test runs."""
    engine = parts.engines.of_run(engine_id)
    found = parts.selftests.standing(engine)
    result = None if found is None else SelfTest.model_validate(found)
    return EngineSelfTest(**parts.selftests.state(engine), result=result)


@router.get("/selftests")
async def list_selftests(
    model: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    parts: Services = Depends(services),
) -> SelfTests:
    """Results, newest first, of one model or of all."""
    rows = await asyncio.to_thread(parts.store.list_selftests, model, limit)
    return SelfTests(selftests=[SelfTest.model_validate(row) for row in rows])


@router.get("/requests/{request_id}/trace")
async def get_trace(request_id: str, parts: Services = Depends(services)) -> RequestTrace:
    """The steps of a request that was sent with `trace: true`, the newest ones, with the text that they spell."""
    found = parts.traces.get(request_id)
    if found is None:
        raise ApiError(
            404,
            f"no trace is kept of a request {request_id[:80]!r}",
            param="id",
            remedy="Send the request with trace: true; the traces of the last 64 such requests are kept until the "
            "server ends",
        )
    return RequestTrace.model_validate(found.view())
