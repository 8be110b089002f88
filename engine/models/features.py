"""Hidden states that a model's own step leaves behind for a drafter, in pages as the KV cache has them.

Owns where they lie. Knows no drafter. Invariant: a row belongs to the token in the KV slot of the same number, and
depends on the tokens up to that one alone, so that blocks that requests share hold the features of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class FeatureTap:
    """features: [slots, F * H]; columns: by layer, where the input of that layer goes, and by the number of layers,
    where what the final norm makes goes. group: the KV group whose slots they lie at."""

    features: Tensor
    columns: dict[int, int]
    group: int
