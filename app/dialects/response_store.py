"""Finished answers of /v1/responses, kept for a while so that a conversation can go on from one.

Owns which of them are kept. Knows nothing of what they hold. Invariant: never more than `max_count` of them nor more
than `max_bytes` of their bytes; the one that was used longest ago goes first. They live in this process's memory alone
and end with it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_COUNT = 1000
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """body: the response as it was sent. conversation: the items up to it and its own. Both are JSON."""

    body: bytes
    conversation: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.conversation)


class ResponseStore:
    """Stored responses by id."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._by_id: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def put(self, response_id: str, stored: StoredResponse) -> bool:
        """Keep it; others make room. False: it is larger than all the room there is, and is not kept."""
        if stored.num_bytes > self._max_bytes:
            return False
        self.pop(response_id)
        self._by_id[response_id] = stored
        self.num_bytes += stored.num_bytes
        while len(self._by_id) > self._max_count or self.num_bytes > self._max_bytes:
            self.pop(next(iter(self._by_id)))
        return True

    def get(self, response_id: str) -> StoredResponse | None:
        """None: never kept, or gone again."""
        if response_id not in self._by_id:
            return None
        self._by_id.move_to_end(response_id)
        return self._by_id[response_id]

    def pop(self, response_id: str) -> StoredResponse | None:
        """The same, and forget it."""
        stored = self._by_id.pop(response_id, None)
        if stored is not None:
            self.num_bytes -= stored.num_bytes
        return stored
