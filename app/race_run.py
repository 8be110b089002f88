"""One run of a race: one request on an engine that has nothing else to do, and when each of its tokens came.

Owns the waiting for a quiet machine and the clock. Knows nothing of what runs are compared with. Invariants: a run that
was not alone is told as disturbed and never timed; however a run ends, its request is ended in the engine.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from app.jobs import JobError
from app.loaded_engine import Engine
from app.text import IncrementalDetokenizer
from engine.core.outputs import RequestOutput, RequestSummary
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams
from engine.protocol import AddRequest

QUIET_POLL_S = 0.05
PATIENCE_S = 300.0  # for other requests to end

Others = Callable[[], int]  # how many requests run on this machine's engines


@dataclass(slots=True)
class Run:
    """times: (seconds since it was sent, tokens, text) of each row. margins: of each token, by how much the likeliest
    was ahead of the next, in nats; where they were asked for. alone: no other request ran at any of its tokens."""

    token_ids: list[int] = field(default_factory=list)
    times: list[tuple[float, int, str]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    summary: RequestSummary | None = None
    finish_reason: str = ""
    alone: bool = True

    @property
    def ttft_s(self) -> float:
        return self.times[0][0]

    @property
    def decoded(self) -> int:
        """Tokens behind the first row: what the decoding clock is about."""
        return len(self.token_ids) - self.times[0][1]

    @property
    def decode_s(self) -> float:
        """From the first token to the last, on the engine's clock where it tells."""
        told = None if self.summary is None else self.summary.timing.decode_s
        return told or self.times[-1][0] - self.times[0][0]

    @property
    def text(self) -> str:
        return "".join(text for _, _, text in self.times)


async def quiet(others: Others, on_wait: Callable[[int], None]) -> None:
    """Wait until nothing runs. Raises JobError when that does not come."""
    deadline = time.monotonic() + PATIENCE_S
    while count := others():
        if time.monotonic() > deadline:
            raise JobError(f"other requests ({count}) ran for {PATIENCE_S:.0f} s: a race needs the machine for itself")
        on_wait(count)
        await asyncio.sleep(QUIET_POLL_S)


async def run(
    engine: Engine, others: Others, prompt: Sequence[int], sampling: SamplingParams, speculation: SpeculationParams
) -> Run:
    """One answer. Raises EngineGone, JobError.

    Its cache salt is its own: neither cached blocks nor remembered answers of the run before help it.
    """
    client, salt = engine.supervisor.client, f"race-{uuid.uuid4().hex}"
    wish = replace(speculation, learn=False)
    message = AddRequest(salt, list(prompt), sampling, cache_salt=salt, speculation=wish)
    found, text = Run(), IncrementalDetokenizer(engine.vocab)
    started = time.perf_counter()
    stream = client.submit(message)
    try:
        while not stream.finished:
            row = await stream.next()
            now = time.perf_counter() - started
            if row.finish_reason == "error":
                raise JobError(f"the engine refused a run: {row.error}")
            found.alone = found.alone and others() <= bool(stream.open)
            _take(found, row, now, text)
    finally:
        if not stream.finished:
            client.abort(message.request_id)
    if found.times and (rest := text.finish()):
        last, count, before = found.times[-1]
        found.times[-1] = last, count, before + rest
    if len(found.token_ids) < 2 or not found.decoded:
        raise JobError("the answer has fewer than two tokens: there is nothing to time. Ask for a longer answer")
    return found


def _take(found: Run, row: RequestOutput, now: float, text: IncrementalDetokenizer) -> None:
    if row.token_ids:
        found.token_ids += row.token_ids
        found.times.append((now, len(row.token_ids), text.push(row.token_ids)))
    if row.logprobs is not None:
        found.margins += [top[0] - top[1] for top in row.logprobs.top_logprobs if len(top) > 1]
    if row.summary is not None:
        found.summary, found.finish_reason = row.summary, row.finish_reason or ""
