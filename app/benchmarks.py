"""Benchmarks as jobs: one at a time for an engine, and what is refused before it begins.

Owns the jobs' rules. Knows nothing of what is measured. Invariant: asking again while one runs returns that one.
"""

from __future__ import annotations

from typing import Any

from app.benchmark import Benchmark, BenchmarkError, BenchmarkWish
from app.engine_client import EngineGone
from app.errors import ApiError
from app.jobs import JobError, JobHandle, JobResult, JobRunner
from app.loaded_engine import Engine
from db.rows import JobRow

JOB = "benchmark"


class Benchmarks:
    """Starts them."""

    def __init__(self, jobs: JobRunner) -> None:
        self._jobs = jobs

    def start(self, engine: Engine, wish: BenchmarkWish) -> JobRow:
        """Begin one. Raises ApiError where the engine cannot be measured so."""
        if engine.supervisor.state != "ready":
            raise ApiError(409, f"{engine.model_id} is {engine.supervisor.state}", remedy="Load it first")
        length, most = wish.prompt_tokens + wish.output_tokens, engine.ready.max_model_len
        if length > most:
            raise ApiError(
                400,
                f"prompt_tokens + output_tokens is {length}, and the context holds {most}",
                param="prompt_tokens",
                remedy="Ask for fewer",
                code="invalid_value",
            )
        self._jobs.require_none(("selftest", "race"), "a benchmark needs the engine for itself", engine.model_id)

        async def work(handle: JobHandle) -> JobResult:
            def report(stage: str, done: int, total: int, message: str) -> None:
                handle.stage(stage, done, total, "steps", message)

            try:
                result = await Benchmark(engine, wish, report).run()
            except (EngineGone, BenchmarkError) as error:
                raise JobError(str(error)) from error
            for row in result["rows"]:
                handle.log(in_words(row))
            return result

        return self._jobs.running(JOB, engine.model_id) or self._jobs.start(JOB, engine.model_id, work)


def in_words(row: dict[str, Any]) -> str:
    """A figure for the log."""
    drafts = "with drafts" if row["drafts"] else "plain"
    if row["median"] is None:
        return f"{row['name']} at batch {row['batch']}, {drafts}: too few tokens to say"
    spread = f"{row['low']:.4g} to {row['high']:.4g}, {row['n']} repeats"
    return f"{row['name']} at batch {row['batch']}, {drafts}: {row['median']:.4g} ({spread})"
