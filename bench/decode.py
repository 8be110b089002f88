"""Tokens per second from codes, from bf16, and of transformers `generate`, all of the same weights: `make bench`.

A quantised model is loaded as it is stored, and once more with its weights dequantised to bf16. All sides take the same
prompts and make the same number of greedy tokens, in turns (A B A B) in one process, so that a noisy machine hits all.
The time is that of whole answers, prompts included. transformers runs in each dtype it can; the faster one is what we
compare with. Prints medians and ratios as a Markdown table.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.bandwidth import read_bandwidth
from bench.transformers_llama import build, export
from engine.checkpoint import read_checkpoint
from engine.config import LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.loading import LoadedEngine, load_engine

PROMPT_TOKENS = 32
POOL_BYTES = 256 << 20
PEER_DTYPES = (torch.bfloat16, torch.float32)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="folder or file; else the default model, fetched")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    options = LoadOptions(
        speculation="off", kv_cache_memory_bytes=POOL_BYTES, max_model_len=1024, num_threads=arguments.threads
    )
    model = arguments.model or default_model()
    with tempfile.TemporaryDirectory() as folder:
        export(read_checkpoint(model), Path(folder), torch.bfloat16)
        stored, plain = (
            load_engine(path, options, lambda stage, done, total, message: None) for path in (model, Path(folder))
        )
    peers = {dtype: build(stored.info, dtype) for dtype in PEER_DTYPES}
    report(stored, plain, arguments.threads)
    for batch in arguments.batches:
        compare({"as stored": stored, "bf16": plain}, peers, batch, arguments)


def default_model() -> Path:
    """The default model in a cache of its own under .cache/, pulled the way the product pulls it."""
    import asyncio

    from app.catalog import Catalog, UnknownModelError

    root = Path(__file__).resolve().parent.parent
    catalog = Catalog(root / ".cache" / "bench", root / "assets")
    try:
        return catalog.resolve(catalog.default_id).path
    except UnknownModelError:
        return asyncio.run(catalog.pull(catalog.default_id, lambda *args, **kwargs: None)).path


def report(loaded: LoadedEngine, plain: LoadedEngine, threads: int) -> None:
    """What was measured, and with what."""
    bandwidth = read_bandwidth(torch.device("cpu")) / 1e9
    kernels = ", ".join(sorted({choice.backend for choice in loaded.runner.kernels}))
    today, device = f"{datetime.datetime.now().astimezone():%Y-%m-%d}", loaded.plan.device.name
    print(f"{today}, {device}, {threads} threads, read bandwidth {bandwidth:.1f} GB/s")
    print(f"{loaded.info.path.name}, {loaded.runner.dtype}, kernels: {kernels}, exactness: {loaded.exactness.level}")
    own, dense = loaded.runner.weights_bytes, plain.runner.weights_bytes
    print(f"weights: {own / 1e6:.1f} MB as stored, {dense / 1e6:.1f} MB in bf16 ({own / dense:.1%})\n")
    print("| batch | Pizarra tok/s | its bf16 | transformers bf16 | transformers fp32 | to its bf16 | to the faster |")
    print("|---|---|---|---|---|---|---|")


def compare(
    engines: dict[str, LoadedEngine], peers: dict[torch.dtype, Any], batch: int, arguments: argparse.Namespace
) -> None:
    """One line of the table: medians over rounds that alternate."""
    prompts = make_prompts(engines["as stored"].info.config.vocab_size, batch)
    new = arguments.new_tokens
    runs: dict[Any, Callable[[], None]] = {}
    for name, loaded in engines.items():
        runs[name] = lambda loaded=loaded: ours(loaded.engine, prompts, new)  # type: ignore[misc]
    for dtype, peer in peers.items():
        runs[dtype] = lambda peer=peer: theirs(peer, prompts, new, arguments.threads)  # type: ignore[misc]
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    for round_number in range(arguments.rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if round_number > 0:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    speed = {name: batch * new / statistics.median(times) for name, times in seconds.items()}
    fastest = max(speed[dtype] for dtype in peers)
    columns = " | ".join(f"{speed[name]:.1f}" for name in runs)
    own = speed["as stored"]
    print(f"| {batch} | {columns} | {own / speed['bf16']:.2f} | {own / fastest:.2f} |", flush=True)


def make_prompts(vocab_size: int, batch: int) -> list[list[int]]:
    """Prompts of one length, so that the peer needs no padding."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (batch, PROMPT_TOKENS), generator=generator).tolist()  # type: ignore[no-any-return]


def ours(engine: Engine, prompts: list[list[int]], new_tokens: int) -> None:
    """All prompts at once through the engine."""
    torch.set_num_threads(1)  # as in the engine process: the kernels have threads of their own
    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, sampling)
    while engine.has_work():
        engine.step()


def theirs(model: Any, prompts: list[list[int]], new_tokens: int, threads: int) -> None:
    """All prompts at once through `generate`."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        model.generate(
            torch.tensor(prompts),
            attention_mask=torch.ones(len(prompts), PROMPT_TOKENS, dtype=torch.int64),
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )


if __name__ == "__main__":
    main()
