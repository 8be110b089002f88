"""Finds the Chromium that the browser tests drive, and installs one where that is possible.

Owns the search order: $PIZARRA_CHROMIUM, the system's own, then playwright's. Knows nothing of the tests.
`python -m scripts.chromium` makes sure one is there; the tests only call find_chromium().
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REMEDY = (
    "Install Chromium (Debian: apt install chromium; elsewhere: .venv/bin/playwright install --with-deps chromium) "
    "or set PIZARRA_CHROMIUM to the path of one."
)


class ChromiumMissingError(RuntimeError):
    """No Chromium, and the reason with the remedy."""


def find_chromium() -> Path | None:
    """The executable to drive, or None; a PIZARRA_CHROMIUM that names nothing is an error, not a reason to look on."""
    named = os.environ.get("PIZARRA_CHROMIUM")
    if named:
        if shutil.which(named) is None:
            raise ChromiumMissingError(f"PIZARRA_CHROMIUM is {named!r}, which is no program. {REMEDY}")
        return Path(named)
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    return _playwright_chromium()


def _playwright_chromium() -> Path | None:
    from playwright.sync_api import sync_playwright  # starts a driver, so only asked last

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.exists() else None


def _working(path: Path | None) -> Path | None:
    """Ubuntu's package chromium installs a stub that does not start without snapd: installed is not enough."""
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if done.returncode == 0 else None


def _install_with_apt() -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ("chromium", "fonts-liberation")
    steps = (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", *packages))
    return all(
        subprocess.run(step, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 0 for step in steps
    )


def _install_with_playwright() -> bool:
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


def ensure_chromium() -> Path:
    path = find_chromium()
    if path is not None:
        return path
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("pizarra: no Chromium found: installing Debian's package", flush=True)
        if _install_with_apt() and (path := _working(find_chromium())):
            return path
    print("pizarra: no Chromium found: installing playwright's", flush=True)
    if _install_with_playwright() and (path := _working(_playwright_chromium())):
        return path
    raise ChromiumMissingError(f"The browser tests need Chromium, and installing it failed (see above). {REMEDY}")


def main() -> int:
    try:
        print(f"pizarra: browser tests use {ensure_chromium()}", flush=True)
    except ChromiumMissingError as error:
        print(f"pizarra: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
