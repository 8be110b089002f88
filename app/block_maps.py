"""The block maps of all engines: watched while somebody looks, told on `blocks:{engine}`, kept for ten minutes.

Owns who is watched, the newest state of each engine and its history. Knows nothing of HTTP or of how a map is drawn.
Invariants: an engine that nobody looks at is asked for nothing; a reader of the topic gets a full view first, and each
change names the view that it follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app import block_view
from app.block_history import BlockHistory
from app.block_state import BlockState, Cells, OutOfOrder, OwnerNumbers
from app.errors import ApiError
from app.live import LiveHub
from app.loaded_engine import Engine
from app.room import RoomQuestions
from engine.core.block_map import BlockFrame
from engine.protocol import BlockMap, RoomAnswer, WatchBlocks

TOPIC = "blocks:"
WATCH_S = 4.0  # that an engine is asked to go on for; renewed every RENEW_S
RENEW_S = 1.0
FRESH_S = 1.5  # a state is the newest for so long
FIRST_FRAME_S = 5.0  # to be waited for: one long step may lie before it
GROWTH_SPAN_S = 60.0


@dataclass(slots=True)
class Watched:
    """What is known of one engine's blocks."""

    numbers: OwnerNumbers = field(default_factory=OwnerNumbers)
    history: BlockHistory = field(default_factory=BlockHistory)
    state: BlockState | None = None
    cells: Cells | None = None
    number: int = 0
    taken_s: float = 0.0  # when the newest frame came, on the monotonic clock
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fresh(self) -> bool:
        return self.state is not None and time.monotonic() - self.taken_s < FRESH_S


class BlockMaps:
    """Used from the event loop only."""

    def __init__(self, hub: LiveHub, engines: Callable[[], list[Engine]]) -> None:
        self._hub = hub
        self._engines = engines
        self.rooms = RoomQuestions()
        self._watched: dict[str, Watched] = {}
        hub.keep_state(TOPIC, self._for_new_reader)

    async def run(self) -> None:
        """Renew watches, and forget engines that are gone, until the task is cancelled."""
        while True:
            present = {engine.supervisor.run_id: engine for engine in self._engines()}
            self._watched = {run_id: known for run_id, known in self._watched.items() if run_id in present}
            for run_id, engine in present.items():
                if self._hub.has_readers(TOPIC + run_id):
                    self._ask(engine)
            await asyncio.sleep(RENEW_S)

    def heard(self, run_id: str, message: BlockMap | RoomAnswer) -> None:
        """An engine has said something about its blocks."""
        if isinstance(message, RoomAnswer):
            self.rooms.answer(message)
        else:
            self.take(run_id, message.frame)

    def take(self, run_id: str, frame: BlockFrame) -> None:
        """A frame has come from an engine."""
        known = self._of(run_id)
        before = known.cells if frame.number > 1 else None
        state = known.state if known.state is not None and frame.number > 1 else BlockState(known.numbers)
        try:
            state.apply(frame)
        except OutOfOrder:
            known.state = known.cells = None  # the next watch begins afresh
            return
        known.state, known.cells = state, state.cells()
        known.number += 1
        known.taken_s = time.monotonic()
        known.history.add(frame, state, known.number, block_view.counts(state, known.cells))
        known.arrived.set()
        topic = TOPIC + run_id
        if self._hub.has_readers(topic):
            self._hub.publish(topic, self._view(run_id, known, before))

    async def newest(self, engine: Engine) -> Watched:
        """The state of an engine as of now. Raises ApiError."""
        supervisor = engine.supervisor
        if supervisor.state not in ("ready", "draining"):
            detail = f"the engine of {engine.model_id} is {supervisor.state}: it has no blocks to show"
            raise ApiError(409, detail, param="id", remedy="Load the model, or ask for an earlier time with at=")
        known = self._of(supervisor.run_id)
        if not known.fresh:
            known.arrived.clear()
            self._ask(engine)
            try:
                await asyncio.wait_for(known.arrived.wait(), FIRST_FRAME_S)
            except TimeoutError:
                detail = f"the engine of {engine.model_id} sent no block map in {FIRST_FRAME_S:.0f} s"
                remedy = "A long step may be on: try again"
                raise ApiError(503, detail, remedy=remedy, code="engine_busy", retry_after_s=1) from None
        return known

    def at(self, run_id: str, t: float) -> tuple[BlockState, int]:
        """The state of an engine at an earlier time, and its number. Raises ApiError."""
        known = self._watched.get(run_id)
        found = None if known is None else known.history.at(t, known.numbers)
        if found is None:
            detail = "no block map is kept from that time"
            remedy = "Maps are kept for ten minutes, of the times when somebody watched; .../blocks/history lists them"
            raise ApiError(404, detail, param="at", remedy=remedy, code="not_kept")
        return found

    def full(self, run_id: str, known: Watched) -> dict[str, Any]:
        """Everything of the newest state, with the rates that its history tells."""
        return self._view(run_id, known, None)

    def history(self, run_id: str, since: float, until: float) -> dict[str, Any]:
        """The counts over time; empty where nobody watched."""
        known = self._watched.get(run_id)
        return BlockHistory().line(0, 0) if known is None else known.history.line(since, until)

    def _view(self, run_id: str, known: Watched, before: Cells | None) -> dict[str, Any]:
        assert known.state is not None
        assert known.cells is not None
        if before is None:
            view = block_view.full(known.state, known.cells, run_id, known.number)
        else:
            view = block_view.change(known.state, known.cells, before, run_id, known.number)
        return view | {"rates": self.rates(known)}

    @staticmethod
    def rates(known: Watched) -> dict[str, float | None]:
        """Evictions and preemptions of late, each a minute; None before there is anything to compare."""
        rates: dict[str, float | None] = {}
        for name in ("evictions", "preemptions"):
            grown = known.history.growth(f"{name}_total", GROWTH_SPAN_S)
            rates[f"{name}_per_min"] = None if grown is None or grown[1] <= 0 else 60 * grown[0] / grown[1]
        return rates

    def _for_new_reader(self, topic: str) -> dict[str, Any] | None:
        """What who begins to read a topic is told at once; None: the engine's next frame will tell everything."""
        run_id = topic.removeprefix(TOPIC)
        engine = next((one for one in self._engines() if one.supervisor.run_id == run_id), None)
        if engine is None:
            return None
        self._ask(engine)
        known = self._of(run_id)
        return self.full(run_id, known) if known.fresh else None

    def _ask(self, engine: Engine) -> None:
        if engine.supervisor.state in ("ready", "draining"):
            known = self._of(engine.supervisor.run_id)
            engine.supervisor.client.send(WatchBlocks(WATCH_S, afresh=known.state is None))

    def _of(self, run_id: str) -> Watched:
        return self._watched.setdefault(run_id, Watched())
