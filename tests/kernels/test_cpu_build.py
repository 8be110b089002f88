"""Building the C++ kernels: by any compiler, cached by content, and a machine without one says so and still runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels import check_stamp
from kernels.cpu_ops import binding, build, folders
from kernels.cpu_ops.compilers import compilers
from kernels.cpu_ops.folders import CACHE_VARIABLE
from kernels.registry import BackendUnavailable, KernelChoice, remarks_on

REPORT = """
import torch
from kernels.cpu_ops import build
from kernels.registry import load_ops, remarks_on
_, choices = load_ops(["cpu_ops"], torch.bfloat16, torch.device("cpu"), 2)
for choice in choices:
    print(choice.op, choice.backend, choice.reason.replace(chr(10), " "))
if choices[0].backend == "cpu_ops":
    print("compiler:", build.obtain().compiler)
for remark in remarks_on(choices):
    print("remark:" + remark.name, remark.wished, remark.found, remark.reason.replace(chr(10), " "))
"""


def report(**environment: str) -> dict[str, str]:
    """op -> "backend reason" as a fresh process chooses under `environment`, and its remarks."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT], capture_output=True, text=True, env=environment, timeout=380, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def script(path: Path, text: str) -> Path:
    """A program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and in place of the kernels, which take a while to build, one source."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    build.outcome.cache_clear()
    yield tmp_path / "cache"
    build.outcome.cache_clear()


def one() -> int:
    """What the library says, as a new process finds it."""
    build.outcome.cache_clear()
    return int(build.library().one())


# --- compilers ---


def test_without_a_compiler_the_reference_serves_and_the_reason_is_told(tmp_path: Path) -> None:
    chosen = report(PATH=str(tmp_path), PIZARRA_KERNEL_CACHE=str(tmp_path), PYTHONPATH=str(Path.cwd()))
    assert chosen["linear"].startswith("reference cpu_ops: no C++ compiler found; install g++ 11 or clang 14, or newer")


def test_a_failing_compiler_is_told_and_called_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every op asks for the library."""
    failing = "echo $1 >> {calls}; [ $1 = --version ] || {{ echo 'error: no such header' >&2; exit 1; }}"
    script(tmp_path / "bin" / "g++", failing.format(calls=tmp_path / "calls"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + ":/bin")
    for name in ("c++", "clang++"):
        script(tmp_path / "bin" / name, "echo 'error: too old' >&2; exit 1")
    for _ in range(3):
        with pytest.raises(
            BackendUnavailable, match=r"g\+\+ failed: error: no such header.*clang\+\+ failed: error: too old"
        ):
            build.library()
    assert (tmp_path / "calls").read_text().split() == ["--version", build.FLAGS[0]]
    assert not list(cache.iterdir())


@pytest.mark.parametrize("named", ["broken-cxx", "absent-cxx"])
def test_the_next_compiler_is_tried_and_told(
    named: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "broken-cxx", "echo 'error: no such header' >&2; exit 1")
    monkeypatch.setenv("CXX", str(tmp_path / named))
    assert one() == 1
    (told,) = build.remarks()
    assert told.name == "kernel_compiler"
    assert told.wished.endswith(named)
    assert told.found == compilers()[1].name
    assert ("no such header" if named == "broken-cxx" else "cannot be run: No such file") in told.reason


def test_the_compilers_are_found_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x86-g++-12", "ccache"):
        script(tmp_path / name, "")
    for name, real in (("g++", "x86-g++-12"), ("c++", "x86-g++-12"), ("clang++", "ccache")):
        (tmp_path / name).symlink_to(tmp_path / real)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "ccache g++")
    wrapped = (str(tmp_path / "ccache"), "g++")
    assert [each.command for each in compilers()] == [wrapped, (str(tmp_path / "g++"),), (str(tmp_path / "clang++"),)]
    monkeypatch.setenv("CXX", "c++")
    assert [each.name for each in compilers()] == [str(tmp_path / "c++"), str(tmp_path / "clang++")]
    monkeypatch.setenv("CXX", "clang++")
    assert [each.name for each in compilers()] == [str(tmp_path / "clang++"), str(tmp_path / "g++")]
    monkeypatch.delenv("CXX")
    assert [each.name for each in compilers()] == [str(tmp_path / "g++"), str(tmp_path / "clang++")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("compiler", "march"),
    [("g++", ""), ("g++-11", ""), ("clang++", ""), ("clang++", "haswell"), ("clang++", "x86-64")],
)
def test_every_compiler_builds_kernels_that_are_right(compiler: str, march: str) -> None:
    """Each op passes the checks of a first load: it is right, and a row has the same bits whatever stands beside it."""
    if shutil.which(compiler) is None:
        pytest.skip(f"this machine has no {compiler}")
    if march == "haswell" and "avx2" not in build.processor():
        pytest.skip("this processor has no avx2")
    cache = {CACHE_VARIABLE: os.environ[CACHE_VARIABLE], build.MARCH_VARIABLE: march}
    chosen = report(CXX=compiler, PATH="/usr/bin:/bin", PYTHONPATH=str(Path.cwd()), **cache)
    assert chosen.pop("compiler:") == shutil.which(compiler)
    assert chosen["linear"].startswith("cpu_ops")
    assert {op: why for op, why in chosen.items() if why.strip() != "cpu_ops"} == {}


