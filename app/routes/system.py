"""/health, /ready, /metrics, /login, /api/engines, /api/settings, /api/events."""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import os
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

from app import schemas
from app.errors import ApiError
from app.loaded_engine import Engine, struct_fields
from app.metrics import CONTENT_TYPE
from app.saved_settings import setting_fault
from app.security import SESSION_COOKIE, session_token
from app.selftests import SelfTests
from app.services import Services, services
from app.speculation import speculation_view, with_acceptance
from app.speculation_schemas import SelfTestState, Speculation
from app.version import app_version

router = APIRouter(tags=["system"])

MAX_SETTING_BYTES = 65536

_LOGIN_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Pizarra</title>
<meta name="viewport" content="width=device-width,initial-scale=1">
<style>body{{font:16px system-ui;display:grid;place-content:center;height:90vh;color-scheme:light dark}}
input,button{{font:inherit;padding:.5em;width:100%;box-sizing:border-box;margin-top:.5em}}p{{color:#c33}}</style>
<form method="post" action="/login"><label>API key <input type="password" name="key" autofocus required
autocomplete="current-password"></label><button>Log in</button>{message}</form></html>"""


@router.get("/health")
async def health(parts: Services = Depends(services)) -> schemas.Health:
    return schemas.Health(
        version=app_version(),
        uptime_s=time.time() - parts.started_at,
        home=str(parts.settings.home),
        pid=os.getpid(),
    )


@router.get("/ready", response_model=schemas.Ready)
async def ready(parts: Services = Depends(services)) -> Response:
    loaded = parts.engines.loaded_ids()
    if loaded:
        body, status = schemas.Ready(ready=True, models=loaded), 200
    else:
        states = [f"{engine.model_id} is {engine.supervisor.state}" for engine in parts.engines.all()]
        body, status = schemas.Ready(ready=False, reason="; ".join(states) or "no model is loaded"), 503
    return JSONResponse(body.model_dump(exclude_none=True), status_code=status)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(parts: Services = Depends(services)) -> Response:
    """Everything that is counted, for Prometheus: vLLM's names where vLLM has one, pizarra_* for the rest."""
    return Response(parts.metrics.render(), media_type=CONTENT_TYPE)


@router.get("/login", include_in_schema=False)
async def login_page() -> HTMLResponse:
    return HTMLResponse(_LOGIN_PAGE.format(message=""))


@router.post("/login", include_in_schema=False)
async def login(key: Annotated[str, Form()], parts: Services = Depends(services)) -> Response:
    expected = parts.settings.api_key
    if expected is not None and not hmac.compare_digest(key.encode(), expected.get_secret_value().encode()):
        return HTMLResponse(_LOGIN_PAGE.format(message="<p>That is not the key of this server.</p>"), status_code=401)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(SESSION_COOKIE, session_token(key), httponly=True, samesite="strict", max_age=30 * 86400)
    return response


@router.get("/api/engines")
async def list_engines(parts: Services = Depends(services)) -> schemas.Engines:
    return schemas.Engines(engines=[_engine(engine, parts.selftests) for engine in parts.engines.all()])


@router.post("/api/engines/{engine_id}/abort")
async def abort_all(engine_id: str, parts: Services = Depends(services)) -> schemas.Aborted:
    """End every request that this engine runs or has waiting, each with the text it has so far. Kept as an event."""
    engine = parts.engines.of_run(engine_id)
    if engine.supervisor.ready is None or not engine.supervisor.alive:
        raise ApiError(409, f"{engine.model_id} is {engine.supervisor.state}: nothing runs there", param="id")
    aborted = engine.supervisor.client.abort_all()
    message = f"the operator ended all {aborted} requests of {engine.model_id}"
    parts.events.add("abort", "warning", message, engine_run_id=engine_id, data={"aborted": aborted})
    return schemas.Aborted(aborted=aborted)


@router.get("/api/settings")
async def get_settings(parts: Services = Depends(services)) -> schemas.SettingsValues:
    return schemas.SettingsValues(settings=parts.store.get_settings())


@router.put("/api/settings")
async def put_settings(body: schemas.SettingsBody, parts: Services = Depends(services)) -> schemas.SettingsValues:
    """Change the settings that are given; others stay. A setting that stands in `expected` with another value than it
    has now was changed elsewhere meanwhile: 409, and nothing is changed."""
    for name, value in body.settings.items():
        if len(repr(value)) > MAX_SETTING_BYTES:
            raise ApiError(400, f"the setting {name!r} is larger than {MAX_SETTING_BYTES} bytes", param=name)
        if (fault := setting_fault(name, value)) is not None:
            raise ApiError(400, f"{name}: {fault} (found {str(value)[:80]!r})", param=name, code="invalid_value")
    await asyncio.wrap_future(parts.store.set_settings(body.settings, body.expected))
    parts.request_settings.refresh()
    return schemas.SettingsValues(settings=parts.store.get_settings())


@router.get("/api/events")
async def list_events(
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    since: Annotated[float | None, Query(ge=0, le=1e11)] = None,
    until: Annotated[float | None, Query(ge=0, le=1e11)] = None,
    parts: Services = Depends(services),
) -> schemas.Events:
    """What was worth the operator's eye, newest first, of [since, until)."""
    rows = await asyncio.to_thread(parts.store.list_events, limit, before, since, until)
    return schemas.Events(events=[schemas.Event.model_validate(row) for row in rows])


def _engine(engine: Engine, selftests: SelfTests) -> schemas.Engine:
    supervisor = engine.supervisor
    view = speculation_view(engine, selftests.failed(engine))
    ready: dict[str, Any] = {}
    if supervisor.ready is not None:
        message = supervisor.ready
        names = ("device", "device_name", "dtype", "exactness", "exactness_reason", "kernels", "load_s")
        ready = {name: getattr(message, name) for name in (*names, "num_kv_blocks", "block_size", "max_model_len")}
        proposers = supervisor.stats.proposers if supervisor.stats is not None else []
        settings = with_acceptance(engine.effective_settings, proposers)
        ready["effective_settings"] = [dataclasses.asdict(setting) for setting in settings]
        ready["memory"] = struct_fields(message.memory)
    return schemas.Engine(
        id=supervisor.run_id,
        model_id=supervisor.model_id,
        state=supervisor.state,
        pid=supervisor.pid if supervisor.alive else None,
        options=dataclasses.asdict(supervisor.options),
        started_at=supervisor.started_at,
        error=supervisor.error,
        failure_kind=supervisor.failure_kind if supervisor.state == "failed" else None,
        lost_requests=supervisor.lost_requests,
        idle_unload_s=engine.idle_unload_s,
        idle_unload_at=engine.idle_unload_at,
        log_tail=supervisor.log_tail(),
        sampling_defaults=dict(engine.sampling_defaults),
        stats=struct_fields(supervisor.stats) if supervisor.stats is not None else None,
        speculation=Speculation.model_validate(view) if view is not None else None,
        selftest=SelfTestState(**selftests.state(engine)),
        **ready,
    )
