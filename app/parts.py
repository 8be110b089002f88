"""How the parts of the running server are made, and which of them work by themselves.

Owns the wiring: who is handed whom. Decides nothing else, starts and ends nothing. Invariant: a part that needs another
one before that is made is handed a way to ask for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from app.alert_facts import AlertFacts
from app.alerts import Alerts
from app.benchmarks import Benchmarks
from app.block_maps import BlockMaps
from app.catalog import Catalog
from app.conversations import ConversationService
from app.devices import DeviceSampler
from app.dialects.response_store import ResponseStore
from app.doctor import Doctor
from app.drafters import Drafters
from app.engines import Engines
from app.events import EventLog
from app.generation import Generations
from app.header import HeaderPublisher
from app.idle import IdleWatch
from app.jobs import JobRunner
from app.live import LiveHub
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
from app.selftests import SelfTests
from app.services import Services
from app.settings import ASSETS, Settings
from app.traces import TraceLog
from app.train_drafter import DrafterTrainer
from app.webhooks import Webhooks
from db.store import Store


class Worker(Protocol):
    """A part that works until its task is cancelled."""

    async def run(self) -> None:
        """Work."""
        ...


def make_parts(settings: Settings, store: Store) -> tuple[Services, Sequence[Worker]]:
    """The parts, and those of them that are to be run."""
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
        conversations=ConversationService(store, hub, engines, generations),
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
    return parts, (recorder, header, block_maps, upkeep, alert_rules, idle)
