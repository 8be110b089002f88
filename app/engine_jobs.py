"""Long work that needs torch, in a process of its own: `python -m engine.jobs NAME`.

Owns the process and the protocol with it: arguments as one JSON object on stdin, JSON lines {stage, done, total,
message} on stdout, SIGTERM = write a checkpoint and stop. Knows nothing of what the work is, of jobs' rows or of HTTP.
Invariant: when `run_engine_job` returns or raises, its process has ended; a process whose reader is gone (the app was
killed) finds its output closed and ends at its next line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.supervisor import KERNEL_CACHE_VARIABLE

STOP_PATIENCE_S = 60.0  # for the checkpoint after SIGTERM; SIGKILL afterwards, and the last checkpoint counts
LINE_LIMIT_BYTES = 8 << 20
NICENESS = 10  # answers come first: the work has the processors that no engine wants
LAST_WORDS = 20  # lines of stderr that a process's unexplained end is told with


class EngineJobError(Exception):
    """The work failed, or was refused. The message is the process's own where it gave one."""


class EngineJobStopped(Exception):
    """The work wrote a checkpoint and stopped, though nobody here asked for it."""


@dataclass(frozen=True, slots=True)
class JobLine:
    """One line of progress. total 0: the stage does not count. result: of the last line alone."""

    stage: str
    done: int = 0
    total: int = 0
    message: str = ""
    result: dict[str, Any] | None = None


@dataclass(slots=True)
class _Said:
    """What the process has said so far."""

    last: JobLine = JobLine("start")
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_WORDS))


async def run_engine_job(
    argv: Sequence[str],
    name: str,
    arguments: Mapping[str, Any],
    *,
    kernel_cache: Path,
    on_line: Callable[[JobLine], None],
    on_log: Callable[[str], None],
) -> dict[str, Any]:
    """Run the work to its end and return its result.

    argv: the command that `name` is put behind. on_line hears of progress, on_log of all else the process writes.
    Cancelled, it tells the process to stop at a checkpoint and waits for that; cancelled again, it kills it. Raises
    EngineJobError, EngineJobStopped.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            name,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_LIMIT_BYTES,
            env={KERNEL_CACHE_VARIABLE: str(kernel_cache), **os.environ},
            start_new_session=True,  # Ctrl+C in a terminal is ours to pass on
        )
    except OSError as error:
        raise EngineJobError(f"{argv[0]} could not be started: {error.strerror or error}") from error
    with contextlib.suppress(OSError):  # it has ended already; what it said will tell
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    said = _Said()
    reading = asyncio.create_task(_converse(process, arguments, said, on_line, on_log))
    try:
        await asyncio.shield(reading)
    except asyncio.CancelledError:
        on_line(JobLine("checkpoint", message="waiting for the work to stop"))
        await _stop(process, reading)
        if said.last.stage != "done":  # else the work was complete before it heard
            raise asyncio.CancelledError(_stop_message(said)) from None
    finally:
        _kill(process)
        reading.cancel()
        await process.wait()
    return _outcome(name, process.returncode, said)


async def _stop(process: Process, reading: asyncio.Task[None]) -> None:
    """SIGTERM, and the time to write a checkpoint. The caller kills what is left."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    await asyncio.wait([reading], timeout=STOP_PATIENCE_S)


def _stop_message(said: _Said) -> str:
    if said.last.stage == "stopped":
        return said.last.message
    return "ended before it had written a checkpoint; the same call goes on from the last one, if there is any"


async def _converse(
    process: Process,
    arguments: Mapping[str, Any],
    said: _Said,
    on_line: Callable[[JobLine], None],
    on_log: Callable[[str], None],
) -> None:
    """Hand over the arguments, read both outputs to their ends, and wait for the process."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(ConnectionError):  # a process that died at once has more to say on stderr
        process.stdin.write(json.dumps(arguments).encode())
        await process.stdin.drain()
    process.stdin.close()

    def take_line(text: str) -> None:
        line = parse_line(text)
        if line is None:
            on_log(text)
            return
        said.last = line
        on_line(line)

    def take_log(text: str) -> None:
        said.stderr.append(text)
        on_log(text)

    await asyncio.gather(_each_line(process.stdout, take_line), _each_line(process.stderr, take_log))
    await process.wait()


async def _each_line(stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    while raw := await stream.readline():
        if text := raw.decode("utf-8", "replace").rstrip():
            take(text)


def parse_line(text: str) -> JobLine | None:
    """A line of the protocol; None for anything else that a library may print."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("stage"), str):
        return None
    done, total, result = found.get("done", 0), found.get("total", 0), found.get("result")
    return JobLine(
        stage=found["stage"],
        done=done if type(done) is int else 0,
        total=total if type(total) is int else 0,
        message=str(found.get("message", "")),
        result=result if isinstance(result, dict) else None,
    )


def _outcome(name: str, code: int | None, said: _Said) -> dict[str, Any]:
    if said.last.stage == "done" and code == 0:
        return said.last.result or {}
    if said.last.stage == "failed":
        raise EngineJobError(said.last.message or f"{name} failed without a reason")
    if said.last.stage == "stopped":
        raise EngineJobStopped(said.last.message)
    how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit status {code}"
    if code is not None and code == -signal.SIGKILL:
        how += " (the system ran out of memory, or somebody killed it)"
    words = f":\n{chr(10).join(said.stderr)}" if said.stderr else ""
    raise EngineJobError(f"the process of {name} {how} in the stage {said.last.stage!r}{words}")


def _kill(process: Process) -> None:
    """End what is left of the process's group, children that it started included."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
