"""Writes to the records that nobody waits for.

Owns the rule that such a write's failure is logged. Knows nothing of what is written.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

log = logging.getLogger(__name__)


def unwatched(write: Future[Any]) -> None:
    """Let the write happen; what goes wrong with it goes to the log."""
    write.add_done_callback(_log_failure)


def _log_failure(write: Future[Any]) -> None:
    if not write.cancelled() and (error := write.exception()) is not None:
        log.error("a record could not be written: %s", error)
