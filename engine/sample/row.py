"""What the draw of one row depends on, beside its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.sampling_params import SamplingParams
from kernels.noise import Stream


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one row is drawn.

    position: where the drawn token will stand in its sequence. token_ids: the tokens before it, prompt and output,
    where `sampling.needs_token_ids`; else empty. end_token_ids: those that end the answer, where `min_tokens` holds
    them back; else empty. allowed: the grammar's mask, a bit per token id, lowest bit first; empty: all are allowed.
    """

    sampling: SamplingParams
    seed: int
    position: int
    sample_index: int = 0
    num_prompt_tokens: int = 0
    token_ids: Sequence[int] = ()
    end_token_ids: Sequence[int] = ()
    allowed: bytes = b""

    def address(self, stream: Stream) -> tuple[int, int, int, int]:
        """Where this row's noise of a stream lies: seed, position, sample index, stream."""
        return self.seed, self.position, self.sample_index, int(stream)
