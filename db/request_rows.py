"""What is asked of the list of requests, and the texts of one: plain records, beside those of `db.rows`.

Knows nothing of SQL. Invariant: texts are here only where the operator wanted them kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from db.rows import RequestRow

SHORT_PREFIX = 2  # characters of an id so frequent that the list itself is the shortest way to them


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests are meant; None: all. id_prefix: the beginning of an id. slow: only those that were."""

    model_id: str | None = None
    state: str | None = None
    source: str | None = None
    id_prefix: str = ""
    since: float | None = None
    until: float | None = None
    slow: bool = False

    @property
    def is_simple(self) -> bool:
        """Whether one index holds just the requests meant, or hardly more, or all are meant."""
        if self.id_prefix:
            return len(self.id_prefix) > SHORT_PREFIX
        return sum(value is not None for value in (self.model_id, self.state, self.source)) + self.slow <= 1

    def fits(self, row: RequestRow) -> bool:
        """Whether this one is meant, as the records' own search would say."""
        pairs = ((self.model_id, row.model_id), (self.state, row.state), (self.source, row.source))
        low, high = self.since or 0.0, float("inf") if self.until is None else self.until
        return (
            all(wished is None or wished == has for wished, has in pairs)
            and low <= row.created_at <= high
            and row.id.startswith(self.id_prefix)
            and (bool(row.slow) or not self.slow)
        )


@dataclass(frozen=True, slots=True)
class RequestBodyRow:
    """What was asked and answered. prompt: as the model read it. messages: as they came, of a chat. truncated: some of
    the texts were longer than what is kept of one."""

    request_id: str
    created_at: float
    prompt: str
    messages: list[dict[str, Any]] | None
    sampling: dict[str, Any]
    answers: list[str]
    truncated: bool = False
