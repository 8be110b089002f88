"""The same comparison over HTTP: the engines that have a server, each started as its users start it.

Owns the servers of a run and how each is told the run's limits; bench/servers.py has their processes, bench/streams.py
the load. OpenVINO GenAI's package has no server; transformers' own takes chats and no token ids. Invariant: a server
that does not start is a failure in the results, never an end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.compare_results import OURS
from bench.compare_workers import Models, PeerError, llama_builds, native_programs
from bench.servers import PeerServer, cpu_seconds, llama_server, pizarra, vllm, vllm_variables
from bench.streams import run_load

MODEL = "bench"
CONTEXT = 512  # tokens of one request, more than any here has


@dataclass
class Server:
    """One engine's server under measurement."""

    name: str
    url: str
    pid: int
    idle_shares: list[float] = field(default_factory=list)

    def cpu_seconds(self) -> float | None:
        return cpu_seconds(self.pid)

    def decode(
        self, prompts: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]], short: int, long: int
    ) -> dict[str, float]:
        """Decoding alone: a load of answers of `long` tokens less one of answers of `short` tokens. {"tokens",
        "seconds"}.

        prompts: of the two loads, all of one length and no two alike, since a server remembers. All of a load are sent
        at once. PeerError.
        """
        try:
            less = run_load(self.url, MODEL, prompts[0], short, len(prompts[0])).seconds
            seconds = run_load(self.url, MODEL, prompts[1], long, len(prompts[1])).seconds - less
        except (RuntimeError, OSError, httpx.HTTPError) as error:
            raise PeerError(f"over HTTP: {type(error).__name__}: {error}") from error
        if seconds <= 0:
            raise PeerError(f"answers of {long} tokens took no longer than those of {short}")
        return {"tokens": len(prompts[1]) * (long - short), "seconds": seconds}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What all servers of a run are told."""

    peers: Path  # where bench/peers.sh set them up
    models: Models
    threads: int
    max_seqs: int
    folder: Path  # for logs and for our data


def start_servers(
    wishes: Wishes, names: Sequence[str], stack: ExitStack, failed: Callable[[str, str], None]
) -> list[Server]:
    """The servers of these engines, up until the stack unwinds. failed(name, what became of it)."""
    ready: list[Server] = []
    for name in names:
        try:
            ready.append(_ours(wishes, stack) if name == OURS else _peer(name, wishes, stack))
        except (RuntimeError, OSError) as error:
            failed(name, f"its server does not start: {' '.join(str(error).split())[-600:]}")
    return ready


def with_servers(names: Sequence[str]) -> list[str]:
    """Those of the engines that have one."""
    return [name for name in names if name in (OURS, "vLLM") or name.startswith("llama.cpp")]


def _ours(wishes: Wishes, stack: ExitStack) -> Server:
    server = stack.enter_context(pizarra(wishes.folder / "home", {MODEL: wishes.models.gguf}))
    server.load(MODEL, max_num_seqs=wishes.max_seqs, num_threads=wishes.threads, speculation="off")
    return Server(OURS, server.url, server.running.process.pid)


def _peer(name: str, wishes: Wishes, stack: ExitStack) -> Server:
    log = wishes.folder / f"{name} server.log"
    starting: AbstractContextManager[PeerServer]
    if name == "vLLM":
        options = ["--dtype=bfloat16", f"--served-model-name={MODEL}", f"--max-num-seqs={wishes.max_seqs}"]
        environment = wishes.peers / "vllm"
        variables = vllm_variables(environment, f"0-{wishes.threads - 1}")
        starting = vllm(environment, wishes.models.bf16, log, variables, options)
    else:
        seats = ["--parallel", str(wishes.max_seqs), "-c", str(wishes.max_seqs * CONTEXT), "--alias", MODEL]
        threads = ["-t", str(wishes.threads), "-tb", str(wishes.threads)]
        variables = {"LD_LIBRARY_PATH": str(llama_builds(wishes.peers, None)[name])}
        programs = native_programs(wishes.peers)
        starting = llama_server(programs, wishes.models.gguf, log, variables, [*seats, *threads, "--no-webui"])
    server = stack.enter_context(starting)
    return Server(name, server.url, server.running.process.pid)
