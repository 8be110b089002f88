"""Drawing plain rows of logits in a test, as a step without drafts does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.core.outputs import Logprobs
from engine.sample.logprobs import NO_TOKEN
from engine.sample.row import SamplingRow
from engine.sample.sampler import Sampler


@dataclass(frozen=True)
class DrawnRow:
    """One row's token; `fault` says why there is none. logprobs: where asked for, one entry."""

    token_id: int
    fault: str | None
    logprobs: Logprobs | None


def draw(sampler: Sampler, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[DrawnRow]:
    """One outcome per row."""
    drawn = sampler.draw(logits, rows)
    names = [NO_TOKEN if row in drawn.faults else token_id for row, token_id in enumerate(drawn.token_ids)]
    found = sampler.logprobs(logits, rows, drawn.processed, names)
    return [DrawnRow(token, drawn.faults.get(row), found.get(row)) for row, token in enumerate(drawn.token_ids)]
