"""The data folder: made, checked, and locked against a second server.

Owns the folder's layout and the lock. Knows nothing of what is kept inside. Invariant: the lock is the kernel's
(flock), so it ends with the process however that ends; the file's text only says who holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

FOLDERS = ("models", "kernels", "logs", "tmp")
DATABASE = "pizarra.db"


class HomeError(Exception):
    """The data folder cannot be used. The message says why and what to do."""


def prepare_home(home: Path) -> None:
    """Make the folder and prove that it can be written to."""
    try:
        for name in FOLDERS:
            (home / name).mkdir(parents=True, exist_ok=True)
            probe = home / name / f".write-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
    except OSError as error:
        raise unusable(home, error) from error


def unusable(home: Path, error: OSError) -> HomeError:
    return HomeError(
        f"the data folder {home} cannot be written: {error.strerror or error} ({error.filename}). "
        "Choose another with --home or PIZARRA_HOME, or change its owner"
    )


class HomeLock:
    """One server per data folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._fd: int | None = None

    def acquire(self, url: str) -> None:
        """Take the lock, or say who has it."""
        try:
            fd = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unusable(self._home, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 4096, 0)
            os.close(fd)
            raise HomeError(f"the data folder {self._home} is in use {_describe(holder)}") from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "url": url}).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def _describe(holder: bytes) -> str:
    try:
        found = json.loads(holder)
        return f"by process {found['pid']}, which serves {found['url']}. Use that one, or end it first"
    except (ValueError, KeyError, TypeError):
        return "by another process. End it first"


def running_url(home: Path) -> str | None:
    """Where the server of this data folder answers, or None when none runs."""
    path = home / "lock"
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return str(json.loads(file.read())["url"])
    except (OSError, ValueError, KeyError):
        return None
    return None
