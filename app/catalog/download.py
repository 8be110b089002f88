"""What every kind of download shares: its errors, its progress and cancellation, disk space, hashes, licences.

Owns the words in which a pull fails. Knows no source: wheels, the hub and local files each have their own module.
Invariant: nothing is written before the space for it was checked, and no file is kept whose hash is wrong.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from engine.core.sizing import format_bytes

CHUNK_BYTES = 1 << 20
REPORT_INTERVAL_S = 0.2
SPARE_BYTES = 64 << 20  # left free beside a download, so that the database and the logs can still be written

# Licences that ask nothing of the one who downloads. Any other is shown and must be accepted.
OPEN_LICENCES = frozenset(
    ("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "isc", "cc0-1.0", "cc-by-4.0", "unlicense")
)


class PullError(Exception):
    """A pull that did not come about. The message says what, where and the remedy."""


class PullCancelledError(PullError):
    """The operator ended it."""


class DiskSpaceError(PullError):
    """The download would not fit on the disk."""


class LicenceError(PullError):
    """The licence must be accepted first. Nothing was downloaded."""

    def __init__(self, subject: str, licence: str, licence_url: str) -> None:
        self.licence = licence
        self.licence_url = licence_url
        where = f" ({licence_url})" if licence_url else ""
        super().__init__(
            f"{subject} is under the licence {licence!r}{where}. Read it; if you accept it, pull again with "
            "accept_license (pizarra pull --accept-license)"
        )


class Progress(Protocol):
    """Where progress goes; a job's `stage` method has this shape."""

    def __call__(self, name: str, done: int = 0, total: int = 0, unit: str = "bytes", message: str = "") -> None: ...


class Watch:
    """One pull's progress and cancellation, asked and told from the downloading thread."""

    def __init__(self, progress: Progress, is_cancelled: Callable[[], bool]) -> None:
        self._progress = progress
        self._is_cancelled = is_cancelled
        self._reported_at = 0.0

    def check(self) -> None:
        if self._is_cancelled():
            raise PullCancelledError("the pull was cancelled")

    def stage(self, name: str, total: int = 0, message: str = "") -> None:
        """A new stage begins."""
        self.check()
        self._reported_at = time.monotonic()
        self._progress(name, 0, total, message=message)

    def report(self, name: str, done: int, total: int, message: str = "") -> None:
        """Bytes done so far; passed on at most a few times a second, and at the end."""
        self.check()
        now = time.monotonic()
        if done >= total > 0 or now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            self._progress(name, done, total, message=message)


def require_licence(subject: str, licence: str, licence_url: str, *, gated: bool, accepted: bool) -> None:
    """Refuse unless the licence is an open one or was accepted."""
    restricted = gated or licence.lower() not in OPEN_LICENCES
    if restricted and not accepted:
        raise LicenceError(subject, licence, licence_url)


def check_disk(folder: Path, needed_bytes: int, subject: str) -> None:
    """Refuse a download that the disk of `folder` cannot take."""
    free = shutil.disk_usage(folder).free
    if needed_bytes + SPARE_BYTES > free:
        raise DiskSpaceError(
            f"{subject} needs {format_bytes(needed_bytes)} on the disk of {folder} and {format_bytes(SPARE_BYTES)} to "
            f"spare, {format_bytes(free)} are free: short by {format_bytes(needed_bytes + SPARE_BYTES - free)}. "
            "Free some space, or move the data folder (PIZARRA_HOME)"
        )


def copy_hashed(source: IO[bytes], target: Path, total: int, watch: Watch) -> str:
    """Write `source` to `target`; returns the sha256 of what was written."""
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as stream:
        while chunk := source.read(CHUNK_BYTES):
            stream.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            watch.report("unpack", done, total, target.name)
    return digest.hexdigest()


def sha256_of(path: Path, watch: Watch) -> str:
    """The sha256 of a file as lower-case hex."""
    return _hash_file(path, hashlib.sha256(), watch)


def git_oid_of(path: Path, watch: Watch) -> str:
    """The id git gives a file's content, which is what the hub knows of files outside its large-file storage."""
    header = f"blob {path.stat().st_size}\0".encode()
    return _hash_file(path, hashlib.sha1(header, usedforsecurity=False), watch)


def _hash_file(path: Path, digest: hashlib._Hash, watch: Watch) -> str:
    total = path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            watch.report("verify", stream.tell(), total, path.name)
    return digest.hexdigest()


def check_hash(path: Path, expected: str, found: str, origin: str) -> None:
    """Remove and refuse a file whose hash is not the expected one."""
    if found != expected:
        path.unlink()
        raise PullError(
            f"{path.name} from {origin} has the hash {found}, expected is {expected}: it is damaged or not the file it "
            "claims to be, and was removed. Pull again; if it happens again, do not trust the source"
        )
