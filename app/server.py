"""The FastAPI application: which parts there are and in what order they start and end.

Owns the routes and the order of starting and ending; app.parts makes the parts. Invariant: parts end in the reverse
order of need: answers are kept, then jobs and engines end, then the records are flushed, then the data folder's lock is
let go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app.body_limit import BodyLimit
from app.errors import install_error_handlers
from app.home import DATABASE, HomeLock, prepare_home
from app.logs import configure_logging
from app.parts import make_parts
from app.routes import (
    about,
    alerts,
    blocks,
    conversations,
    doctor,
    embeddings,
    inspect,
    jobs,
    live,
    machine,
    messages,
    models,
    openai,
    presets,
    profiles,
    race,
    requests,
    responses,
    samples,
    speculation,
    system,
    tokenize,
    unknown,
)
from app.routes import (
    engines as engine_routes,
)
from app.security import Gatekeeper
from app.services import Services
from app.settings import Settings
from app.version import app_version
from db.store import Store

log = logging.getLogger(__name__)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application. Without settings they come from the environment."""
    settings = settings or Settings()
    settings.check_bind()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with running(settings) as parts:
            app.state.services = parts
            yield

    # the page /docs with its scripts from here: neither does it need the internet nor does anyone there hear of it
    app = FastAPIOffline(title="Pizarra", version=app_version(), lifespan=lifespan, redoc_url=None)
    app.add_middleware(BodyLimit)
    app.add_middleware(Gatekeeper, settings=settings)  # added last, so it comes first
    install_error_handlers(app)
    answers = (openai, responses, messages, embeddings, tokenize)
    for module in (
        system,
        *answers,
        models,
        profiles,
        engine_routes,
        doctor,
        speculation,
        blocks,
        inspect,
        race,
        jobs,
        samples,
        machine,
        requests,
        conversations,
        presets,
        alerts,
        about,
        live,
        unknown,
    ):
        app.include_router(module.router)
    return app


@asynccontextmanager
async def running(settings: Settings) -> AsyncGenerator[Services]:
    """The parts, started; ended when the block is left."""
    prepare_home(settings.home)
    lock = HomeLock(settings.home)
    lock.acquire(settings.url)
    log_handler = configure_logging(settings.home, settings.log_level)
    try:
        store = await asyncio.to_thread(Store, settings.home / DATABASE)
        try:
            async with _running_parts(settings, store) as parts:
                yield parts
        finally:
            await asyncio.to_thread(store.close)
    finally:
        lock.release()
        logging.getLogger().removeHandler(log_handler)
        log_handler.close()


@asynccontextmanager
async def _running_parts(settings: Settings, store: Store) -> AsyncGenerator[Services]:
    parts, workers = make_parts(settings, store)
    background = [asyncio.create_task(each.run()) for each in workers]
    if settings.model is not None:
        background.append(asyncio.create_task(parts.model_jobs.bring_up(settings.model, settings.load_options)))
    for task in background:
        task.add_done_callback(_log_failure)
    try:
        yield parts
    finally:
        await parts.conversations.shutdown(settings.shutdown_timeout_s)
        for task in background:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*background, return_exceptions=True)
        await parts.alerts.shutdown()
        await parts.jobs.shutdown()
        await parts.engines.shutdown()


def _log_failure(task: asyncio.Task[None]) -> None:
    """Nobody awaits a background task before the end: what ends it early must be told when it happens."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a background task ended with an error", exc_info=error)
