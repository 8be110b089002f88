"""Pizarra, vLLM and transformers on the same weights and the same load, in the same run: `make bench-serving`.

Each engine is driven as its users drive it: Pizarra and vLLM through their OpenAI servers, streamed, transformers
through `generate` in batches. All are up from the beginning and take turns (A B C A B C), so that a noisy machine hits
them alike; who is not measured idles, and how much of a core that cost is reported. The peers get our checkpoint's
weights, dequantised to bf16. Prompts are random and fixed, so that no two begin alike.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench import interleave
from bench.bandwidth import read_bandwidth
from bench.decode import default_model
from bench.generate import generate_load
from bench.servers import ROOT, PizarraServer, cpu_seconds, pizarra, vllm, vllm_variables
from bench.serving_report import Measured, Pool, write_report
from bench.streams import Load, run_load
from bench.transformers_llama import build, export
from engine.checkpoint import CheckpointInfo, read_checkpoint

MODEL = "bench"
PEERS = ROOT / ".cache" / "peers"  # weights for vLLM stay: it keeps what it compiled by the folder's name
SHARED_TOKENS, OWN_TOKENS = 512, 32
POOL_BLOCKS, POOL_REQUESTS = 128, 64
MIN_REQUESTS = 2  # in one round, so that a single stream is timed more than once

Run = Callable[[Sequence[Sequence[int]], int, int], Load]  # prompts, output tokens, concurrency


@dataclass
class Engine:
    """One engine under measurement. pid: of the process group's head; None: it runs in this process."""

    run: Run
    pid: int | None = None
    idle_shares: list[float] = field(default_factory=list)


def main() -> int:
    """Measures, prints, and writes the page where asked to."""
    arguments = _arguments()
    start = time.monotonic()
    model = arguments.model or default_model()
    info = read_checkpoint(model)
    vocab_size = info.config.vocab_size
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(pizarra(folder / "home", {MODEL: model}))
        limits = {"max_num_seqs": max(arguments.concurrency), "num_threads": arguments.threads}
        ours.load(MODEL, **limits, speculation="off")  # the peers decode plainly, too
        engines = {"Pizarra": Engine(_streamed(ours.url), ours.running.process.pid)}
        engines |= _peers(info, folder, arguments, ours.engine()["max_model_len"], stack)
        bandwidths = [read_bandwidth(torch.device("cpu"))]
        _say(start, f"up: {', '.join(engines)}")
        measured = Measured()
        for concurrency in arguments.concurrency:
            _measure(engines, concurrency, arguments, vocab_size, measured)
            _say(start, f"{concurrency} at a time: {measured.line(concurrency)}")
        measured.idle_shares = {name: engine.idle_shares for name, engine in engines.items()}
        for name, engine in engines.items():
            if engine.pid is not None:  # `generate` keeps no cache from call to call
                measured.prefix[name] = _prefix(engine.run, arguments.rounds, vocab_size)
        measured.pool = _small_pool(ours, arguments, vocab_size)
        _say(start, f"prefix {measured.prefix}, pool {measured.pool}")
        bandwidths.append(read_bandwidth(torch.device("cpu")))
        ours.unload(MODEL)
    measured.bandwidths = bandwidths
    measured.interleaved = interleave.measure(model, arguments.threads, rounds=2)
    _say(start, "done")
    write_report(measured, arguments, sys.argv[1:])
    return 0


