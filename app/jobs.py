"""Long work as rows with stage, progress, log and cancel.

Owns the running tasks and the newest state of each job. Knows nothing of what the work is.
Invariant: every job ends in exactly one of "succeeded", "failed", "cancelled", "interrupted", and that end is in the
database before it is published; progress may be written less often than it is published.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from app.errors import ApiError
from app.live import LiveHub
from app.pace import Pace
from app.writes import unwatched
from db.errors import StoreError
from db.rows import JobRow
from db.store import Store

log = logging.getLogger(__name__)

PUBLISH_INTERVAL_S = 0.2
LOG_LINES = 200
TOPIC = "jobs"

JobResult: TypeAlias = dict[str, Any]


class JobError(Exception):
    """The job failed for a reason the operator can read. `result`: what there is to know or to do about it."""

    def __init__(self, message: str, result: JobResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class JobHandle:
    """What the work sees of its job. Used from the event loop."""

    def __init__(self, runner: JobRunner, job_id: str) -> None:
        self._runner = runner
        self.job_id = job_id
        self.cancelled = asyncio.Event()

    def stage(self, name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None:
        changes = {"stage": name, "done": done, "total": total, "unit": unit, "message": message}
        self._runner.progress(self.job_id, changes)

    def log(self, line: str) -> None:
        self._runner.log_line(self.job_id, line)

    def expect(self, total_s: float | None) -> None:
        """How long all of it takes by what is known of earlier ones; None: not known."""
        self._runner.pace(self.job_id).expected_s = total_s


class JobRunner:
    """Starts jobs, keeps them, tells of them."""

    def __init__(self, store: Store, hub: LiveHub) -> None:
        self._store = store
        self._hub = hub
        self._jobs: dict[str, JobRow] = {}
        self._handles: dict[str, JobHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._published_at: dict[str, float] = {}
        self._paces: dict[str, Pace] = {}

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    def start(self, kind: str, subject: str, run: Callable[[JobHandle], Awaitable[JobResult]]) -> JobRow:
        """Begin the work now, in the background."""
        now = time.time()
        job = JobRow(id=uuid.uuid4().hex, kind=kind, subject=subject, state="running", created_at=now, started_at=now)
        handle = self._handles[job.id] = JobHandle(self, job.id)
        self._paces[job.id] = Pace(time.monotonic)
        self._update(job, persist=True)
        self._tasks[job.id] = asyncio.create_task(self._run(job.id, handle, run))
        return job

    def get(self, job_id: str) -> JobRow:
        job = self._jobs.get(job_id) or self._store.get_job(job_id)
        if job is None:
            raise ApiError(404, f"there is no job {job_id!r}", param="id")
        return job

    def running(self, kind: str, subject: str) -> JobRow | None:
        """The job of this kind on this subject that has not ended."""
        for job_id in list(self._tasks):  # a copy: the list of models is made on a thread of its own
            job = self._jobs.get(job_id)
            if job is not None and job.kind == kind and job.subject == subject:
                return job
        return None

    def require_none(self, kinds: Iterable[str], why: str, subject: str | None = None) -> None:
        """Raises ApiError where a job of one of these kinds runs (on `subject`); why: what that would spoil."""
        for job_id in list(self._tasks):
            job = self._jobs.get(job_id)
            if job is not None and job.kind in kinds and subject in (None, job.subject):
                detail = f"a job {job.kind} of {job.subject} is running, and {why}"
                remedy = f"Wait for the job {job.id}, or cancel it"
                raise ApiError(409, detail, remedy=remedy, code=f"{job.kind}_running")

    def list(self, limit: int, before: str | None = None, kind: str | None = None) -> list[JobRow]:
        """Newest first, running ones with their newest progress, written down already or not."""
        rows = {row.id: row for row in self._store.list_jobs(limit, before, kind)}
        if before is None:
            rows |= {job.id: job for job in self._jobs.values() if kind in (None, job.kind)}
        newest = sorted(rows.values(), key=lambda job: (-job.created_at, job.id))
        return [self._jobs.get(row.id, row) for row in newest[:limit]]

    def pace(self, job_id: str) -> Pace:
        """How fast a job goes. One that has ended has a pace that knows nothing."""
        return self._paces.get(job_id) or Pace(time.monotonic)

    def told(self, job: JobRow) -> dict[str, Any]:
        """A job as it is told of: its row, its speed in units a second and the seconds it has yet to go."""
        pace = self.pace(job.id)
        return {**dataclasses.asdict(job), "rate_per_s": pace.rate_per_s, "eta_s": pace.eta_s}

    @property
    def position(self) -> int:
        """Of the newest message on the topic `jobs`: who follows on from it misses nothing of what was read here."""
        return self._hub.position(TOPIC)

    def cancel(self, job_id: str) -> None:
        """Ask the work to end. A job that has ended stays as it is."""
        job = self.get(job_id)
        if job.kind == "unload" and job_id in self._tasks:
            raise ApiError(409, "an unload that has begun cannot be taken back")
        self._cancel_task(job_id)

    async def wait(self, job_id: str) -> JobRow:
        """The job once it has ended."""
        if (task := self._tasks.get(job_id)) is not None:
            await asyncio.wait([task])
        return self.get(job_id)

    async def shutdown(self) -> None:
        tasks = list(self._tasks.values())
        for job_id in self._tasks:
            self._cancel_task(job_id)
        if tasks:
            await asyncio.wait(tasks, timeout=10)

    def _cancel_task(self, job_id: str) -> None:
        """Once: what is ending already, such as by writing a checkpoint, is not disturbed by a second click."""
        task = self._tasks.get(job_id)
        if task is not None and not self._handles[job_id].cancelled.is_set():
            self._handles[job_id].cancelled.set()
            task.cancel()

    def progress(self, job_id: str, changes: dict[str, Any]) -> None:
        job = self._jobs.get(job_id)
        if job is None or job_id not in self._tasks:
            return
        self._jobs[job_id] = changed = dataclasses.replace(job, **changes)
        self.pace(job_id).observe(changed.stage, changed.done, changed.total)
        new_stage = job.stage != changed.stage
        if new_stage or time.monotonic() - self._published_at.get(job_id, 0.0) >= PUBLISH_INTERVAL_S:
            self._update(changed, persist=new_stage)

    def log_line(self, job_id: str, line: str) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            self._update(dataclasses.replace(job, log=[*job.log, line][-LOG_LINES:]), persist=False)

    async def _run(self, job_id: str, handle: JobHandle, run: Callable[[JobHandle], Awaitable[JobResult]]) -> None:
        changes: dict[str, Any]
        try:
            changes = {"state": "succeeded", "result": await run(handle)}
        except asyncio.CancelledError as error:
            changes = {"state": "cancelled", "message": str(error) or "cancelled"}  # work that can go on says how
        except JobError as error:
            changes = {"state": "failed", "error": str(error), "result": error.result}
        except ApiError as error:
            changes = {"state": "failed", "error": str(error)}
        except Exception as error:
            log.exception("job %s (%s %s) failed", job_id, self._jobs[job_id].kind, self._jobs[job_id].subject)
            changes = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
        del self._tasks[job_id], self._handles[job_id]
        self._paces.pop(job_id, None)
        job = dataclasses.replace(self._jobs[job_id], finished_at=time.time(), **changes)
        self._jobs[job_id] = job
        try:
            await asyncio.wrap_future(self._store.save_job(job))
        except StoreError:
            log.exception("the end of job %s could not be saved", job_id)
        self._update(job, persist=False)
        del self._jobs[job_id], self._published_at[job_id]

    def _update(self, job: JobRow, *, persist: bool) -> None:
        self._jobs[job.id] = job
        self._published_at[job.id] = time.monotonic()
        if persist:
            unwatched(self._store.save_job(job))
        self._hub.publish(TOPIC, self.told(job))