# --- the cache ---


def test_a_library_is_built_once_and_anew_when_a_source_changes(cache: Path) -> None:
    assert one() == 1
    first = [(path.name, path.stat().st_mtime_ns) for path in cache.iterdir()]
    assert one() == 1
    assert [(path.name, path.stat().st_mtime_ns) for path in cache.iterdir()] == first
    (build.SOURCES / "one.cpp").write_text('extern "C" int one() { return 2; }\n')
    assert one() == 2


def test_another_version_of_the_compiler_builds_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, version = compilers()[0].name, tmp_path / "version"
    version.write_text("12.1")
    cxx = script(tmp_path / "my-cxx", f'[ "$1" = --version ] && exec cat {version}\nexec {real} "$@"')
    monkeypatch.setenv("CXX", str(cxx))
    assert [one(), one(), len(list(cache.iterdir()))] == [1, 1, 1]
    version.write_text("12.2")
    assert [one(), len(list(cache.iterdir()))] == [1, 2]


def test_a_library_serves_where_there_is_no_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build.obtain()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert build.obtain() == build.Built(built.path)
    monkeypatch.setenv("CXX", "absent-cxx")
    (told,) = build.obtain().remarks
    assert (told.name, told.reason) == ("kernel_library", "absent-cxx cannot be run: No such file or directory")
    (build.SOURCES / "one.cpp").write_text('extern "C" int one() { return 2; }\n')
    with pytest.raises(BackendUnavailable, match="absent-cxx cannot be run"):
        build.obtain()


def test_an_unwritable_cache_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    chosen = report(PATH="/usr/bin:/bin", PIZARRA_KERNEL_CACHE=str(blocked), PYTHONPATH=str(Path.cwd()))
    assert "cannot build into" in chosen["linear"]


