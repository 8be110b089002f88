"""One engine process from spawn to receipt.

Owns the process, its pipe, its log file and its state. Knows nothing of HTTP, the database, or other engines.
Invariant: the state is what was last observed of the process, never a hope: "ready" after its handshake, "stopped" or
"failed" only after it has ended, and an unload's receipt counts only memory of processes that are seen to be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.engine_client import EngineClient
from app.logs import tail_lines
from app.process_memory import ProcessTreeMemory, process_tree_uss
from app.schemas import EngineState
from engine.config import GIB, LoadOptions
from engine.protocol import (
    PROTOCOL_VERSION,
    BlockMap,
    Drain,
    EngineFailed,
    EngineReady,
    EngineStats,
    FromEngine,
    LoadProgress,
    RoomAnswer,
    Shutdown,
    SpeculationCosts,
    StepTrace,
)

log = logging.getLogger(__name__)

END_PATIENCE_S = 1.0  # from the first sign of an end (exit, closed pipe) to the other one
LOG_TAIL_LINES = 50
KERNEL_CACHE_VARIABLE = "PIZARRA_KERNEL_CACHE"  # where an engine keeps the kernels it built


class EngineStartError(Exception):
    """The engine did not become ready. `kind` is the protocol's EngineFailed.kind, or "died" or "cancelled"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class UnloadReceipt:
    """What an unload gave back: summed USS of the ended processes, against what the tree held before."""

    freed_bytes: int
    expected_bytes: int
    seconds: float
    forced: bool  # a signal was needed

    @property
    def message(self) -> str:
        return f"freed {self.freed_bytes / GIB:.2f} of {self.expected_bytes / GIB:.2f} GiB in {self.seconds:.1f} s"


