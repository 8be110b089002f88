"""Plans for a runner without an engine around it: prompts, decode steps, and several rows of a request at once.

Owns which blocks a request has. Knows nothing of what is measured or compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.sampling_params import SamplingParams
from engine.core.step import ScheduledRequest, SchedulerOutput

BLOCK_SIZE = 16


class Script:
    """Turns (name, tokens) pairs into plans; each request has blocks for `longest` tokens of its own."""

    def __init__(self, longest: int, temperature: float = 0.0) -> None:
        self.blocks_each = -(-longest // BLOCK_SIZE)
        self.sampling = SamplingParams(temperature=temperature)
        self._computed: dict[str, int] = {}
        self._places: list[str] = []  # who has which blocks

    def plan(self, *parts: tuple[str, Sequence[int]]) -> SchedulerOutput:
        """A step in which each request's tokens follow what it has already."""
        return SchedulerOutput(tuple(self._share(name, tokens) for name, tokens in parts), ())

    def forget(self) -> list[str]:
        """Frees all blocks; the names, for the runner."""
        names, self._places, self._computed = self._places, [], {}
        return names

    def _share(self, name: str, tokens: Sequence[int]) -> ScheduledRequest:
        start = self._computed.get(name, 0)
        if start == 0:
            self._places.append(name)
        place = self._places.index(name)
        first = 1 + place * self.blocks_each  # block 0 is the null block
        self._computed[name] = start + len(tokens)
        return ScheduledRequest(
            request_id=name,
            first=start == 0,
            token_ids=tuple(tokens),
            num_computed_tokens=start,
            block_ids=(tuple(range(first, first + self.blocks_each)) if start == 0 else (),),
            samples=True,
            sampling=self.sampling,
            seed=0,
            num_prompt_tokens=start + len(tokens),
        )
