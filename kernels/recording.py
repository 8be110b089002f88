"""A step that is recorded once and then replayed: one interface for the CPU's tapes and a GPU's graphs.

Knows nothing of models: a step is a function without arguments that reads and writes buffers which stay where they are.
Invariant: `run` leaves in these buffers what calling the step would have left there, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeAlias

Step: TypeAlias = Callable[[], None]


class Recorder(Protocol):
    """Runs steps. Steps of one shape differ only in what their buffers hold."""

    def run(self, shape: Hashable, step: Step, /) -> None:
        """Does what `step` does: calls it, or replays what an earlier step of the same shape did."""

    def prepare(self, shape: Hashable, step: Step, /) -> None:
        """Records a step ahead of its first `run`, where that has to be before requests come. May call it."""

    def faults(self) -> Sequence[str]:
        """Why steps that could have been replayed are not, for people; empty if all is well."""


class Eager:
    """Records nothing. `reason` is why, where a recorder was wanted."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason

    def run(self, _shape: Hashable, step: Step, /) -> None:
        """Calls the step."""
        step()

    def prepare(self, _shape: Hashable, _step: Step, /) -> None:
        """Nothing to do."""

    def faults(self) -> Sequence[str]:
        """The reason that was given."""
        return (self._reason,) if self._reason else ()
