"""Where log lines go: the server's rotated file and the terminal, and the tails of the engines' own files.

Owns formats and rotation. Knows nothing of what is logged.
"""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_MAX_BYTES = 5 * 1024 * 1024
_KEPT_FILES = 4
_KEPT_ENGINE_LOGS = 40
_TAIL_BYTES = 64 * 1024


def configure_logging(home: Path, level: str) -> logging.Handler:
    """Send everything to logs/pizarra.log as well; returns the handler, which `logging.Logger.removeHandler` takes."""
    handler = logging.handlers.RotatingFileHandler(
        home / "logs" / "pizarra.log", maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    for noisy in ("httpx", "httpcore", "alembic", "asyncio", "multipart"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    return handler


def log_to_terminal() -> None:
    """Show our own messages on the terminal too; uvicorn shows its own."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:     %(message)s"))
    handler.addFilter(lambda record: not record.name.startswith("uvicorn"))
    logging.getLogger().addHandler(handler)


def prune_engine_logs(home: Path) -> None:
    """Keep the files of the newest runs only."""
    logs = sorted((home / "logs").glob("engine-*.log"), key=lambda path: path.stat().st_mtime)
    for path in logs[:-_KEPT_ENGINE_LOGS]:
        path.unlink(missing_ok=True)


def tail_lines(path: Path, count: int) -> list[str]:
    """The last lines of a file, [] when it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return lines[-count:]
