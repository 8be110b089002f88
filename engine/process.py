"""The engine process: `python -m engine.process --fd N --model PATH --options JSON`.

Owns the pipe's engine end and the loop. A reader thread queues messages; the main thread runs steps and answers. The
end of the pipe is the lifeline: when the app is gone, so is the engine. Invariant: EngineReady or EngineFailed is sent
once, and one StepOutputs a step, never one a row.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from engine.config import ConfigError, LoadOptions
from engine.core.block_map import BlockWatch
from engine.core.outputs import RequestOutput
from engine.core.room import room_for
from engine.engine import Engine
from engine.loading import LoadedEngine, LoadError, load_engine
from engine.protocol import (
    PROTOCOL_VERSION,
    AbortRequest,
    AddRequest,
    AskRoom,
    BlockMap,
    CheckGrammar,
    Drain,
    EngineFailed,
    EngineMemory,
    EngineReady,
    FromEngine,
    LoadProgress,
    RequestsProgress,
    RoomAnswer,
    SetSpeculation,
    Shutdown,
    SpeculationCosts,
    StepOutputs,
    StepTrace,
    ToEngine,
    WatchBlocks,
    decode_to_engine,
    encode,
)

STATS_INTERVAL_S = 0.25  # at most four times a second, also when idle
PROGRESS_INTERVAL_S = 0.1
log = logging.getLogger("engine")


class EngineProcess:
    """The loop between the pipe and the engine."""

    def __init__(self, connection: Connection, loaded: LoadedEngine) -> None:
        self.connection = connection
        self.engine: Engine = loaded.engine
        self.inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()  # None: there is work, wake up
        self.engine.grammars.on_compiled = lambda: self.inbox.put(None)
        self.block_watch = BlockWatch(self.engine.scheduler)
        self.draining = False
        self.stopping = False
        self.next_stats_s = 0.0

    def run(self) -> None:
        """Serves until Shutdown, or until a Drain has nothing left to wait for."""
        threading.Thread(target=self._read, name="pipe-reader", daemon=True).start()
        while not self.stopping:
            rows = self._take_messages()
            if self.engine.has_work():
                rows.extend(self._step())
                self._check_when_idle()
            if traces := self.engine.speculator.take_traces():
                self._send(StepTrace(traces))  # before the rows: who has the last row can read the whole trace
            if rows:
                self._send(StepOutputs(rows))
            self._send_stats()
            if (frame := self.block_watch.due()) is not None:
                self._send(BlockMap(frame))
            if self.draining and not self.engine.has_requests():
                return

    def _read(self) -> None:
        while True:
            try:
                data = self.connection.recv_bytes()
            except (EOFError, OSError):
                log.info("the app is gone; leaving")
                os._exit(0)
            self.inbox.put(decode_to_engine(data))

    def _take_messages(self) -> list[RequestOutput]:
        """Handles what is queued, waits when there is nothing to run; returns rows that are due at once."""
        rows: list[RequestOutput] = []
        wait_s = 0.0 if self.engine.has_work() else max(0.0, self.next_stats_s - time.monotonic())
        while True:
            try:
                message = self.inbox.get(timeout=wait_s) if wait_s > 0 else self.inbox.get_nowait()
            except queue.Empty:
                return rows
            wait_s = 0.0
            if message is not None:
                rows.extend(self._handle(message))

    def _handle(self, message: ToEngine) -> list[RequestOutput]:
        match message:
            case AddRequest():
                refused = self._add(message)
                samples = range(max(1, message.n))
                return [] if refused is None else [replace(refused, index=index) for index in samples]
            case CheckGrammar():
                self.engine.check_grammar(message.request_id, message.guided)
            case AbortRequest():
                return self.engine.abort_request(message.request_id, message.num_output_tokens, message.index)
            case SetSpeculation():
                self.engine.speculator.configure(message.enabled, message.num_speculative_tokens, message.rule)
                if message.clear:
                    self.engine.speculator.clear()
            case WatchBlocks():
                self.block_watch.renew(message.seconds, afresh=message.afresh)
            case AskRoom():
                self._send(self._room(message))
            case Drain():
                self.draining = True
            case Shutdown():
                self.stopping = True
        return []

    def _add(self, message: AddRequest) -> RequestOutput | None:
        if self.draining:
            return RequestOutput(message.request_id, [], "error", "the engine is being unloaded; send it again later")
        return self.engine.add_request(
            message.request_id,
            message.prompt_token_ids,
            message.sampling,
            priority=message.priority,
            cache_salt=message.cache_salt,
            n=message.n,
            pooling=message.pooling,
            speculation=message.speculation,
            trace=message.trace,
            inspect=message.inspect,
        )

    def _room(self, asked: AskRoom) -> RoomAnswer:
        scheduler, prompt = self.engine.scheduler, asked.prompt_token_ids
        room = room_for(scheduler, prompt, asked.num_tokens, asked.max_num_tokens, asked.cache_salt)
        return RoomAnswer(asked.ask_id, room)

    def _step(self) -> list[RequestOutput]:
        try:
            return self.engine.step()
        except Exception as error:  # one bad step must not take the process and its weights along
            log.exception("a step failed")
            rows = self.engine.fail_all(f"the step failed: {type(error).__name__}: {error}")
            self.engine.scheduler.kv.check()
            return rows

    def _check_when_idle(self) -> None:
        """Proves the books of the blocks whenever the last request has ended; AssertionError ends the engine."""
        if not self.engine.has_requests():
            self.engine.scheduler.kv.check()

    def _send_stats(self) -> None:
        now = time.monotonic()
        if now >= self.next_stats_s:
            self.next_stats_s = now + STATS_INTERVAL_S
            self._send(self.engine.stats())
            if progress := self.engine.progress():
                self._send(RequestsProgress(progress))
        if buckets := self.engine.speculator.table.take(now):
            self._send(SpeculationCosts(time.time(), buckets))

    def _send(self, message: FromEngine) -> None:
        send(self.connection, message)


def send(connection: Connection, message: FromEngine) -> None:
    """Sends one message; a closed pipe means that the app is gone, and ends the process."""
    try:
        connection.send_bytes(encode(message))
    except (BrokenPipeError, ConnectionError, OSError):
        log.info("the app is gone; leaving")
        os._exit(0)


def ready_message(loaded: LoadedEngine, options: LoadOptions) -> EngineReady:
    """What the app is told of a loaded engine."""
    runner, plan = loaded.runner, loaded.plan
    resident = psutil.Process().memory_full_info().uss
    draft_weights, draft_buffers = loaded.drafter_bytes
    pool, workspace = plan.kv.kv_bytes + plan.kv.drafter_bytes, runner.workspace.nbytes + draft_buffers
    parts = (runner.weights_bytes, draft_weights, pool, workspace)
    on_host = sum(parts) if runner.device.type == "cpu" else 0
    return EngineReady(
        protocol_version=PROTOCOL_VERSION,
        pid=os.getpid(),
        architecture=loaded.info.config.architecture,
        device=str(runner.device),
        device_name=plan.device.name,
        dtype=str(runner.dtype).removeprefix("torch."),
        exactness=loaded.exactness.level,
        exactness_reason=loaded.exactness.reason,
        effective_settings=loaded.settings,
        memory=EngineMemory(
            weights_bytes=runner.weights_bytes,
            draft_weights_bytes=draft_weights,
            kv_bytes=pool,
            workspace_bytes=workspace,
            runtime_bytes=max(0, resident - on_host),
            process_bytes=resident,
            draft_kv_bytes=plan.kv.drafter_bytes,
            draft_workspace_bytes=draft_buffers,
        ),
        num_kv_blocks=loaded.engine.pool.num_total,
        block_size=options.block_size,
        max_model_len=loaded.engine.max_model_len,
        vocab_size=loaded.info.config.vocab_size,
        num_threads=runner.num_threads,
        kernels={choice.op: choice.backend for choice in runner.kernels},
        load_s=loaded.load_s,
        proposers=list(loaded.engine.speculator.proposers),
        speculation=plan.drafting.speculation,
        model_hash=loaded.model_hash,
        drafter_hash=loaded.drafter_hash,
        num_kv_groups=len(loaded.engine.scheduler.kv.groups),
    )


class _ProgressSender:
    """Passes progress on, at most ten times a second within a stage."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.stage = ""
        self.sent_s = 0.0

    def __call__(self, stage: str, done: int, total: int, message: str) -> None:
        now = time.monotonic()
        if stage != self.stage or done == total or now - self.sent_s >= PROGRESS_INTERVAL_S:
            self.stage, self.sent_s = stage, now
            send(self.connection, LoadProgress(stage, done, total, message))


def main() -> int:
    """Loads, reports, serves. The exit status is 0 after a served life, 1 after a failed load."""
    parser = argparse.ArgumentParser(prog="python -m engine.process")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--options", default="{}")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    connection = Connection(arguments.fd)
    try:
        options = LoadOptions(**json.loads(arguments.options))
        loaded = load_engine(arguments.model, options, _ProgressSender(connection))
    except (ConfigError, TypeError) as error:
        send(connection, EngineFailed("bad_options", str(error)))
        return 1
    except LoadError as error:
        log.error("load failed: %s", error)
        send(connection, EngineFailed(error.kind, str(error)))
        return 1
    except Exception as error:
        log.exception("load failed")
        send(connection, EngineFailed("internal", f"{type(error).__name__}: {error}"))
        return 1
    send(connection, ready_message(loaded, options))
    log.info("ready: %s on %s", arguments.model, loaded.plan.device.name)
    try:
        EngineProcess(connection, loaded).run()
    except AssertionError as error:
        log.exception("the block pool's books do not balance")
        send(connection, EngineFailed("internal", f"the block pool's books do not balance: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
