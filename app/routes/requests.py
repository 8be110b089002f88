"""/api/requests: what was asked of the engines: the list, everything of one, the cancel of what runs, kept texts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query

from app import request_schemas as shapes
from app import schemas
from app.errors import ApiError
from app.generation import live_row
from app.services import Services, services
from app.traces import ID_PREFIXES
from app.why_slow import why_slow
from db.request_rows import RequestFilter
from db.rows import RequestRow

router = APIRouter(prefix="/api/requests", tags=["requests"])

State = Literal["queued", "running", "finished", "failed", "interrupted"]
Source = Literal["chat", "completion", "conversation", "embedding"]
Epoch = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False)]


@router.get("")
async def list_requests(
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    model: str | None = None,
    state: State | None = None,
    source: Source | None = None,
    id: Annotated[str, Query(max_length=64)] = "",
    since: Epoch = None,
    until: Epoch = None,
    slow: bool = False,
    parts: Services = Depends(services),
) -> schemas.Requests:
    """Requests, newest first: the one order that an index serves for every filter.

    before: `next_before` of the page in front. id: the beginning of a request's or of its answer's id. since, until:
    when it was received, epoch seconds. slow: only ended ones beyond the limits of the settings `slow_ttft_s` and
    `slow_itl_s`, or preempted.
    """
    prefix = _id_prefix(id)
    if since is not None and until is not None and since > until:
        raise ApiError(400, f"since={since:g} lies behind until={until:g}", param="since", code="invalid_value")
    wanted = RequestFilter(model, state, source, prefix, since, until, slow)
    if state in ("queued", "running"):  # these are in memory, all of them; the records know how each began
        live = parts.generations.matching(wanted)[:limit] if before is None else []
        rows = [schemas.Request.model_validate(live_row(generation)) for generation in live]
        return schemas.Requests(requests=rows, next_before=None)
    await parts.generations.written()
    page = await asyncio.to_thread(parts.store.list_requests, limit, before, None, wanted)
    rows = [_newest(parts, row) for row in page.rows]
    return schemas.Requests(requests=rows, next_before=page.next_before)


@router.get("/{request_id}")
async def get_request(request_id: str, parts: Services = Depends(services)) -> shapes.RequestDetail:
    """Everything of one request, by its id or its answer's: figures, its course on one clock, what slowed it down."""
    plain_id = _plain(request_id)
    await parts.generations.written()
    generation = parts.generations.running(plain_id)
    kept = parts.store
    row = await asyncio.to_thread(kept.get_request, plain_id)
    if row is None:
        raise _unknown(request_id)
    course: dict[str, Any] | None
    if generation is not None:
        row, course, body = generation.row, generation.timeline(), None
    else:
        course = await asyncio.to_thread(kept.request_timeline, plain_id)
        body = await asyncio.to_thread(kept.request_body, plain_id)
    reasons = [] if course is None else why_slow(row, course)
    return shapes.RequestDetail(
        **_newest(parts, row).model_dump(),
        running=generation is not None,
        seed_text=None if row.seed is None else str(row.seed),
        timeline=None if course is None else shapes.Timeline.model_validate(course),
        why_slow=[_reason(reason) for reason in reasons],
        trace=parts.traces.get(plain_id) is not None,
        body=None if body is None else shapes.RequestBody.model_validate(body),
        stores_bodies=parts.request_settings.store_bodies,
    )


@router.post("/{request_id}/cancel", status_code=202)
async def cancel_request(request_id: str, parts: Services = Depends(services)) -> dict[str, str]:
    """End a running request in the engine, with what there is of its answer."""
    plain_id = _plain(request_id)
    parts.generations.cancel(plain_id)
    return {"request_id": plain_id}


@router.delete("/bodies")
async def delete_bodies(parts: Services = Depends(services)) -> shapes.BodiesDeleted:
    """Remove the kept texts of all requests. The requests and their figures stay."""
    await parts.generations.written()
    return shapes.BodiesDeleted(deleted=await parts.request_upkeep.delete_bodies())


@router.delete("/{request_id}/body", status_code=204)
async def delete_body(request_id: str, parts: Services = Depends(services)) -> None:
    """Remove the kept texts of one request. The request and its figures stay."""
    await parts.generations.written()
    if not await asyncio.wrap_future(parts.store.delete_request_body(_plain(request_id))):
        raise ApiError(404, f"no texts of the request {request_id!r} are kept", param="id", code="not_found")


def _newest(parts: Services, row: RequestRow) -> schemas.Request:
    """What the records say, or of a request that runs what is known by now."""
    generation = parts.generations.running(row.id)
    return schemas.Request.model_validate(row if generation is None else live_row(generation))


def _reason(reason: dict[str, Any]) -> shapes.Reason:
    numbers = {name: value for name, value in reason.items() if name not in ("code", "seconds")}
    return shapes.Reason(code=reason["code"], seconds=reason.get("seconds"), numbers=numbers)


def _plain(request_id: str) -> str:
    """A request's own id, also of its answer's."""
    for prefix in ID_PREFIXES:
        request_id = request_id.removeprefix(prefix)
    return request_id


def _id_prefix(text: str) -> str:
    plain = _plain(text.strip()).lower()
    if not all(letter in "0123456789abcdef" for letter in plain):
        raise ApiError(
            400,
            f"id={text!r}: ids are made of the digits 0 to 9 and the letters a to f",
            param="id",
            remedy="Give the beginning of a request's or an answer's id",
            code="invalid_value",
        )
    return plain


def _unknown(request_id: str) -> ApiError:
    return ApiError(
        404,
        f"there is no request {request_id!r}",
        param="id",
        remedy="It may have been removed: the setting requests_retention_days says how long requests are kept",
        code="not_found",
    )
