"""Which requests are worth asking for drafts that cost no passes: looking for them takes time, too.

Knows request ids and turns. A request whose drafts came to nothing several times in a row is asked in some turns only,
ever fewer, until one of its drafts is accepted. Invariant: every request is asked at least once in `LONGEST_WAIT` + 1
turns, and one that is new, or whose last draft was accepted in part, in every turn.
"""

from __future__ import annotations

MISSES = 6  # in a row until a turn is passed over: copied passages have slips, and go on behind them
LONGEST_WAIT = 16


class _Record:
    __slots__ = ("misses", "next_turn", "wait")

    def __init__(self) -> None:
        self.misses = self.wait = self.next_turn = 0


class Patience:
    """The records of one engine's running requests."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def is_due(self, request_id: str, turn: int) -> bool:
        """Whether the request is asked in this turn."""
        record = self._records.get(request_id)
        return record is None or turn >= record.next_turn

    def learned(self, request_id: str, turn: int, num_accepted: int) -> None:
        """A request that was asked in this turn had so many drafts accepted; 0 where it had none."""
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = _Record()
        if num_accepted:
            record.misses = record.wait = 0
            return
        record.misses += 1
        if record.misses >= MISSES:
            record.wait = min(2 * record.wait or 1, LONGEST_WAIT)
            record.next_turn = turn + 1 + record.wait

    def end(self, request_id: str) -> None:
        """A request has ended. Unknown ones are ignored."""
        self._records.pop(request_id, None)
