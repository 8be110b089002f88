"""Drafts by a one-layer drafter over the target's hidden states (EAGLE-3, arXiv 2503.01840).

Owns the drafter's model, its cache and the target's features in pages. Invariant: features of a token are read only
after the target's own step has written them; where there is none before (position 0) they are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.layers.linear import Weight
from engine.models.eagle import EagleModel, EagleWorkspace
from engine.models.features import FeatureTap
from engine.spec.draft_batch import DraftBatch, DraftPass
from engine.spec.paged_drafter import DraftingParts, PagedDrafter
from kernels.ops import KVCache


class EagleDrafter(PagedDrafter):
    """See `engine.spec.drafter.Drafter`."""

    name = "eagle"

    def __init__(
        self,
        parts: DraftingParts,
        batch: DraftBatch,
        caches: Sequence[KVCache],
        model: EagleModel,
        workspace: EagleWorkspace,
        tap: FeatureTap,
    ) -> None:
        """tap: its row 0, of the null block, is zeros and is never written."""
        super().__init__(parts, batch, caches)
        self.tap, self._features = tap, tap.features
        self._model, self._workspace = model, workspace

    @property
    def nbytes(self) -> int:
        """See `Drafter`."""
        return (
            self.cache_bytes
            + self._slots.nbytes
            + self._features.nbytes
            + self._workspace.nbytes
            + self._sampler.nbytes
        )

    def first_pass(self, step: DraftPass) -> Tensor:
        """See `PagedDrafter`."""
        ws = self._workspace.cut(len(step.token_ids), len(step.sample_rows))
        self._model.read(ws, self._features, step.feature_rows)
        self._model.forward(ws, step.token_ids, self.caches[0], step.attention, step.sample_rows)
        return ws.layer.logits

    def next_pass(self, step: DraftPass, token_ids: Tensor) -> Tensor:
        """See `PagedDrafter`. Its own hidden states stand in for features, which are not known yet."""
        count = len(token_ids)
        ws = self._workspace.cut(count, count)
        self._model.forward(ws, token_ids, self.caches[0], step.attention, ws.rows)
        return ws.layer.logits

    def weights(self) -> Iterator[Weight]:
        """See `Drafter`."""
        return self._model.weights()
