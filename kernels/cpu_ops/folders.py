"""Where built libraries are kept.

Owns the choice of the folder, and that nobody else can put a library into one that lies where everybody may write.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

CACHE_VARIABLE = "PIZARRA_KERNEL_CACHE"


def cache_folders() -> list[Path]:
    """$PIZARRA_KERNEL_CACHE; without it the user's cache folder, if the user has a home, and then the private one."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return [Path(chosen)]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no $HOME, and a user whom the system does not know
        return [private_folder()]
    return [cache / "pizarra" / "kernels", private_folder()]


def private_folder() -> Path:
    """For when the user's cache folder cannot be used: among the temporary files, and of this user alone."""
    try:
        among = tempfile.gettempdir()
    except FileNotFoundError:  # none that can be written; what is said then names this one
        among = "/tmp"
    return Path(among) / f"pizarra-kernels-{os.getuid()}"


def make_ready(folder: Path) -> None:
    """Makes the folder if there is none. OSError where there cannot be one, or where others may put things into it."""
    private = folder == private_folder()
    folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    found = folder.lstat()
    if private and (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise PermissionError("others than this user may write there")
