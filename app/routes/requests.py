"""/api/requests: what was asked of the engines, with its figures, and the cancel of what still runs."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app import schemas
from app.services import Services, services

router = APIRouter(prefix="/api/requests", tags=["requests"])


@router.get("")
async def list_requests(
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    model: str | None = None,
    parts: Services = Depends(services),
) -> schemas.Requests:
    await parts.generations.written()
    page = await asyncio.to_thread(parts.store.list_requests, limit, before, model)
    newest = parts.generations.running_rows()
    rows = [schemas.Request.model_validate(newest.get(row.id, row)) for row in page.rows]
    return schemas.Requests(requests=rows, next_before=page.next_before)


@router.post("/{request_id}/cancel", status_code=202)
async def cancel_request(request_id: str, parts: Services = Depends(services)) -> dict[str, str]:
    parts.generations.cancel(request_id)
    return {"request_id": request_id}
