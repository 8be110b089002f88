"""Pizarra, OpenVINO GenAI, llama.cpp, vLLM and transformers on the same model and the same work: `make bench-compare`.

Every engine runs in an environment and a process of its own. All are up from the beginning and take turns (A B C A B
C), so that a noisy machine hits them alike; who is not measured idles, and how much of a core that cost is reported.
The memory's bandwidth is measured at the beginning of each round. First in the engines' own loops, then over HTTP. An
engine that crashes or hangs is reported as what happened, and the run goes on. The figures go to a file, and from there
to docs/ (bench/compare_report.py).
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from bench.bandwidth import read_bandwidth
from bench.compare_http import Server, Wishes, start_servers, with_servers
from bench.compare_report import write_page
from bench.compare_results import DECODE, HTTP, LONG_CONTEXT, OURS, PREFILL, VERIFY_ROWS, Results, Task
from bench.compare_workers import MARCHES, PEERS, Models, PeerError, Worker, starts
from bench.decode import default_model
from bench.serving import make_prompts
from bench.serving_report import machine
from bench.transformers_llama import export
from engine.checkpoint import CheckpointInfo, read_checkpoint
from kernels.roofs import last_cache_bytes

PROMPT_TOKENS = 32
LENGTHS = {1: (8, 72), 16: (8, 40), 64: (8, 32)}  # of the short and the long answers, by answers at once
QUICK_LENGTHS = (2, 10)
SLOW = {"transformers": 16}  # the most answers at once that it is asked for: more takes minutes and shows nothing new
MAX_LEN = 8192
MESSAGE = 500  # characters of what became of an engine
SETTLE_S = 0.3  # OpenMP's threads turn for a while after their work
RESULTS = PEERS.parent / "bench" / "compare.json"


class Contestant(Protocol):
    """An engine whose turn can come."""

    @property
    def name(self) -> str: ...

    @property
    def idle_shares(self) -> list[float]: ...

    def cpu_seconds(self) -> float | None: ...


Ask = Callable[[int], Mapping[str, Any]]  # the round's number, 0 for the warm-up -> {"tokens", "seconds"}


class Run:
    """One run: its results, its clock and its turns."""

    def __init__(self, arguments: argparse.Namespace, vocab_size: int) -> None:
        self.results = Results()
        self.arguments = arguments
        self.vocab_size = vocab_size
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:5.0f} s  {text}", flush=True)

    def prompts(self, count: int, length: int, *seed: object) -> list[list[int]]:
        return make_prompts(self.vocab_size, count, length, seed)

    def fail(self, task: Task, name: str, what: str) -> None:
        what = " ".join(what.split())[:MESSAGE]
        self.results.failures.setdefault(task.key, {})[name] = what
        self.say(f"{task.title}: {name}: {what}")

    def lengths(self, batch: int) -> tuple[int, int]:
        """Tokens of the short and of the long answers."""
        return QUICK_LENGTHS if self.arguments.quick else LENGTHS.get(batch, LENGTHS[64])

    def take_turns(self, task: Task, turns: Sequence[tuple[Contestant, Ask]]) -> None:
        """A warm-up and all rounds of one task. Who fails is left out of the rest of it."""
        for number in range(self.arguments.rounds + 1):
            self.measure_bandwidth()
            for contestant, ask in turns:
                if contestant.name in self.results.failures.get(task.key, {}):
                    continue
                time.sleep(SETTLE_S)
                try:
                    with _idling([other for other, _ in turns if other is not contestant]):
                        found = ask(number)
                except PeerError as error:
                    self.fail(task, contestant.name, str(error))
                    continue
                if "note" in found:
                    self.results.notes.setdefault(task.key, {})[contestant.name] = found["note"]
                if number > 0:
                    self.results.add(task, contestant.name, found["tokens"], found["seconds"])
        speeds = ((name, self.results.speed(task, name)) for name in self.results.speeds.get(task.key, {}))
        self.say(f"{task.title}: {', '.join(f'{name} {speed:.1f}' for name, speed in speeds if speed)} tok/s")
        self.results.save(self.arguments.results)

    def measure_bandwidth(self) -> None:
        torch.set_num_threads(self.arguments.threads)
        self.results.bandwidths.append(read_bandwidth(torch.device("cpu")))


@contextmanager
def _idling(others: Sequence[Contestant]) -> Iterator[None]:
    """Books what share of a core each of these used meanwhile."""
    before = [(other, other.cpu_seconds()) for other in others]
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    for other, used in before:
        now = other.cpu_seconds()
        if used is not None and now is not None:
            other.idle_shares.append((now - used) / seconds)


def main() -> int:
    """Measures, keeps the figures, and writes the page where asked to. 1: we could not be measured ourselves."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started ends as well
    model = arguments.model or default_model()
    info = read_checkpoint(model)
    run = Run(arguments, info.config.vocab_size)
    run.results.facts = _facts(arguments, info)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = Models(model, _weights(info, arguments.peers))
        workers = _workers(run, models, folder, stack)
        _load(run, workers if arguments.batches or arguments.prefills else workers[:1])
        _loops(run, workers)
        if arguments.steps:
            _steps(run, workers[0])
        for worker in workers:
            worker.close()  # the servers need the memory, and have threads of their own
        names = with_servers([worker.name for worker in workers])
        if arguments.http and arguments.march is None:
            _over_http(
                run, Wishes(arguments.peers, models, arguments.threads, max(arguments.http), folder), names, stack
            )
    run.results.save(arguments.results)
    run.say(f"done; the figures are in {arguments.results}")
    write_page([run.results], arguments.write)
    return int(any(OURS in failed for failed in run.results.failures.values()))


