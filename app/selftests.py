"""Self-tests as jobs: started, kept, and what their results mean for the engines that are loaded.

Owns the jobs' rules, the rows in the records and the verdict on each loaded pair. Knows nothing of what is tested.
Invariant: a verdict belongs to a pair of model and drafter by their hashes, never to a name alone; a pair that failed
is told as an event and stays flagged until a later test of it with the same proposer passes.
"""

from __future__ import annotations

import asyncio
import platform
import time
from typing import Any

from app.engine_client import EngineGone
from app.errors import ApiError
from app.events import EventLog
from app.jobs import JobError, JobHandle, JobResult, JobRunner
from app.loaded_engine import Engine
from app.selftest import SelfTestWish, overall, run_selftest
from app.selftest_asking import Asker, AskError
from app.version import app_version
from db.rows import JobRow, SelfTestRow
from db.store import Store
from engine.protocol import EngineReady

JOB = "selftest"
VERSION = "pizarra"  # the key of `versions` that a result is judged stale by


class SelfTests:
    """Starts self-tests and knows how they ended."""

    def __init__(self, jobs: JobRunner, store: Store, events: EventLog) -> None:
        self._jobs = jobs
        self._store = store
        self._events = events
        self._running: dict[str, str] = {}  # engine run -> job
        self._standing: dict[str, SelfTestRow | None] = {}  # engine run -> the result that its pair stands by

    def start(self, engine: Engine, proposer: str | None, num_samples: int) -> JobRow:
        """Begin one, or return the one that runs. Raises ApiError where there is nothing to test."""
        run_id = engine.supervisor.run_id
        if run_id in self._running:
            return self._jobs.get(self._running[run_id])
        wish = SelfTestWish(_checked(engine, proposer), num_samples)
        self._jobs.require_none(("race", "benchmark"), "a self-test beside it would spoil what it measures")

        async def work(handle: JobHandle) -> JobResult:
            try:
                return await self._work(engine, wish, handle)
            finally:
                self._running.pop(run_id, None)

        job = self._jobs.start(JOB, engine.model_id, work)
        self._running[run_id] = job.id
        return job

    def standing(self, engine: Engine) -> SelfTestRow | None:
        """The result that the engine's pair stands by, whichever run of it was tested: see `db.selftests.standing`."""
        run_id = engine.supervisor.run_id
        if run_id not in self._standing:
            if engine.supervisor.ready is None:
                return None
            pair = engine.ready.model_hash, engine.ready.drafter_hash
            self._standing[run_id] = self._store.standing_selftest(engine.model_id, *pair)
        return self._standing[run_id]

    def state(self, engine: Engine) -> dict[str, Any]:
        """Where it stands: see `app.speculation_schemas.SelfTestState`."""
        found, job_id = self.standing(engine), self._running.get(engine.supervisor.run_id)
        state = "never" if found is None else found.state
        return {
            "state": state if job_id is None else "running",
            "at": None if found is None else found.finished_at,
            "id": None if found is None else found.id,
            "job_id": job_id,
            "proposer": None if found is None else found.proposer,
            "flagged": self.failed(engine),
            "stale": found is not None and found.versions.get(VERSION) != app_version(),
        }

    def failed(self, engine: Engine) -> bool:
        """Whether the engine's pair is known not to keep its promise, with any of its proposers."""
        found = self.standing(engine)
        return found is not None and found.state == "failed"

    async def _work(self, engine: Engine, wish: SelfTestWish, handle: JobHandle) -> JobResult:
        started_at = time.time()

        def report(part: str, done: int, total: int) -> None:
            handle.stage(part, done, total, "steps", wish.proposer)

        try:
            parts = await run_selftest(engine, Asker(engine, f"{JOB}-{handle.job_id}"), wish, report)
        except (EngineGone, AskError) as error:
            raise JobError(str(error)) from error
        ready = engine.ready
        row = SelfTestRow(
            id=handle.job_id,
            model_id=engine.model_id,
            engine_run_id=engine.supervisor.run_id,
            model_hash=ready.model_hash,
            drafter_hash=ready.drafter_hash,
            proposer=wish.proposer,
            state=overall(parts),
            started_at=started_at,
            finished_at=time.time(),
            versions=_versions(ready),
            parts=parts,
        )
        await asyncio.wrap_future(self._store.add_selftest(row))
        self._standing.pop(row.engine_run_id, None)  # the new row need not be the one that counts
        self._tell(row)
        for part in parts:
            handle.log(in_words(part))
        return {"state": row.state, "selftest_id": row.id, "seconds": row.finished_at - row.started_at}

    def _tell(self, row: SelfTestRow) -> None:
        failed = row.state == "failed"
        parts = "; ".join(in_words(part) for part in row.parts)
        data = {"selftest_id": row.id, "model_hash": row.model_hash, "drafter_hash": row.drafter_hash}
        self._events.add(
            JOB,
            "error" if failed else "info",
            f"the self-test of {row.model_id} with {row.proposer} {_ENDINGS[row.state]}: {parts}",
            engine_run_id=row.engine_run_id,
            data=data,
        )


_ENDINGS = {"passed": "passed", "failed": "failed", "inconclusive": "proved nothing"}


def _checked(engine: Engine, proposer: str | None) -> str:
    """Whom to test. Raises ApiError."""
    if engine.supervisor.state != "ready":
        raise ApiError(409, f"{engine.model_id} is {engine.supervisor.state}", remedy="Wait until it is loaded")
    ready = engine.ready
    if not ready.proposers:
        remedy = "Load it again with the option speculation"
        raise ApiError(409, f"{engine.model_id} was loaded without speculation", remedy=remedy, code="no_speculation")
    if not engine.speculation.enabled:
        remedy = "Switch it on first: there is nothing to test while it is off"
        raise ApiError(409, f"speculation of {engine.model_id} is switched off", remedy=remedy)
    if proposer is not None and proposer not in ready.proposers:
        detail = f"proposer={proposer[:40]!r}: {engine.model_id} was loaded with {', '.join(ready.proposers)}"
        raise ApiError(400, detail, param="proposer", remedy="Name one of these")
    return proposer or ready.speculation


def _versions(ready: EngineReady) -> dict[str, Any]:
    """What the result is true of, beside the pair."""
    names = ("device_name", "dtype", "exactness", "num_threads", "kernels")
    return {
        VERSION: app_version(),
        "python": platform.python_version(),
        **{name: getattr(ready, name) for name in names},
    }


def in_words(part: dict[str, Any]) -> str:
    """One part of a result in a sentence."""
    what = f"{part['name']} {part['state']}"
    if part["name"] == "distribution":
        smallest = min((test["p_value"] for test in part["tests"]), default=1.0)
        return f"{what} ({len(part['tests'])} tests, smallest p {smallest:.2g}, {part['drafted']} drafted)"
    first = part["first_difference"]
    where = "" if first is None else f", first at token {first['position']} of {first['prompt']}"
    return f"{what} ({part['different']} of {part['compared']} differ{where}, {part['drafted']} drafted)"
