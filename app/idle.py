"""Unloading what nobody asks: when an engine was last asked for something, and when it is its turn to go.

Owns each engine's idle clock. Knows nothing of how an unload goes. Invariants: only requests set a clock back (looking
at metrics, health or pages does not), and while one runs the clock stands at zero; an engine without `idle_unload_s`
never goes by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from app.loaded_engine import Engine

log = logging.getLogger(__name__)

PERIOD_S = 1.0


class IdleClock:
    """Of one engine: since when nobody has asked it for anything."""

    def __init__(self, now: float) -> None:
        self.since = now
        self._submitted = 0

    def look(self, num_submitted: int, num_running: int, now: float) -> None:
        """Note what was submitted since the last look."""
        if num_running or num_submitted != self._submitted:
            self.since = now
        self._submitted = num_submitted


class IdleWatch:
    """Looks at all engines once a second and sends those away whose time has come.

    unload(model_id) starts that; it may refuse by raising, and is asked again at the next look then.
    """

    def __init__(
        self,
        engines: Callable[[], Iterable[Engine]],
        unload: Callable[[str], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engines = engines
        self._unload = unload
        self._clock = clock
        self._clocks: dict[str, IdleClock] = {}

    async def run(self) -> None:
        """Until the task is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(PERIOD_S)

    def look(self) -> None:
        """One look."""
        now, present = self._clock(), {}
        for engine in self._engines():
            supervisor = engine.supervisor
            if supervisor.state != "ready":
                continue
            client = supervisor.client
            clock = self._clocks.get(supervisor.run_id) or IdleClock(now)
            present[supervisor.run_id] = clock
            clock.look(client.num_submitted, client.num_running, now)
            engine.idle_since = None if client.num_running else clock.since
            if engine.idle_unload_at is not None and now >= engine.idle_unload_at:
                self._send_away(engine)
        self._clocks = present

    def restart(self, engine: Engine) -> None:
        """Begin the engine's time anew: the operator has just spoken of it."""
        engine.idle_since = now = self._clock()
        if (clock := self._clocks.get(engine.supervisor.run_id)) is not None:
            clock.since = now

    def _send_away(self, engine: Engine) -> None:
        try:
            self._unload(engine.model_id)
        except Exception as error:
            log.warning("%s is idle, but could not be unloaded: %s", engine.model_id, error)
