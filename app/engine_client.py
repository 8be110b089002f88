"""The app's end of the pipe to one engine process.

Owns the connection, its two threads and one queue per running request. Knows nothing of processes, models or text.
Invariant: the event loop never blocks on the pipe; every sample of a submitted request ends with exactly one final row,
which carries a finish_reason, unless an `EngineGone` ends them all.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from engine.core.outputs import RequestOutput, RequestProgress
from engine.core.sampling_params import Guided
from engine.protocol import (
    AbortRequest,
    AddRequest,
    CheckGrammar,
    FromEngine,
    RequestsProgress,
    StepOutputs,
    ToEngine,
    decode_from_engine,
    encode,
)

log = logging.getLogger(__name__)

ABORT_PATIENCE_S = 2.0
NUM_USABLE_GRAMMARS = 64  # as many as an engine keeps compiled


class EngineGone(Exception):
    """The engine ended while a request was running; the message says how."""


class RequestStream:
    """The rows of one request's samples, in order. `finished`: the last one has been taken."""

    def __init__(self, request_id: str, num_samples: int) -> None:
        self.request_id = request_id
        self.finished = False
        self.open = set(range(num_samples))  # the samples whose final row has not arrived
        self.on_progress: Callable[[RequestProgress], None] = lambda progress: None
        self.on_late: Callable[[RequestOutput], None] | None = None  # takes the rows that nobody waits for any more
        self._queue: asyncio.Queue[RequestOutput | EngineGone] = asyncio.Queue()

    def put(self, item: RequestOutput) -> None:
        """A row of a sample that has ended already is late, and dropped."""
        if item.index not in self.open:
            return
        if item.finish_reason is not None:
            self.open.remove(item.index)
        if self.on_late is not None:
            self.on_late(item)
        else:
            self._queue.put_nowait(item)

    def fail(self, gone: EngineGone) -> None:
        self._queue.put_nowait(gone)

    async def next(self) -> RequestOutput:
        """The next row. Raises EngineGone when the engine ended first."""
        item = await self._queue.get()
        if isinstance(item, EngineGone):
            self.finished = True
            raise item
        self.finished = not self.open and self._queue.empty()
        return item


class EngineClient:
    """Submits and aborts requests, hands every other message to `on_message`, and says once when the pipe closed."""

    def __init__(
        self, connection: Connection, on_message: Callable[[FromEngine], None], on_closed: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._on_message = on_message
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, RequestStream] = {}
        self._checks: dict[str, asyncio.Future[str | None]] = {}  # grammars that are being looked at
        self._usable: deque[Guided] = deque(maxlen=NUM_USABLE_GRAMMARS)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._gone: EngineGone | None = None
        self.num_submitted = 0  # requests so far: who is asked between two looks is seen to have been
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()
        threading.Thread(target=self._write, name="engine-writer", daemon=True).start()

    @property
    def num_running(self) -> int:
        return len(self._streams)

    @property
    def running_ids(self) -> list[str]:
        """The requests that run, oldest first."""
        return list(self._streams)

    @property
    def num_sequences(self) -> int:
        """The samples of all running requests that have not ended."""
        return sum(len(stream.open) for stream in self._streams.values())

    def submit(self, request: AddRequest) -> RequestStream:
        """Start a request. Raises EngineGone when the engine has ended."""
        if self._gone is not None:
            raise self._gone
        data = encode(request)  # first: a request that cannot be encoded leaves nothing behind
        stream = RequestStream(request.request_id, request.n)
        self._streams[request.request_id] = stream
        self.num_submitted += 1
        self._outbox.put(data)
        return stream

    async def grammar_fault(self, guided: Guided) -> str | None:
        """What the engine says against a grammar, None for one that can be used. Raises EngineGone."""
        if guided in self._usable:
            return None
        if self._gone is not None:
            raise self._gone
        check = CheckGrammar(uuid.uuid4().hex, guided)
        verdict: asyncio.Future[str | None] = self._loop.create_future()
        self._checks[check.request_id] = verdict
        try:
            self.send(check)
            fault = await verdict
        finally:
            self._checks.pop(check.request_id, None)
        if fault is None:
            self._usable.append(guided)
        return fault

    def abort(self, request_id: str, num_output_tokens: int | None = None, index: int | None = None) -> None:
        """End a request in the engine, or one of its samples; harmless when it has ended already.

        The last rows, with the summary, normally follow at once. A busy engine is not waited for longer than
        ABORT_PATIENCE_S: the samples end here without a summary then.
        """
        stream = self._streams.get(request_id)
        if self._gone is not None or stream is None:
            return
        self.send(AbortRequest(request_id, num_output_tokens, index))
        for each in stream.open if index is None else (index,):
            last = RequestOutput(request_id, [], finish_reason="abort", index=each)
            self._loop.call_later(ABORT_PATIENCE_S, self._deliver, last)

    def abort_all(self) -> int:
        """End every running request in the engine. Returned: how many there were."""
        running = list(self._streams)
        for request_id in running:
            self.abort(request_id)
        return len(running)

    def send(self, message: ToEngine) -> None:
        self._outbox.put(encode(message))

    def fail_all(self, reason: str) -> None:
        """End every running request with the reason, and refuse new ones with it."""
        self._gone = EngineGone(reason)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(self._gone)
        for verdict in self._checks.values():
            if not verdict.done():
                verdict.set_exception(self._gone)

    def close(self) -> None:
        """Let go of the pipe, which ends the engine if it still runs."""
        self._outbox.put(None)

    def _read(self) -> None:
        try:
            while True:
                message = decode_from_engine(self._connection.recv_bytes())
                self._loop.call_soon_threadsafe(self._dispatch, message)
        except (EOFError, OSError):
            pass  # the engine's end is closed: the ordinary way this ends
        except msgspec.DecodeError:
            log.exception("an engine sent a message that cannot be read; its pipe is closed")
        except RuntimeError:
            return  # the event loop has ended, and so has everyone who could be told
        self._outbox.put(None)
        try:
            self._loop.call_soon_threadsafe(self._on_closed)
        except RuntimeError:
            return

    def _write(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:
                break  # the reader sees the same end and reports it
        self._connection.close()

    def _dispatch(self, message: FromEngine) -> None:
        if isinstance(message, RequestsProgress):
            for progress in message.requests:
                if (stream := self._streams.get(progress.request_id)) is not None:
                    stream.on_progress(progress)
            return
        if not isinstance(message, StepOutputs):
            self._on_message(message)
            return
        for row in message.rows:
            self._deliver(row)

    def _deliver(self, row: RequestOutput) -> None:
        verdict = self._checks.get(row.request_id)
        if verdict is not None and not verdict.done():
            verdict.set_result(row.error)
        stream = self._streams.get(row.request_id)
        if stream is None:
            return  # the request has ended already
        stream.put(row)
        if not stream.open:
            del self._streams[row.request_id]