def _workers(run: Run, models: Models, folder: Path, stack: ExitStack) -> list[Worker]:
    """The engines that were asked for."""
    arguments = run.arguments
    workers = []
    for start in starts(arguments.peers, models, arguments.threads, arguments.march, folder):
        if arguments.only and start.name not in (OURS, *arguments.only):
            continue
        max_seqs = max(arguments.batches, default=1)
        worker = Worker(start, folder / f"{start.name}.log", arguments.threads, max(max_seqs, VERIFY_ROWS), MAX_LEN)
        stack.callback(worker.close)
        workers.append(worker)
    return workers


def _load(run: Run, workers: Sequence[Worker]) -> None:
    """Who cannot load says why now, and again when its turn comes."""
    for worker in workers:
        try:
            worker.load()
        except PeerError as error:
            run.say(f"{worker.name}: {error}")
        run.results.engines[worker.name] = worker.described
        run.results.idle_shares[worker.name] = worker.idle_shares
        run.say(f"{worker.name} {worker.described.get('version', 'did not load')}")


def _loops(run: Run, workers: Sequence[Worker]) -> None:
    """Decoding and prefill in the engines' own loops."""
    for batch in run.arguments.batches:
        prompts, (short, long) = run.prompts(batch, PROMPT_TOKENS, "decode", batch), run.lengths(batch)

        def decode(worker: Worker, prompts: list[list[int]] = prompts, short: int = short, long: int = long) -> Ask:
            return lambda number: worker.ask("decode", prompts=prompts, short=short, long=long)

        asked = [worker for worker in workers if batch <= SLOW.get(worker.name, batch)]
        run.take_turns(Task(DECODE, batch), [(worker, decode(worker)) for worker in asked])
    for length in run.arguments.prefills:

        def prefill(worker: Worker, length: int = length) -> Ask:
            return lambda number: worker.ask("prefill", prompt=run.prompts(1, length, "prefill", length, number)[0])

        run.take_turns(Task(PREFILL, length), [(worker, prefill(worker)) for worker in workers])