class EngineSupervisor:
    """Starts, watches and ends the engine process of one loaded model."""

    def __init__(
        self,
        run_id: str,
        model_id: str,
        model_path: Path,
        options: LoadOptions,
        *,
        argv: Sequence[str],
        log_path: Path,
        kernel_cache: Path,
        on_change: Callable[[EngineSupervisor], None],
        on_report: Callable[[EngineStats | StepTrace | BlockMap | RoomAnswer], None] = lambda report: None,
    ) -> None:
        self.run_id = run_id
        self.model_id = model_id
        self.options = options
        self.state: EngineState = "loading"
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.progress = LoadProgress(stage="start")
        self.ready: EngineReady | None = None
        self.stats: EngineStats | None = None
        self.costs: SpeculationCosts | None = None
        self.error: str | None = None
        self.lost_requests: list[str] = []  # what ran when it failed or was told to end
        self._model_path = model_path
        self._argv = list(argv)
        self._log_path = log_path
        self._environment = {KERNEL_CACHE_VARIABLE: str(kernel_cache), **os.environ}  # the operator's choice wins
        self._on_change = on_change
        self._on_report = on_report
        self._failure: EngineFailed | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._client: EngineClient | None = None
        self._handshake: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self._watcher: asyncio.Task[None] | None = None
        self._pipe_closed = asyncio.Event()
        self._ended = asyncio.Event()
        self._drain_over = asyncio.Event()  # the process has ended, or nobody wants to wait for it any longer

    @property
    def client(self) -> EngineClient:
        assert self._client is not None, "start() comes first"
        return self._client

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def log_tail(self, count: int = LOG_TAIL_LINES) -> list[str]:
        return tail_lines(self._log_path, count)

    async def start(self) -> EngineReady:
        """Spawn and wait for the handshake. Raises EngineStartError; the process has ended then."""
        try:
            self._spawn()
        except OSError as error:
            self._finish("failed", f"the engine process could not be started: {error}")
            raise EngineStartError("died", str(self.error)) from error
        try:
            self.ready = await asyncio.shield(self._handshake)
        except asyncio.CancelledError:
            await self.kill()
            raise
        if self.ready.protocol_version != PROTOCOL_VERSION:
            found = f"the engine speaks protocol {self.ready.protocol_version}, this server {PROTOCOL_VERSION}"
            self._failure = EngineFailed("unsupported", found)
            self._signal_group(signal.SIGKILL)
            await self._ended.wait()
            raise EngineStartError("unsupported", found)
        self._set_state("ready")
        return self.ready

    @property
    def failure_kind(self) -> str:
        """What kind of failure ended it: the protocol's EngineFailed.kind, or "died"."""
        return "died" if self._failure is None else self._failure.kind

    async def unload(self, *, drain_s: float, kill_s: float) -> UnloadReceipt:
        """End the process: drain for `drain_s` (0: abort what runs), then tell, then SIGTERM, then SIGKILL."""
        started = time.monotonic()
        before = await asyncio.to_thread(_tree_memory, self.pid)
        forced = False
        if self.state == "ready" and drain_s > 0:
            self._set_state("draining")
            self.client.send(Drain())
            await self._wait(self._drain_over, drain_s)
        if self.alive:
            self._set_state("unloading")
            self.lost_requests = self.client.running_ids
            self.client.send(Shutdown())
            await self._wait(self._ended, kill_s)
        if self.alive:
            forced = True
            self._signal_group(signal.SIGTERM)
            await self._wait(self._ended, kill_s)
        if self.alive:
            await self.kill()
        remaining = sum([_tree_memory(pid).total_bytes for pid in before.pids])
        return UnloadReceipt(
            freed_bytes=max(0, before.total_bytes - remaining),
            expected_bytes=before.total_bytes,
            seconds=time.monotonic() - started,
            forced=forced,
        )

    def stop_draining(self) -> None:
        """Let an unload under way wait no longer for running requests."""
        self._drain_over.set()

    async def kill(self) -> None:
        """SIGKILL the process group and wait until it is gone."""
        if self.state in ("loading", "ready"):
            self._set_state("unloading")
        self._signal_group(signal.SIGKILL)
        await self._ended.wait()

    # ---- the process ------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=True)
        options = json.dumps(dataclasses.asdict(self.options))
        command = [*self._argv, "--fd", str(theirs.fileno()), "--model", str(self._model_path), "--options", options]
        with theirs, self._log_path.open("ab") as log_file:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self._client = EngineClient(ours, self._on_message, self._pipe_closed.set)
        self._watcher = asyncio.create_task(self._watch())

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case LoadProgress():
                self.progress = message
                self._on_change(self)
            case EngineReady():
                if not self._handshake.done():
                    self._handshake.set_result(message)
            case EngineFailed():
                self._failure = message
            case EngineStats():
                self.stats = message
                self._on_report(message)
            case SpeculationCosts():
                self.costs = message
            case StepTrace() | BlockMap() | RoomAnswer():
                self._on_report(message)

    async def _watch(self) -> None:
        """Conclude once the process has ended. A pipe that closes first ends it: it is the engine's lifeline."""
        process = self._process
        assert process is not None
        exited = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody asks any more
                loop.call_soon_threadsafe(exited.set)

        threading.Thread(target=wait, name="engine-waiter", daemon=True).start()
        signs = [asyncio.create_task(exited.wait()), asyncio.create_task(self._pipe_closed.wait())]
        await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(signs, timeout=END_PATIENCE_S)  # the last messages, or an orderly exit
        if not exited.is_set():
            self._signal_group(signal.SIGKILL)
            await exited.wait()
        for sign in signs:
            sign.cancel()
        self._conclude(process.returncode)

    def _conclude(self, code: int) -> None:
        self._signal_group(signal.SIGKILL)  # children that outlived their leader
        self.client.close()
        if self.state in ("draining", "unloading"):
            self._finish("stopped", None)
            return
        if self._failure is not None:
            error = self._failure.message
        else:
            doing = "while loading" if self.ready is None else "while serving"
            error = f"the engine process of {self.model_id} {_how_it_ended(code)} {doing}"
            last = [line for line in self.log_tail(20) if line.strip()]
            if last:
                error += f"; its last log line: {last[-1].strip()[:300]}"
        self._finish("failed", error)

    def _finish(self, state: EngineState, error: str | None) -> None:
        self.error = error
        self.ended_at = time.time()
        self._ended.set()
        self._drain_over.set()
        if self._client is not None:
            if state == "failed":
                self.lost_requests = self._client.running_ids
            self._client.fail_all(error or f"the model {self.model_id} was unloaded while the request was running")
        if not self._handshake.done():
            kind = self._failure.kind if self._failure is not None else "died"
            self._handshake.set_exception(EngineStartError(kind, error or "the engine was ended while loading"))
            self._handshake.exception()  # it is looked at by start(), which may have been cancelled
        if error is not None:
            log.error("%s", error)
        self._set_state(state)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._on_change(self)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody of the group is left
            os.killpg(self._process.pid, number)  # the leader of its own session: group id = pid

    async def _wait(self, event: asyncio.Event, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            log.info("engine %s still runs after %.1f s", self.run_id, timeout_s)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return "was ended by SIGKILL (by hand, or by the system because memory ran out)"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _tree_memory(pid: int | None) -> ProcessTreeMemory:
    """What the process and its children hold; nothing when it has ended."""
    tree = process_tree_uss(pid) if pid is not None else None
    return tree or ProcessTreeMemory(0, "uss", frozenset())