@pytest.mark.parametrize("method", ["exists", "mkdir"])
def test_a_cache_that_may_not_be_searched_is_told(method: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may do anything, so the refusal is made up."""

    real = getattr(Path, method)

    def refused(path: Path, *given: object, **named: object) -> object:
        if cache not in (path, *path.parents):
            return real(path, *given, **named)
        raise PermissionError(13, "Permission denied", str(path))

    cache.mkdir()
    monkeypatch.setattr(Path, method, refused)
    with pytest.raises(BackendUnavailable, match=r"cannot build into .*Permission denied"):
        build.library()


def test_without_a_cache_folder_of_the_users_a_private_one_serves_and_is_told(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-home").write_text("not a folder")
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "no-home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    built = build.obtain()
    assert built.path.parent == folders.private_folder() == tmp_path / f"pizarra-kernels-{os.getuid()}"
    assert built.path.parent.stat().st_mode & 0o777 == 0o700
    (told,) = built.remarks
    assert (told.name, told.found) == ("kernel_cache", str(built.path.parent))
    assert told.wished == str(tmp_path / "no-home" / ".cache" / "pizarra" / "kernels")
    assert "Not a directory" in told.reason

    built.path.parent.chmod(0o777)
    with pytest.raises(BackendUnavailable, match="others than this user may write there"):
        build.obtain()


def test_a_user_without_a_home_has_the_private_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert folders.cache_folders() == [folders.private_folder()]


def test_who_starts_together_builds_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = tmp_path / "calls", compilers()[0].name
    slow = f'[ "$1" = --version ] || {{ echo called >> {calls}; sleep 0.3; }}\nexec {real} "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "slow-cxx", slow)))
    together = threading.Barrier(3)

    def start() -> build.Built:
        together.wait()
        return build.obtain()

    with ThreadPoolExecutor(3) as pool:
        assert len({future.result() for future in [pool.submit(start) for _ in range(3)]}) == 1
    assert calls.read_text() == "called\n" * 2  # one compiles, one links
    assert len(list(cache.iterdir())) == 1


# --- processors ---


@pytest.mark.parametrize(
    ("march", "vendor", "intel"),
    [
        ("native", "GenuineIntel", True),
        ("native", "AuthenticAMD", False),
        ("graniterapids", "AuthenticAMD", True),
        ("znver5", "GenuineIntel", False),
    ],
)
def test_code_for_an_intel_is_told_from_other(
    march: str, vendor: str, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "processor", lambda: f"x86_64vendor_id\t: {vendor}")
    monkeypatch.setenv(build.MARCH_VARIABLE, march)
    assert ("-DPIZARRA_INTEL" in build.flags()) is intel


def test_refused_tiles_are_told_and_have_a_stamp_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found right with matrix tiles says nothing of the code that runs without them."""
    choices, identities = [KernelChoice("linear", "cpu_ops", "")], set()
    for answer, told in ((-1, []), (1, []), (0, ["kernel_matrix_tiles"])):
        monkeypatch.setattr(binding, "symbol", lambda name, answer=answer: lambda: answer)
        assert [remark.name for remark in remarks_on(choices)] == told
        stamp = check_stamp.stamp_of("cpu_ops", torch.device("cpu"))
        assert stamp is not None
        identities.add(stamp.identity)
    assert len(identities) == 3


@pytest.mark.timeout(400)
def test_a_library_whose_tiles_are_refused_serves_and_says_so() -> None:
    if "avx512bw" not in build.processor():
        pytest.skip("this processor has no avx512bw")
    cache = {CACHE_VARIABLE: os.environ[CACHE_VARIABLE], build.EMULATE_VARIABLE: "refused"}
    chosen = report(PATH="/usr/bin:/bin", PYTHONPATH=str(Path.cwd()), **cache)
    assert chosen.pop("compiler:")
    assert {op: why for op, why in chosen.items() if why.strip() != "cpu_ops"}.keys() == {"remark:kernel_matrix_tiles"}
    assert chosen["remark:kernel_matrix_tiles"].startswith("granted refused the processor has AMX's matrix tiles")


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
def test_the_paths_of_other_processors(needs: str, setting: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All cases of the C++ ops, built for a processor with fewer instructions than this one may have, or with tiles."""
    if needs not in build.processor():
        pytest.skip(f"this processor has no {needs}")
    files = ("test_ops.py", "test_group_linear.py", "test_linear.py")
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "(cpu_ops or linear) and not triton"]
    call += [f"tests/kernels/{file}" for file in files]
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    library = build.obtain().path
    stamp = library.with_name(f"{library.name}.checked")
    stamp.unlink(missing_ok=True)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(call, cwd=root, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert stamp.exists(), "the run took another library"
