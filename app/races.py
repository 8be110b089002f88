"""Races as jobs: who may race, with what, and one at a time.

Owns the checks and the job. Knows nothing of how a race is run or judged. Invariant: what runs on a loaded engine
beside a race is seen by it (`app.race_run`); a race never runs beside another one, a self-test or a benchmark.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from app.benchmarks import JOB as BENCHMARK
from app.dialects.sampling import sampling_params
from app.engine_client import EngineGone
from app.engines import Engines
from app.errors import ApiError
from app.generation import room_for_output
from app.jobs import JobError, JobHandle, JobResult, JobRunner
from app.loaded_engine import Engine
from app.race import Race, RaceWish
from app.race_schemas import RaceBody
from app.selftests import JOB as SELFTEST
from db.rows import JobRow
from engine.core.sampling_params import SamplingError, SamplingParams
from engine.core.speculation import SpeculationParams

JOB = "race"
SHOWN_PROMPT = 2000  # characters that are kept with the result


class Races:
    """Starts races."""

    def __init__(self, jobs: JobRunner, engines: Engines) -> None:
        self._jobs = jobs
        self._engines = engines
        self._running: str | None = None  # the job

    async def start(self, engine: Engine, body: RaceBody) -> JobRow:
        """Begin one. Raises ApiError."""
        proposer = _checked(engine, body)
        self._check_free()
        wish = RaceWish(
            await _prompt(engine, body),
            _sampling(engine, body),
            SpeculationParams(proposer=body.proposer or "", num_speculative_tokens=body.num_speculative_tokens or 0),
            proposer,
            engine.speculation.rule,
            body.repeats,
            body.warm_up,
        )
        room_for_output(engine, len(wish.prompt_token_ids), body.max_tokens)
        self._check_free()  # another may have begun while the prompt was made

        async def work(handle: JobHandle) -> JobResult:
            try:
                return await self._work(engine, wish, body, handle)
            finally:
                self._running = None

        job = self._jobs.start(JOB, engine.model_id, work)
        self._running = job.id
        return job

    async def _work(self, engine: Engine, wish: RaceWish, body: RaceBody, handle: JobHandle) -> JobResult:
        most_jobs = 0

        def report(stage: str, done: int, total: int, message: str) -> None:
            nonlocal most_jobs
            most_jobs = max(most_jobs, self._jobs.num_running - 1)
            handle.stage(stage, done, total, "runs", message)

        try:
            result = await Race(engine, wish, self._num_running, report).result()
        except EngineGone as error:
            raise JobError(str(error)) from error
        asked = body.prompt if body.prompt is not None else (body.messages or [])[-1].content
        shown: dict[str, Any] = {"chat": body.prompt is None, "prompt": asked[:SHOWN_PROMPT], "other_jobs": most_jobs}
        return {**shown, **result}

    def _num_running(self) -> int:
        """Requests that run on any engine of this machine, those of the race included."""
        ready = [each.supervisor for each in self._engines.all() if each.supervisor.ready is not None]
        return sum(each.client.num_running for each in ready if each.alive)

    def _check_free(self) -> None:
        if self._running is not None:
            remedy = "Wait for it, or cancel that job"
            raise ApiError(409, "another race is running", remedy=remedy, code="race_running")
        self._jobs.require_none((SELFTEST, BENCHMARK), "a race needs the machine for itself")


def _checked(engine: Engine, body: RaceBody) -> str:
    """Who drafts. Raises ApiError where there is nothing to race."""
    if engine.supervisor.state != "ready":
        raise ApiError(409, f"{engine.model_id} is {engine.supervisor.state}", remedy="Wait until it is loaded")
    if not engine.ready.proposers:
        remedy = "Load it again with the option speculation"
        raise ApiError(409, f"{engine.model_id} was loaded without speculation", remedy=remedy, code="no_speculation")
    if not engine.speculation.enabled:
        remedy = "Switch it on first: both runs would be plain ones"
        raise ApiError(409, f"speculation of {engine.model_id} is switched off", remedy=remedy, code="no_speculation")
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "a race needs a prompt or messages, one of the two", param="prompt", code="invalid_value")
    if body.proposer is not None and body.proposer not in engine.ready.proposers:
        detail = (
            f"proposer={body.proposer[:40]!r}: {engine.model_id} was loaded with {', '.join(engine.ready.proposers)}"
        )
        raise ApiError(400, detail, param="proposer", remedy="Name one of these", code="invalid_value")
    most = engine.supervisor.options.num_speculative_tokens
    if body.num_speculative_tokens is not None and body.num_speculative_tokens > most:
        detail = (
            f"num_speculative_tokens={body.num_speculative_tokens}: {engine.model_id} was loaded for at most {most}"
        )
        raise ApiError(400, detail, param="num_speculative_tokens", remedy="Ask for less", code="invalid_value")
    return body.proposer or engine.ready.speculation


async def _prompt(engine: Engine, body: RaceBody) -> list[int]:
    if body.messages is not None:
        return await engine.chat_prompt([message.model_dump() for message in body.messages])
    return await asyncio.to_thread(engine.vocab.encode, body.prompt or "", add_special_tokens=True)


def _sampling(engine: Engine, body: RaceBody) -> SamplingParams:
    """As the model's authors have it where the body does not say. Every run has the same seed: under the rule `match`
    it then has the same tokens, too."""
    seed = secrets.randbits(32) if body.seed is None else body.seed
    own = {"temperature": body.temperature, "max_tokens": body.max_tokens, "seed": seed}
    try:
        return sampling_params(engine.sampling_defaults, **own)
    except SamplingError as error:
        raise ApiError(400, str(error), param=error.param, code="invalid_value") from error
