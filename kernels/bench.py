"""Times each op of each backend on this machine against its roof: `python -m kernels.bench`.

The roof of a call is the longer of two times: its bytes over the memory bandwidth, its operations over the rate of
torch's own matrix product, both the best of the same run, measured before each op (`kernels.roofs`). Work that a
processor's cache holds, such as the norm of one row, may pass it; small work never comes near, since a call has a cost
of its own. Backends take turns, figures are medians. Products of codes round their activations where a load by itself
would have them do so. On a GPU torch's matrix product and attention stand beside ours ("torch"). Prints Markdown;
progress goes to stderr.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from kernels.bench_shapes import SHAPES, Place, Work
from kernels.bench_work import TIMED, works
from kernels.ops import Ops
from kernels.registry import KERNELS, THREADS, BackendUnavailable, backend_ops, resolve
from kernels.roofs import Call, Roofs, interleaved

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
TORCH = "torch"  # the lines beside ours
HEADER = "| op | shape | rows | by | us | rate | of the roof |\n|---|---|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Line:
    """One measured line: seconds of one call, and what it is measured against."""

    op: str
    shape: str
    rows: int
    backend: str
    seconds: float
    num_bytes: float
    operations: float
    roofs: Roofs

    @property
    def share(self) -> float:
        """Of the roof: the least that the work takes, over what it took."""
        return self.roofs.seconds(self.num_bytes, self.operations) / self.seconds

    @property
    def by_memory(self) -> bool:
        """Whether its bytes bound it, rather than its operations."""
        return self.num_bytes / self.roofs.bandwidth >= self.operations / self.roofs.rate

    @property
    def rate(self) -> str:
        """Bytes or operations a second, whichever the roof is of."""
        if self.by_memory:
            return rate_text(self.num_bytes / self.seconds)
        return rate_text(self.operations / self.seconds, 1e12, "TFLOP/s")

    def markdown(self) -> str:
        """A row of the table."""
        return (
            f"| {self.op} | {self.shape} | {self.rows} | {self.backend} | {self.seconds * 1e6:.1f} | {self.rate} "
            f"| {self.share:.0%} |"
        )


def rate_text(rate: float, unit: float = 1e9, name: str = "GB/s") -> str:
    """A rate for people."""
    value = rate / unit
    return f"{value:.{0 if value >= 100 else 1 if value >= 1 else 3}f} {name}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to time. backends: in the order of the lines. contexts: keys that a row of attention sees."""

    backends: Sequence[str]
    ops: Sequence[str]
    rows: Sequence[int]
    contexts: Sequence[int]
    rounds: int = 5
    least_s: float = 0.01


def measure(place: Place, wish: Wish, roofs: Roofs, failed: Callable[[str], None]) -> Iterator[Line]:
    """A line for each backend that has the op; `failed` is told of those that cannot do a shape."""
    named = {
        backend: backend_ops([backend], place.dtype, place.device) for backend in wish.backends if backend != TORCH
    }
    for op in wish.ops:
        for rows in wish.rows:
            for work in works(place, [op], rows, wish.contexts):
                yield from _measure(work, named, place, wish, roofs, failed)


def _measure(
    work: Work,
    named: dict[str, Ops],
    place: Place,
    wish: Wish,
    roofs: Roofs,
    failed: Callable[[str], None],
) -> Iterator[Line]:
    runs = {}
    for backend in wish.backends:
        if backend != TORCH and backend not in KERNELS[work.op]:
            continue
        try:
            calls = _calls(work, backend, named)
            for call in calls[:1]:
                call()
        except Exception as error:  # a shape that a backend refuses must not end a table of a hundred lines
            failed(f"{work.op}, {work.shape}, {work.rows} rows, {backend}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if calls:
            runs[backend] = calls
    medians = interleaved(wish.rounds, list(runs.values()), place.device, wish.least_s)
    for backend, seconds in zip(runs, medians, strict=True):
        yield Line(work.op, work.shape, work.rows, backend, seconds, work.num_bytes, work.operations, roofs)


def _calls(work: Work, backend: str, named: dict[str, Ops]) -> Sequence[Call]:
    if backend != TORCH:
        return work.make(named[backend])
    return work.beside() if work.beside else []


def describe(place: Place, roofs: Roofs, name: str) -> str:
    """What was measured, and with what."""
    where = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else f"{os.cpu_count()} CPU threads"
    kind = "copy" if place.device.type == "cuda" else "read"
    return (
        f"{datetime.datetime.now().astimezone():%Y-%m-%d}, {where}, torch {torch.__version__}, shapes of {name}, "
        f"{str(place.dtype).removeprefix('torch.')}. {kind.capitalize()} bandwidth {rate_text(roofs.bandwidth)}, "
        f"matrix product {rate_text(roofs.rate, 1e12, 'TFLOP/s')}\n"
    )


def usable(backends: Sequence[str], num_threads: int) -> list[str]:
    """Those that work here; a backend that was asked for and does not is told of."""
    found = []
    for backend in backends:
        try:
            if backend in THREADS:
                resolve(THREADS[backend])(num_threads)
            if backend != TORCH:
                resolve(KERNELS["silu_mul"][backend])
        except BackendUnavailable as error:
            _say(f"{backend}: {error}\n")
        else:
            found.append(backend)
    return found


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _tell(text: str) -> None:
    """Of the progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main() -> None:
    """Measures and prints."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if on_gpu else "cpu")
    parser.add_argument("--backend", nargs="+", help="default: cpu_ops and reference; on a GPU triton_ops and torch")
    parser.add_argument("--op", nargs="+", choices=TIMED, default=TIMED, metavar="OP")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 16, 64, 512])
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--model", choices=SHAPES, default="135M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    device = torch.device("cuda:0" if chosen.device == "cuda" else "cpu")
    default = ["triton_ops", TORCH] if device.type == "cuda" else ["cpu_ops", "reference"]
    place = Place(SHAPES[chosen.model], DTYPES[chosen.dtype], device)
    backends = usable(chosen.backend or default, chosen.threads)
    wish = Wish(backends, chosen.op, chosen.rows, chosen.contexts, chosen.rounds)
    roofs, lines = _measure_all(place, wish, chosen.threads, small=chosen.model == "tiny")
    _say("\n".join([describe(place, roofs, chosen.model), HEADER, *(line.markdown() for line in lines)]))


def _measure_all(place: Place, wish: Wish, num_threads: int, *, small: bool) -> tuple[Roofs, list[Line]]:
    """The best roofs of those measured before each op, and all lines against them: a busy moment lowers no roof."""
    lines: list[Line] = []
    roofs = Roofs(0, 0)
    for op in wish.ops:
        torch.set_num_threads(num_threads)
        roofs = roofs.best(Roofs.measure(place.device, place.dtype, small=small))
        if THREADS.keys() & set(wish.backends):
            torch.set_num_threads(1)  # as in an engine: two pools of threads on the same cores slow each other down
        with torch.inference_mode():
            for line in measure(place, replace(wish, ops=[op]), roofs, lambda fault: _tell(f"failed: {fault}")):
                _tell(line.markdown())
                lines.append(line)
    return roofs, [replace(line, roofs=roofs) for line in lines]


if __name__ == "__main__":
    main()
