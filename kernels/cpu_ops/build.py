"""Builds the C++ sources once per machine and binds them.

Owns the cache: a library's name holds a hash of the sources, the flags and the processor, and one of the compiler, so a
change of any of them builds anew, and a failed or half-written build is never loaded. Knows nothing of tensors. Where
no compiler builds them and nobody has before, `library()` raises BackendUnavailable with the reasons; the registry then
serves another backend. Invariant: a process tries once, and what is not as was wished is in `remarks`.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kernels.cpu_ops.compilers import INSTALL, NEEDED, Compiler, CompilerFault, compilers
from kernels.cpu_ops.folders import cache_folders, make_ready
from kernels.registry import BackendUnavailable, Remark

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-pthread")
MARCH_VARIABLE = "PIZARRA_KERNEL_MARCH"
EMULATE_VARIABLE = "PIZARRA_KERNEL_EMULATE_AMX"


@dataclass(frozen=True, slots=True)
class Built:
    """A library that is there, by which compiler (empty where that is not known), and what is not as was wished."""

    path: Path
    compiler: str = ""
    remarks: tuple[Remark, ...] = ()


class FolderUnusable(BackendUnavailable):
    """No library is in the folder, and none can be put there."""


def flags() -> tuple[str, ...]:
    """What the compiler is told: the instructions of this processor, or of an older one named by $PIZARRA_KERNEL_MARCH
    (such as haswell for AVX2, skylake-avx512 for AVX-512 without matrix tiles). With $PIZARRA_KERNEL_EMULATE_AMX, which
    tests set, the code for matrix tiles runs where there are none (amx_emulated.h), or with "refused" finds that the
    system does not give them."""
    march, emulate = os.environ.get(MARCH_VARIABLE) or "native", os.environ.get(EMULATE_VARIABLE)
    intel = ("-DPIZARRA_INTEL",) if is_intel(march) else ()
    emulated = (f"-DPIZARRA_EMULATE_AMX={int(emulate != 'refused')}",) if emulate else ()
    return (*FLAGS, f"-march={march}", *intel, *emulated)


def is_intel(march: str) -> bool:
    """Whether code for `march` is for an Intel, of those that have AVX-512 with BF16: no compiler knows every model's
    name, so what is native is asked of the processor."""
    return "GenuineIntel" in processor() if march == "native" else not march.startswith("znver")


def processor() -> str:
    """What -march=native depends on: the machine, the processor's maker and name, and its instruction sets."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.machine() + platform.processor()
    lines = cpuinfo.read_text().splitlines()
    wanted = ("vendor_id", "model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(wanted)}))


def library() -> ctypes.CDLL:
    """The built and loaded library. Builds it in some ten seconds when it is not in the cache."""
    found = outcome()
    if isinstance(found, BackendUnavailable):
        raise BackendUnavailable(str(found)) from found
    return found[0]


def remarks() -> tuple[Remark, ...]:
    """What about the library is not as was wished; nothing where there is none."""
    found = outcome()
    return () if isinstance(found, BackendUnavailable) else found[1].remarks


@functools.cache
def outcome() -> tuple[ctypes.CDLL, Built] | BackendUnavailable:
    """What came of the one try: every op asks, and a build that fails takes as long each time."""
    try:
        built = obtain()
    except BackendUnavailable as failure:
        return failure
    try:
        return ctypes.CDLL(str(built.path)), built
    except OSError as error:
        return BackendUnavailable(f"the built library {built.path} does not load: {error}; delete it to build it anew")


def obtain() -> Built:
    """A library of these sources for this processor, built if need be, in the first folder that has or takes one."""
    sources = sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])
    name = f"cpu_ops-{_digest((*flags(), processor()), sources)}"
    folders, faults = cache_folders(), []
    for folder in folders:
        try:
            built = _obtain_in(folder, name)
        except FolderUnusable as fault:
            faults.append(str(fault))
            continue
        told = Remark("kernel_cache", str(folders[0]), str(folder), "; ".join(faults))
        return replace(built, remarks=(*built.remarks, told)) if faults else built
    raise FolderUnusable("; ".join(faults))


def _digest(texts: Iterable[str], files: Iterable[Path] = ()) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for text in texts:
        digest.update(text.encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _obtain_in(folder: Path, name: str) -> Built:
    """By the first compiler that does it. Where none is, or none does it, one that another built before."""
    try:
        make_ready(folder)
    except OSError as error:
        raise FolderUnusable(f"cannot build into {folder}: {error}") from error
    found, faults, unusable = compilers(), [], False
    try:
        for compiler in found:
            try:
                target = folder / f"{name}-{_digest([compiler.identity()])}.so"
                if not target.exists():
                    _build(compiler, target)
            except CompilerFault as fault:
                faults.append(str(fault))
                continue
            told = Remark("kernel_compiler", found[0].name, compiler.name, "; ".join(faults))
            return Built(target, compiler.name, (told,) if faults else ())
    except OSError as error:
        unusable = True
        faults.append(f"cannot build into {folder}: {error}")
    earlier = _newest(folder, name)
    if earlier is not None:
        told = Remark("kernel_library", "built here", f"{earlier.name}, built before", "; ".join(faults))
        return Built(earlier, remarks=(told,) if faults else ())
    if unusable:
        raise FolderUnusable("; ".join(faults))
    if not faults:
        raise BackendUnavailable(f"no C++ compiler found; {INSTALL}")
    raise BackendUnavailable(f"no compiler builds the C++ kernels, which takes {NEEDED}: {'; '.join(faults)}")


def _newest(folder: Path, name: str) -> Path | None:
    """The library of that name that was built last, by whichever compiler."""
    try:
        return max(folder.glob(f"{name}-*.so"), key=lambda path: path.stat().st_mtime_ns, default=None)
    except OSError:  # the folder cannot be looked into, so there is nothing to be had from it
        return None


def _build(compiler: Compiler, target: Path) -> None:
    """Every source by a process of its own, as many at a time as there are processors, and all of them linked."""
    with _alone_in(target.parent):
        if target.exists():  # another process has built it meanwhile
            return
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            sources = sorted(SOURCES.glob("*.cpp"))
            objects = [Path(folder) / f"{source.stem}.o" for source in sources]
            calls = [
                (*flags(), "-c", "-o", str(done), str(source)) for source, done in zip(sources, objects, strict=True)
            ]
            with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
                list(threads.map(lambda call: compiler.call(*call), calls))
            partial = Path(folder) / target.name
            compiler.call(*flags(), "-shared", "-o", str(partial), *map(str, objects))
            partial.rename(target)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """While it lasts, no other process that asks for it has the folder: of engines that start together one builds."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: then each builds, and the last one stays
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
