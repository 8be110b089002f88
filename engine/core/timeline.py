"""The course of one request on the engine's clock: its wait and what it waited for, its chunks, steps and preemptions.

Owns the stamps and the counts; the scheduler says when. Knows nothing of blocks, tokens' values or text. Invariants: a
request costs a few additions a step, whatever its length; nothing here decides anything; what is listed is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine.core.outputs import Preemption, PrefillChunk, QueueWait, RequestProgress

if TYPE_CHECKING:
    from engine.core.request import Request

BLOCKS, SLOTS, BUDGET = (
    "blocks",
    "slots",
    "budget",
)  # what the first in the queue lacks: room, a place, this step's rows
MAX_CHUNKS = 256  # of a request; what comes behind is counted to the last one
MAX_PREEMPTIONS_KEPT = 64
MAX_PROGRESS = 64  # requests told of at once


class QueueClock:
    """For how long, in all, the queue's first request has lacked what. Two readings tell it of any span of time."""

    def __init__(self) -> None:
        self.cause = ""  # what it lacks since the last plan; empty: nobody waits
        self._seconds = {BLOCKS: 0.0, SLOTS: 0.0, BUDGET: 0.0}
        self._since = time.monotonic()

    def tick(self, now: float) -> None:
        """The time up to now belongs to the last cause."""
        if self.cause:
            self._seconds[self.cause] += now - self._since
        self._since = now

    def reading(self) -> tuple[float, float, float]:
        """Seconds without blocks, slots and budget."""
        return self._seconds[BLOCKS], self._seconds[SLOTS], self._seconds[BUDGET]


@dataclass(slots=True)
class Timeline:
    """What a request's `RequestTiming` is made of. Times are readings of the monotonic clock."""

    arrival_t: float = field(default_factory=time.time)
    queued_s: float | None = None
    queue_reading: tuple[float, float, float] = (0.0, 0.0, 0.0)
    wait: QueueWait = field(default_factory=QueueWait)
    chunk_s: float = 0.0  # when the share that is being computed was planned
    chunks: list[PrefillChunk] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    decode_steps: int = 0
    others: int = 0  # requests beside this one, summed over its decode steps
    others_max: int = 0
    others_prompt_tokens: int = 0

    def queued(self, arrival_s: float, clock: QueueClock, num_ahead: int, num_running: int) -> None:
        """It has joined the queue, behind `num_ahead` others."""
        now = time.monotonic()
        clock.tick(now)
        self.queued_s = now
        self.queue_reading = clock.reading()
        self.wait = QueueWait(num_ahead=num_ahead, num_running=num_running, held_s=now - arrival_s)

    def planned(self, now: float, arrival_s: float, clock: QueueClock, *, first: bool, resumed: bool) -> None:
        """A share of it is in the step's plan; the first one ends its wait."""
        self.chunk_s = now
        if resumed and self.preemptions:
            self.preemptions[-1] = replace(self.preemptions[-1], resumed_s=now - arrival_s)
        elif first:
            parts = zip(clock.reading(), self.queue_reading, strict=True)
            blocks, slots, budget = (max(0.0, after - before) for after, before in parts)
            self.wait = replace(self.wait, blocks_s=blocks, slots_s=slots, budget_s=budget)

    def computed(self, now: float, arrival_s: float, start: int, end: int, num_prompt_tokens: int) -> None:
        """The step has computed the tokens from `start` to `end`, of which some belong to the prompt."""
        done = min(end, num_prompt_tokens)
        again = bool(self.preemptions)
        chunk = PrefillChunk(self.chunk_s - arrival_s, now - arrival_s, done - start, done, again)
        if len(self.chunks) == MAX_CHUNKS:
            last = self.chunks.pop()
            chunk = replace(chunk, start_s=last.start_s, num_tokens=last.num_tokens + chunk.num_tokens)
        self.chunks.append(chunk)

    def decoded(self, num_others: int, others_prompt_tokens: int) -> None:
        """A step that gave it a token, and what else that step computed."""
        self.decode_steps += 1
        self.others += num_others
        self.others_max = max(self.others_max, num_others)
        self.others_prompt_tokens += others_prompt_tokens

    def preempted(self, arrival_s: float, num_computed_tokens: int) -> None:
        """Its blocks were taken."""
        if len(self.preemptions) < MAX_PREEMPTIONS_KEPT:
            self.preemptions.append(Preemption(time.monotonic() - arrival_s, num_computed_tokens))


def progress_of(running: Iterable[Request], waiting: Iterable[Request], cause: str) -> list[RequestProgress]:
    """How far those are that have no token yet, or are computed anew: first in rank, first told."""
    found = [
        RequestProgress(
            request.client_id,
            "prefill",
            done=min(request.num_computed_tokens, request.num_prompt_tokens),
            total=request.num_prompt_tokens,
            cached=request.num_cached_tokens,
        )
        for request in running
        if request.num_computed_tokens < request.num_tokens - 1 and not request.sample_index
    ]
    for ahead, request in enumerate(waiting):
        if len(found) >= MAX_PROGRESS:
            break
        if not request.sample_index:
            state = "preempted" if request.num_preemptions else "waiting"
            total = request.num_prompt_tokens
            found.append(RequestProgress(request.client_id, state, total=total, ahead=ahead, cause=cause))
    return found[:MAX_PROGRESS]
