"""The app's end of an engine process: start it, send messages, wait for answers."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from engine.protocol import FromEngine, RequestOutput, StepOutputs, ToEngine, decode_from_engine, encode

PATIENCE_S = 60.0
M = TypeVar("M")


class Spawned:
    """The app's end of an engine process."""

    def __init__(self, model: Path, *, program: Sequence[str] = ("-m", "engine.process"), **options: Any) -> None:
        self.connection, theirs = multiprocessing.Pipe(duplex=True)
        arguments = ["--fd", str(theirs.fileno()), "--model", str(model), "--options", json.dumps(options)]
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments], pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()

    def send(self, message: ToEngine) -> None:
        self.connection.send_bytes(encode(message))

    def receive(self) -> FromEngine:
        assert self.connection.poll(PATIENCE_S), "the engine says nothing"
        return decode_from_engine(self.connection.recv_bytes())

    def until(self, kind: type[M]) -> M:
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message

    def rows(self, request_id: str) -> Iterator[RequestOutput]:
        """A request's rows up to its last."""
        while True:
            for row in self.until(StepOutputs).rows:
                if row.request_id == request_id:
                    yield row
                    if row.finish_reason is not None:
                        return
