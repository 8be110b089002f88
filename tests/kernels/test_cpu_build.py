"""Building the C++ kernels: cached by content, and a machine without a compiler says so and still runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels.cpu_ops import build
from kernels.registry import BackendUnavailable

REPORT = """
import torch
from kernels.registry import load_ops
_, choices = load_ops(["cpu_ops"], torch.bfloat16, torch.device("cpu"), 2)
for choice in choices:
    print(choice.op, choice.backend, choice.reason)
"""


def report(**environment: str) -> dict[str, str]:
    """op -> "backend reason" as a fresh process chooses under `environment`."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT], capture_output=True, text=True, env=environment, timeout=100, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_without_a_compiler_the_reference_serves_and_the_reason_is_told(tmp_path: Path) -> None:
    chosen = report(PATH=str(tmp_path), PIZARRA_KERNEL_CACHE=str(tmp_path), PYTHONPATH=str(Path.cwd()))
    assert chosen["linear"].startswith("reference cpu_ops: no C++ compiler found; install g++")


def test_an_unwritable_cache_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    chosen = report(PATH="/usr/bin:/bin", PIZARRA_KERNEL_CACHE=str(blocked), PYTHONPATH=str(Path.cwd()))
    assert "cannot build into" in chosen["linear"]


def test_a_failing_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken-cxx"
    compiler.write_text("#!/bin/sh\necho 'error: no such header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("PIZARRA_KERNEL_CACHE", str(tmp_path / "cache"))
    build.library.cache_clear()
    try:
        with pytest.raises(BackendUnavailable, match="no such header"):
            build.library()
    finally:
        build.library.cache_clear()
    assert not list((tmp_path / "cache").iterdir())


def one_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the kernels, which take a while to build."""
    folder.mkdir()
    (folder / "one.cpp").write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(build, "SOURCES", folder)


def test_a_library_is_built_once_and_anew_when_a_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, sources = tmp_path / "cache", tmp_path / "sources"
    monkeypatch.setenv("PIZARRA_KERNEL_CACHE", str(cache))
    one_source(sources, monkeypatch)
    assert build.library.__wrapped__().one() == 1
    first = [(path.name, path.stat().st_mtime_ns) for path in cache.iterdir()]
    assert build.library.__wrapped__().one() == 1
    assert [(path.name, path.stat().st_mtime_ns) for path in cache.iterdir()] == first
    (sources / "one.cpp").write_text('extern "C" int one() { return 2; }\n')
    assert build.library.__wrapped__().one() == 2


def test_who_starts_together_builds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, cache, sources, cxx = (tmp_path / name for name in ("calls", "cache", "sources", "slow-cxx"))
    one_source(sources, monkeypatch)
    cxx.write_text(f'#!/bin/sh\necho called >> {calls}\nsleep 0.3\nexec {build.compiler()} "$@"\n')
    cxx.chmod(0o755)
    monkeypatch.setenv("CXX", str(cxx))
    monkeypatch.setenv("PIZARRA_KERNEL_CACHE", str(cache))
    together = threading.Barrier(3)

    def start() -> int:
        together.wait()
        library = build.library.__wrapped__()
        return int(library.one())

    with ThreadPoolExecutor(3) as pool:
        assert [future.result() for future in [pool.submit(start) for _ in range(3)]] == [1, 1, 1]
    assert calls.read_text() == "called\n" * 2  # one compiles, one links
    assert len(list(cache.iterdir())) == 1


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("needs", "setting"),
    [
        pytest.param("sse2", {build.MARCH_VARIABLE: "x86-64"}, id="x86-64"),
        pytest.param("avx2", {build.MARCH_VARIABLE: "haswell"}, id="haswell"),
        pytest.param("avx_vnni", {build.MARCH_VARIABLE: "alderlake"}, id="alderlake"),
        pytest.param("avx512bw", {build.MARCH_VARIABLE: "skylake-avx512"}, id="skylake-avx512"),
        pytest.param("avx512bw", {build.EMULATE_VARIABLE: "1"}, id="emulated tiles"),
    ],
)
def test_the_paths_of_other_processors(needs: str, setting: dict[str, str], tmp_path: Path) -> None:
    """All cases of the C++ ops, built for a processor with fewer instructions than this one may have, or with tiles."""
    if needs not in build.processor():
        pytest.skip(f"this processor has no {needs}")
    files = ("test_ops.py", "test_group_linear.py", "test_linear.py")
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "(cpu_ops or linear) and not triton"]
    call += [f"tests/kernels/{file}" for file in files]
    environment = os.environ | setting | {build.CACHE_VARIABLE: str(tmp_path)}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(call, cwd=root, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