def _steps(run: Run, ours: Worker) -> None:
    """What only we are asked: the cost of verifying and of a long context."""
    repeats, found = 8 if run.arguments.quick else 40, run.results
    try:
        for _ in range(run.arguments.rounds):
            run.measure_bandwidth()
            time.sleep(SETTLE_S)
            for temperature in (0.0, 1.0):
                pair = ours.ask("verify", rows=VERIFY_ROWS, temperature=temperature, repeats=repeats)
                found.verify.setdefault(str(temperature), []).append(
                    [pair["single_s"], pair["verify_s"], pair["chunk_s"]]
                )
            steps = ours.ask("context", tokens=LONG_CONTEXT, repeats=repeats)
            found.contexts.append([steps["short_s"], steps["long_s"], steps["kv_bytes"]])
    except PeerError as error:
        run.say(f"verifying and context: {error}")
        return
    costs = ", ".join(f"at temperature {each} {found.verify_cost(float(each)):.2f}" for each in found.verify)
    run.say(f"verifying {VERIFY_ROWS} tokens: {costs}; {LONG_CONTEXT} tokens of context: {found.context_cost():.2f}")


def _over_http(run: Run, wishes: Wishes, names: Sequence[str], stack: ExitStack) -> None:
    """Decoding through the servers."""
    tasks = [Task(HTTP, concurrency) for concurrency in run.arguments.http]

    def failed(name: str, what: str) -> None:
        for task in tasks:
            run.fail(task, name, what)

    servers = start_servers(wishes, names, stack, failed)
    run.say(f"servers of {', '.join(server.name for server in servers)} are up")
    for server in servers:
        run.results.idle_shares[f"{server.name} (server)"] = server.idle_shares
    for task in tasks:
        run.take_turns(task, [(server, _asks_server(run, task, server)) for server in servers])


def _asks_server(run: Run, task: Task, server: Server) -> Ask:
    short, long = run.lengths(task.size)

    def ask(number: int) -> Mapping[str, Any]:
        few, many = (run.prompts(task.size, PROMPT_TOKENS, task.key, length, number) for length in (short, long))
        return server.decode((few, many), short, long)

    return ask


def _weights(info: CheckpointInfo, peers: Path) -> Path:
    """The same weights in bf16. They stay: vLLM keeps what it compiled by the folder's name."""
    folder = peers / f"{info.path.stem}-{info.weights_bytes_on_disk}"
    if not (folder / "tokenizer.json").exists():  # written last
        export(info, folder, torch.bfloat16)
    return folder


def _facts(arguments: argparse.Namespace, info: CheckpointInfo) -> dict[str, Any]:
    return {
        "date": f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M}",
        "command": f"python -m bench.compare {shlex.join(sys.argv[1:])}".strip(),
        "machine": machine(),
        "threads": arguments.threads,
        "cache_bytes": last_cache_bytes(torch.device("cpu")),
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "march": arguments.march,
        "model": info.path.name,
        "prompt_tokens": PROMPT_TOKENS,
        "lengths": {str(batch): (QUICK_LENGTHS if arguments.quick else lengths) for batch, lengths in LENGTHS.items()},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file; else the default model, fetched")
    parser.add_argument("--peers", type=Path, default=PEERS, help="where bench/peers.sh set the peers up")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure these beside Pizarra, not all")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16, 64], help="answers at once, in the loops")
    parser.add_argument("--prefills", type=int, nargs="*", default=[512, 2048], help="tokens of prompts")
    parser.add_argument("--http", type=int, nargs="*", default=[1, 16, 64], help="answers at once, over HTTP")
    parser.add_argument("--no-steps", dest="steps", action="store_false", help="no verifying and no long context")
    parser.add_argument("--march", choices=MARCHES, help="keep all to the instructions of that processor; no HTTP")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="one round of short answers: does everything run?")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of the figures")
    parser.add_argument("--write", type=Path, help="the page to write, for instance docs/compare.md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    return arguments


if __name__ == "__main__":
    sys.exit(main())