def _peers(
    info: CheckpointInfo, folder: Path, arguments: argparse.Namespace, max_model_len: int, stack: ExitStack
) -> dict[str, Engine]:
    """The others, up and with our weights."""
    peers = {}
    if arguments.vllm is not None:
        weights = PEERS / f"{info.path.stem}-{info.weights_bytes_on_disk}"
        if not (weights / "tokenizer.json").exists():  # written last
            export(info, weights, torch.bfloat16)
        command = [f"--max-num-seqs={max(arguments.concurrency)}", f"--max-model-len={max_model_len}"]
        command += ["--dtype=bfloat16", f"--served-model-name={MODEL}"]
        variables = vllm_variables(arguments.vllm, arguments.vllm_bind)
        theirs = stack.enter_context(vllm(arguments.vllm, weights, folder / "vllm.log", variables, command))
        peers["vLLM"] = Engine(_streamed(theirs.url), theirs.running.process.pid)
    if arguments.transformers:
        torch.set_num_threads(arguments.threads)
        peers["transformers"] = Engine(_generated(build(info, torch.bfloat16)))
    return peers


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file; else the default model, fetched")
    parser.add_argument("--vllm", type=Path, help="the environment that bench/peers.sh made; without it, no vLLM")
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    parser.add_argument(
        "--vllm-bind", default=cores, help="VLLM_CPU_OMP_THREADS_BIND; its own default keeps a core free"
    )
    parser.add_argument("--no-transformers", dest="transformers", action="store_false")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="the page to write, for instance docs/benchmarks.md")
    return parser.parse_args()


def _streamed(url: str) -> Run:
    return lambda prompts, output, concurrency: run_load(url, MODEL, prompts, output, concurrency)


def _generated(model: object) -> Run:
    return lambda prompts, output, concurrency: generate_load(model, prompts, output, concurrency)


def make_prompts(vocab_size: int, count: int, length: int, seed: object) -> list[list[int]]:
    """Random prompts that depend on the seed alone."""
    pick = random.Random(str(seed))
    return [[pick.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def _measure(
    engines: Mapping[str, Engine],
    concurrency: int,
    arguments: argparse.Namespace,
    vocab_size: int,
    measured: Measured,
) -> None:
    """All rounds of one load, after a short one that warms up."""
    output, length = arguments.output_tokens, arguments.input_tokens
    for engine in engines.values():
        engine.run(make_prompts(vocab_size, min(concurrency, 4), length, ("warm", concurrency)), 2, concurrency)
    for number in range(arguments.rounds):
        prompts = make_prompts(vocab_size, max(concurrency, MIN_REQUESTS), length, (concurrency, number))
        for name, engine in engines.items():
            with _idling(other for other in engines.values() if other is not engine):
                measured.add(concurrency, name, engine.run(prompts, output, concurrency))


@contextmanager
def _idling(others: Iterator[Engine]) -> Iterator[None]:
    """Books what share of a core each of these used meanwhile."""
    watched = [(engine, engine.pid, cpu_seconds(engine.pid)) for engine in others if engine.pid is not None]
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    for engine, pid, before in watched:
        engine.idle_shares.append((cpu_seconds(pid) - before) / seconds)


def _prefix(run: Run, rounds: int, vocab_size: int) -> tuple[float, float]:
    """Seconds to the first token of two requests that begin alike, the first and the second; medians."""
    first, second = [], []
    for number in range(rounds + 1):
        shared = make_prompts(vocab_size, 1, SHARED_TOKENS, ("shared", number))[0]
        own = make_prompts(vocab_size, 2, OWN_TOKENS, ("own", number))
        first.append(run([shared + own[0]], 2, 1).ttfts[0])
        second.append(run([shared + own[1]], 2, 1).ttfts[0])
    return statistics.median(first), statistics.median(second)


def _small_pool(ours: PizarraServer, arguments: argparse.Namespace, vocab_size: int) -> Pool:
    """Many requests through a pool that holds few of them. Raises where one of them fails."""
    engine = ours.engine()
    block_bytes = engine["memory"]["kv_bytes"] // (engine["num_kv_blocks"] + 1)  # the null block is no block to use
    ours.unload(MODEL)
    options = {"max_num_seqs": POOL_REQUESTS, "num_threads": arguments.threads, "max_model_len": 1024}
    loaded = ours.load(MODEL, kv_cache_memory_bytes=(POOL_BLOCKS + 1) * block_bytes, **options)
    prompts = make_prompts(vocab_size, POOL_REQUESTS, arguments.input_tokens, "pool")
    load = run_load(ours.url, MODEL, prompts, arguments.output_tokens, POOL_REQUESTS)
    preemptions = ours.engine()["stats"]["preemptions_total"]
    return Pool(loaded["num_kv_blocks"], len(load.answers), preemptions, load.output_tokens_per_s)


def _say(start: float, text: str) -> None:
    print(f"{time.monotonic() - start:5.0f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
