"""The FastAPI application: which parts there are and in what order they start and end.

Owns the wiring. Decides nothing else. Invariant: parts end in the reverse order of need: answers are kept, then jobs
and engines end, then the records are flushed, then the data folder's lock is let go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app.alert_facts import AlertFacts
from app.alerts import Alerts
from app.benchmarks import Benchmarks
from app.block_maps import BlockMaps
from app.body_limit import BodyLimit
from app.catalog import Catalog
from app.conversations import ConversationService
from app.devices import DeviceSampler
from app.dialects.response_store import ResponseStore
from app.doctor import Doctor
from app.drafters import Drafters
from app.engines import Engines
from app.errors import install_error_handlers
from app.events import EventLog
from app.generation import Generations
from app.header import HeaderPublisher
from app.home import DATABASE, HomeLock, prepare_home
from app.idle import IdleWatch
from app.jobs import JobRunner
from app.live import LiveHub
from app.logs import configure_logging
from app.metrics import Metrics
from app.model_jobs import ModelJobs
from app.model_list import ModelList
from app.presets import Presets
from app.profiles import Profiles
from app.quantize import Quantizer
from app.races import Races
from app.recorder import Recorder
from app.request_settings import RequestSettings
from app.request_upkeep import RequestUpkeep
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
from app.selftests import SelfTests
from app.services import Services
from app.settings import ASSETS, Settings
from app.traces import TraceLog
from app.train_drafter import DrafterTrainer
from app.version import app_version
from app.webhooks import Webhooks
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
    hub = LiveHub()
    events = EventLog(store, hub)
    job_runner = JobRunner(store, hub)
    catalog = Catalog(settings.home, ASSETS)
    recorder = Recorder(store, DeviceSampler(settings.home), lambda: engines.snapshots(), hub.publish)
    traces, drafters = TraceLog(hub.publish), Drafters(settings.home, ASSETS, catalog)
    engines = Engines(
        settings, catalog, store, events, lambda: recorder.latest, lambda: header.publish(), traces, drafters
    )
    block_maps = BlockMaps(hub, engines.all)
    engines.on_blocks = block_maps.heard
    selftests = SelfTests(job_runner, store, events)
    metrics = Metrics(engines.snapshots, lambda: recorder.latest, lambda: job_runner.num_running)
    request_settings = RequestSettings(store.get_settings)
    upkeep = RequestUpkeep(store, request_settings)
    generations = Generations(
        store, hub, recorder, metrics, settings.max_waiting_requests, request_settings, traces.follow
    )
    facts = AlertFacts(engines.all, lambda: recorder.latest, generations)
    alert_rules = Alerts(store, hub, events, facts, Webhooks(events), lambda: header.publish())
    header = HeaderPublisher(
        hub, engines, generations, job_runner, recorder, catalog, selftests, lambda: alert_rules.counts()
    )
    making = (settings.home, catalog, settings.jobs_argv)
    model_jobs = ModelJobs(job_runner, catalog, engines, events, Quantizer(*making), DrafterTrainer(*making))
    idle = IdleWatch(engines.all, lambda model_id: model_jobs.unload(model_id, force=False, cause="idle"))
    conversation_service = ConversationService(store, hub, engines, generations)
    parts = Services(
        settings=settings,
        started_at=time.time(),
        store=store,
        hub=hub,
        events=events,
        jobs=job_runner,
        catalog=catalog,
        engines=engines,
        models=ModelList(catalog, engines, job_runner, store),
        model_jobs=model_jobs,
        doctor=Doctor(catalog.local, lambda: engines.free_memory("auto")),
        generations=generations,
        metrics=metrics,
        conversations=conversation_service,
        presets=Presets(store),
        responses=ResponseStore(),
        drafters=drafters,
        selftests=selftests,
        traces=traces,
        blocks=block_maps,
        request_settings=request_settings,
        request_upkeep=upkeep,
        alerts=alert_rules,
        profiles=Profiles(store, engines),
        idle=idle,
        benchmarks=Benchmarks(job_runner),
        races=Races(job_runner, engines),
    )
    workers = (recorder, header, block_maps, upkeep, alert_rules, idle)
    background = [asyncio.create_task(part.run()) for part in workers]
    if settings.model is not None:
        background.append(asyncio.create_task(model_jobs.bring_up(settings.model, settings.load_options)))
    for task in background:
        task.add_done_callback(_log_failure)
    try:
        yield parts
    finally:
        await conversation_service.shutdown(settings.shutdown_timeout_s)
        for task in background:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*background, return_exceptions=True)
        await alert_rules.shutdown()
        await job_runner.shutdown()
        await engines.shutdown()


def _log_failure(task: asyncio.Task[None]) -> None:
    """Nobody awaits a background task before the end: what ends it early must be told when it happens."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a background task ended with an error", exc_info=error)
