"""Removes what is kept of requests beyond its time: a little at a time, so that nobody waits for it.

Owns the pace. Knows nothing of what a request is. Invariant: a round ends; between two batches the writer is free.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from app.request_settings import RequestSettings
from db.errors import StoreError
from db.store import Store

log = logging.getLogger(__name__)

PERIOD_S = 60.0
BATCH = 500  # rows of one transaction: some hundredths of a second
PAUSE_S = 0.2
BATCHES = 100  # of one round


class RequestUpkeep:
    """Prunes until its task is cancelled."""

    def __init__(
        self, store: Store, settings: RequestSettings, clock: Callable[[], float] = time.time, pause_s: float = PAUSE_S
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._pause_s = pause_s

    async def run(self) -> None:
        """A round a minute, for ever."""
        while True:
            try:
                await self.prune()
            except StoreError as error:
                log.error("old requests could not be removed: %s", error)
            await asyncio.sleep(PERIOD_S)

    async def prune(self) -> int:
        """One round: remove requests past their time. Returned: how many went."""
        removed = 0
        for _ in range(BATCHES):
            before = self._clock() - self._settings.retention_s
            gone = await asyncio.wrap_future(self._store.prune_requests(before, BATCH))
            removed += gone
            if gone < BATCH:
                break
            await asyncio.sleep(self._pause_s)
        return removed

    async def delete_bodies(self) -> int:
        """Remove the kept texts of all requests. Returned: of how many."""
        removed = 0
        while (gone := await asyncio.wrap_future(self._store.delete_request_bodies(BATCH))) > 0:
            removed += gone
        return removed
