"""The parts of the running server, as routes receive them.

Owns only the bundle and the way to it. Knows nothing of how the parts are made (server) or what they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.requests import HTTPConnection

from app.alerts import Alerts
from app.benchmarks import Benchmarks
from app.block_maps import BlockMaps
from app.catalog import Catalog
from app.conversations import ConversationService
from app.dialects.response_store import ResponseStore
from app.doctor import Doctor
from app.drafters import Drafters
from app.engines import Engines
from app.events import EventLog
from app.generation import Generations
from app.idle import IdleWatch
from app.jobs import JobRunner
from app.live import LiveHub
from app.metrics import Metrics
from app.model_jobs import ModelJobs
from app.model_list import ModelList
from app.presets import Presets
from app.profiles import Profiles
from app.races import Races
from app.request_settings import RequestSettings
from app.request_upkeep import RequestUpkeep
from app.selftests import SelfTests
from app.settings import Settings
from app.traces import TraceLog
from db.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a route may call."""

    settings: Settings
    started_at: float
    store: Store
    hub: LiveHub
    events: EventLog
    jobs: JobRunner
    catalog: Catalog
    engines: Engines
    models: ModelList
    model_jobs: ModelJobs
    doctor: Doctor
    generations: Generations
    metrics: Metrics
    conversations: ConversationService
    presets: Presets
    responses: ResponseStore
    drafters: Drafters
    selftests: SelfTests
    traces: TraceLog
    blocks: BlockMaps
    request_settings: RequestSettings
    request_upkeep: RequestUpkeep
    alerts: Alerts
    profiles: Profiles
    idle: IdleWatch
    benchmarks: Benchmarks
    races: Races


def services(connection: HTTPConnection) -> Services:
    """The dependency: the parts of the server that answers this call."""
    return cast(Services, connection.app.state.services)
