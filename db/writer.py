"""The one thread that writes: a queue of jobs, committed in batches.

Owns the writing connection, the thread, and the futures it hands out. Knows nothing of tables.
Invariants: jobs run in the order they were submitted; a future is resolved only after its transaction is on disk;
a job that fails undoes itself and fails its own future only; a submitted job runs even when nobody waits for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from db.errors import StoreError, explain

T = TypeVar("T")

MAX_BATCH = 256


class _Job:
    """A piece of work and its future; `outcome` waits for the commit."""

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        # Marked as running at once: a caller that is cancelled while awaiting must not undo what it asked for.
        self.future.set_running_or_notify_cancel()
        self.outcome: Any = None
        self.error: Exception | None = None

    def run(self, connection: Connection) -> None:
        """Do the work in a savepoint of the batch's transaction. Raises only when that transaction itself is lost."""
        self.error = None
        try:
            with connection.begin_nested():
                self.outcome = self._work_noting_error(connection)
        except Exception as error:
            self.error = self.error or error
            if not _in_transaction(connection):  # SQLite rolls everything back by itself, on a full disk for one
                raise self.error from error

    def _work_noting_error(self, connection: Connection) -> Any:
        """The first error is the cause; one from undoing the savepoint is not."""
        try:
            return self.work(connection)
        except Exception as error:
            self.error = error
            raise

    def resolve(self, path: Path, batch_error: Exception | None) -> None:
        """Tell the caller how it ended."""
        error = self.error or batch_error
        if error is None:
            self.future.set_result(self.outcome)
        else:
            self.future.set_exception(explain(path, error))


class Writer:
    """Runs submitted jobs on its own thread."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="db-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Queue `work`; it gets a connection inside a transaction and returns plain data."""
        job = _Job(work)
        with self._lock:
            if self._closed:
                job.future.set_exception(StoreError(f"{self._path}: the store is closed"))
            else:
                self._queue.put(job)
        return job.future

    def flush(self) -> None:
        """Wait until everything submitted so far is on disk or has failed."""
        self.submit(lambda _connection: None).result()

    def close(self) -> None:
        """Write what is queued, then end the thread. Later submissions fail; closing twice is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        open_for_more = True
        while open_for_more:
            batch, open_for_more = self._take()
            self._settle(batch)

    def _settle(self, batch: list[_Job]) -> None:
        """Write a batch; one that cannot be written as a whole is written job by job, so that each gets its own end."""
        error = self._write(batch) if batch else None
        if error is not None and len(batch) > 1:
            for job in batch:
                self._settle([job])
        else:
            for job in batch:
                job.resolve(self._path, error)

    def _take(self) -> tuple[list[_Job], bool]:
        """Wait for a job, then take what else is queued; False once the end mark was met."""
        batch: list[_Job] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) == MAX_BATCH:
                return batch, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _write(self, batch: list[_Job]) -> Exception | None:
        """Run a batch as one transaction. Returned: what kept the transaction itself from being written."""
        try:
            with self._engine.begin() as connection:
                for job in batch:
                    job.run(connection)
        except Exception as error:
            return error
        return None


def _in_transaction(connection: Connection) -> bool:
    driver_connection: Any = connection.connection.driver_connection
    return bool(driver_connection.in_transaction)
