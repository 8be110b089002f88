"""Builds the C++ sources once per machine and binds them.

Owns the compiler call and the cache: the library's name holds a hash of the sources, the flags, the compiler and the
processor, so a change of any of them builds anew, and a failed or half-written build is never loaded. Knows nothing of
tensors. Where there is no compiler, `library()` raises BackendUnavailable with the reason; the registry then serves
another backend.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from kernels.registry import BackendUnavailable

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
BUILD_TIMEOUT_S = 120
CACHE_VARIABLE = "PIZARRA_KERNEL_CACHE"
MARCH_VARIABLE = "PIZARRA_KERNEL_MARCH"
EMULATE_VARIABLE = "PIZARRA_KERNEL_EMULATE_AMX"


def compiler() -> str:
    """The C++ compiler: $CXX, g++ or clang++. BackendUnavailable when there is none."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise BackendUnavailable("no C++ compiler found; install g++ (Debian: apt install g++) for the fast CPU kernels")


def cache_folder() -> Path:
    """Where libraries are kept: $PIZARRA_KERNEL_CACHE, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pizarra" / "kernels"


def flags() -> tuple[str, ...]:
    """What the compiler is told: the instructions of this processor, or of an older one named by $PIZARRA_KERNEL_MARCH
    (such as haswell for AVX2, skylake-avx512 for AVX-512 without matrix tiles). With $PIZARRA_KERNEL_EMULATE_AMX, which
    tests set, the code for matrix tiles runs where there are none (amx_emulated.h)."""
    emulated = ("-DPIZARRA_EMULATE_AMX",) if os.environ.get(EMULATE_VARIABLE) else ()
    return (*FLAGS, f"-march={os.environ.get(MARCH_VARIABLE) or 'native'}", *emulated)


def processor() -> str:
    """What -march=native depends on: the machine, the processor's name and its instruction sets."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.machine() + platform.processor()
    lines = cpuinfo.read_text().splitlines()
    wanted = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(wanted)}))


@functools.cache
def library() -> ctypes.CDLL:
    """The built and loaded library. Builds it in some ten seconds when it is not in the cache."""
    sources = sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])
    command = compiler()
    digest = hashlib.blake2b(digest_size=12)
    for part in (command, *flags(), processor()):
        digest.update(part.encode())
    for source in sources:
        digest.update(source.read_bytes())
    target = cache_folder() / f"cpu_ops-{digest.hexdigest()}.so"
    if not target.exists():
        with _alone_in(target.parent):
            if not target.exists():  # another process may have built it meanwhile
                _build(command, [source for source in sources if source.suffix == ".cpp"], target)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise BackendUnavailable(
            f"the built library {target} does not load: {error}; delete it to build it anew"
        ) from error


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """While it lasts, no other process that asks for it has the folder: of engines that start together one builds."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BackendUnavailable(f"cannot build into {folder}: {error}") from error
    try:
        with suppress(OSError):  # a file system without locks: then each builds, and the last one stays
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build(command: str, sources: list[Path], target: Path) -> None:
    """Every source by a compiler of its own, as many at a time as there are processors, and all of them linked."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            objects = [Path(folder) / f"{source.stem}.o" for source in sources]
            calls = [
                [command, *flags(), "-c", "-o", str(done), str(source)]
                for source, done in zip(sources, objects, strict=True)
            ]
            with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
                list(threads.map(_call, calls))
            partial = Path(folder) / target.name
            _call([command, *flags(), "-o", str(partial), *map(str, objects)])
            partial.rename(target)
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(f"{command} took more than {BUILD_TIMEOUT_S} s") from error
    except OSError as error:
        raise BackendUnavailable(f"cannot build into {target.parent}: {error}") from error


def _call(call: list[str]) -> None:
    done = subprocess.run(call, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise BackendUnavailable(f"{call[0]} failed: {done.stderr.strip()[-500:]}")
