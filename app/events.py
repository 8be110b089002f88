"""Things worth the operator's eye, kept and told at once.

Owns the join of the events table and the live topic `events`. Knows nothing of what happened.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from app.live import LiveHub
from db.rows import EventRow
from db.store import Store

log = logging.getLogger(__name__)


class EventLog:
    """Adds events. Used from the event loop."""

    def __init__(self, store: Store, hub: LiveHub) -> None:
        self._store = store
        self._hub = hub
        self._loop = asyncio.get_running_loop()

    def add(
        self,
        kind: str,
        severity: str,
        message: str,
        *,
        engine_run_id: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        log.log(logging.ERROR if severity == "error" else logging.INFO, "%s: %s", kind, message)
        written = self._store.add_event(kind, severity, message, engine_run_id=engine_run_id, data=data)
        written.add_done_callback(self._written)

    def _written(self, future: Future[EventRow]) -> None:
        # on the writer's thread; an event that could not be written was logged above and is lost to the table only
        if future.exception() is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hub.publish, "events", dataclasses.asdict(future.result()))
