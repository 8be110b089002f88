"""The engines under comparison, each a process of its own that answers over a pipe (bench/peer_protocol.py).

Owns how each is started, with which instructions, and what became of it. Knows nothing of what is measured. Invariants:
an engine that crashes, hangs or refuses is a `PeerError` that says which and why, never an end of the run; whatever was
started has ended when `close` returns.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.compare_results import OURS
from bench.servers import ROOT, cpu_seconds, vllm_variables

PEERS = ROOT / ".cache" / "peers"
LOAD_PATIENCE_S, PATIENCE_S, STOP_PATIENCE_S = 600.0, 240.0, 20.0  # vLLM compiles when it is loaded for the first time
LOG_END = 600
# What keeps each to the instructions of an older processor, by -march's names. llama.cpp has a build of its own.
ONEDNN_ISA = {"haswell": "AVX2", "skylake-avx512": "AVX512_CORE", "cooperlake": "AVX512_CORE_BF16"}
ATEN_CAPABILITY = {"haswell": "avx2", "skylake-avx512": "avx512", "cooperlake": "avx512"}
MARCHES = tuple(ONEDNN_ISA)
# Its plugin does not notice what oneDNN is kept from, asks for bf16, or for products of int8, and fails
OPENVINO_LIMITS: Mapping[str, Mapping[str, Any]] = {
    "haswell": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0},
    "skylake-avx512": {"INFERENCE_PRECISION_HINT": "f32"},
}


class PeerError(RuntimeError):
    """What became of an engine that could not be measured."""


@dataclass(frozen=True, slots=True)
class Start:
    """How an engine is started. folder: the working directory; ours is the repository, a peer's holds `bench` alone,
    since the repository would lend it our packages `kernels` and `engine`."""

    name: str
    command: Sequence[str]
    folder: Path
    model: Path
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Models:
    """One model as each engine takes it: a GGUF file, and the same weights dequantised to bf16 as a folder."""

    gguf: Path
    bf16: Path


class Worker:
    """One engine's process. It is started when it is first asked something, and anew after it ended."""

    def __init__(self, start: Start, log: Path, threads: int, max_seqs: int, max_len: int) -> None:
        self.start = start
        self.log = log
        self.described: dict[str, Any] = {}
        self.idle_shares: list[float] = []
        self._options = {"model": str(start.model), "threads": threads, "max_seqs": max_seqs, "max_len": max_len}
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    @property
    def name(self) -> str:
        return self.start.name

    def load(self) -> None:
        """Starts it and loads the model, where that is not done. PeerError."""
        if self._process is not None and self._process.poll() is None:
            return
        self._unread = b""
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self.start.command,
                    cwd=self.start.folder,
                    env={**os.environ, **self.start.variables},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise PeerError(f"does not start: {error}; sh bench/peers.sh sets peers up") from error
        try:
            self.described = self._ask(LOAD_PATIENCE_S, "load", self._options)
        except PeerError:
            self._kill()  # asked anything else, it would say what it lacks without a model, not why it has none
            raise

    def ask(self, what: str, **arguments: Any) -> Any:
        """The answer to one question. PeerError when there is none; its process has ended then, or said why."""
        self.load()
        return self._ask(PATIENCE_S, what, arguments)

    def cpu_seconds(self) -> float | None:
        """CPU time until now; None where it does not run."""
        if self._process is None or self._process.poll() is not None:
            return None
        return cpu_seconds(self._process.pid)

    def close(self) -> None:
        """Ends it, and all that it started."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_PATIENCE_S)
        self._kill()

    def _ask(self, patience_s: float, what: str, arguments: Mapping[str, Any]) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        line = json.dumps({"do": what, **arguments})
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(self._obituary(what)) from error
        answer = json.loads(self._line(time.monotonic() + patience_s, what))
        if "error" in answer:
            raise PeerError(f"{what}: {answer['error']}")
        return answer["found"]

    def _line(self, deadline: float, what: str) -> bytes:
        """The next line of its stdout. PeerError when it ends, or takes too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._kill()
                raise PeerError(f"{what}: took too long and was ended")
            piece = os.read(pipe, 1 << 16)
            if not piece:
                raise PeerError(self._obituary(what))
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _obituary(self, what: str) -> str:
        """How its process ended, with the end of its log."""
        status = self._kill()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        log = " ".join(self.log.read_text(encoding="utf-8", errors="replace").split())
        return f"{what}: its process {how}; its log ends: {log[-LOG_END:]}"

    def _kill(self) -> int:
        """Ends the process group; the exit status it has, or had before."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # an end of its own says more than ours
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        return status


def starts(peers: Path, models: Models, threads: int, march: str | None, folder: Path) -> list[Start]:
    """All engines, ours first. peers: where bench/peers.sh set them up. march: an older processor whose instructions
    all have to do with. folder: an empty one for what they need in theirs."""
    lone = folder / "path"
    lone.mkdir()
    (lone / "bench").symlink_to(ROOT / "bench")
    limits = (
        {}
        if march is None
        else {"ONEDNN_MAX_CPU_ISA": ONEDNN_ISA[march], "ATEN_CPU_CAPABILITY": ATEN_CAPABILITY[march]}
    )
    own_limits = {} if march is None else {"PIZARRA_KERNEL_MARCH": march}
    cached = {"PIZARRA_KERNEL_CACHE": os.environ.get("PIZARRA_KERNEL_CACHE", str(ROOT / ".cache" / "kernels"))}

    def module(python: Path | str, name: str) -> list[str]:
        return [str(python), "-m", f"bench.{name}"]

    found = [Start(OURS, module(sys.executable, "peer_pizarra"), ROOT, models.gguf, {**cached, **own_limits, **limits})]
    python = peers / "openvino" / "bin" / "python"
    further = OPENVINO_LIMITS.get(march or "", {})
    properties = [json.dumps(further)] if further else []
    found.append(Start("OpenVINO", [*module(python, "peer_openvino"), *properties], lone, models.gguf, limits))
    for name, build in llama_builds(peers, march).items():
        variables = {"LD_LIBRARY_PATH": str(build)}
        command = [*module(sys.executable, "peer_llama_cpp"), str(native_programs(peers))]
        found.append(Start(name, command, lone, models.gguf, variables))
    if march is None:  # it chooses its kernels by the processor and cannot be told otherwise
        python = peers / "vllm" / "bin" / "python"
        variables = vllm_variables(peers / "vllm", f"0-{threads - 1}")
        found.append(Start("vLLM", module(python, "peer_vllm"), lone, models.bf16, variables))
    found.append(Start("transformers", module(sys.executable, "peer_transformers"), lone, models.bf16, limits))
    return found


def native_programs(peers: Path) -> Path:
    """llama.cpp's programs, which are one and the same for all builds of its kernels."""
    return peers / "llama.cpp" / "native" / "bin"


def llama_builds(peers: Path, march: str | None) -> dict[str, Path]:
    """llama.cpp's kernels by the name they are shown under. Where the processor has AMX, those without it as well:
    with it, llama.cpp crashes on prompts."""
    home = peers / "llama.cpp"
    if march is not None:
        return {"llama.cpp": home / march / "bin"}
    native = {"llama.cpp": home / "native" / "bin"}
    if "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return {"llama.cpp with AMX": native["llama.cpp"], "llama.cpp": home / "cooperlake" / "bin"}
    return native
