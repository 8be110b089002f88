"""Drafts by a smaller model of the same tokens, or of others that are mapped.

Owns that model and its cache, which has the target's block ids. Invariant: the draft model sees the very tokens of the
sequence, in its own ids, at the same positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.layers.linear import Weight
from engine.models.decoder import StepInputs
from engine.models.registry import Model
from engine.models.workspace import Workspace
from engine.spec.draft_batch import DraftBatch, DraftPass
from engine.spec.paged_drafter import DraftingParts, PagedDrafter
from kernels.ops import KVCache


class ModelDrafter(PagedDrafter):
    """See `engine.spec.drafter.Drafter`."""

    name = "draft_model"
    reads_own_ids = True

    def __init__(
        self,
        parts: DraftingParts,
        batch: DraftBatch,
        caches: Sequence[KVCache],
        model: Model,
        workspace: Workspace,
        inputs: Sequence[int] | None,
        rows: Tensor,
        num_groups: int,
    ) -> None:
        """inputs: of each target id the model's own, None: the same. rows: int64, the numbers from 0 on. num_groups:
        the KV groups of the draft model, which share one table here."""
        super().__init__(parts, batch, caches)
        self._model, self._workspace, self._inputs = model, workspace, inputs
        self._rows, self._num_groups = rows, num_groups

    @property
    def nbytes(self) -> int:
        """See `Drafter`."""
        return self.cache_bytes + self._slots.nbytes + self._workspace.nbytes + self._sampler.nbytes

    def inputs_of(self, token_ids: list[int]) -> list[int]:
        """See `PagedDrafter`."""
        return token_ids if self._inputs is None else [self._inputs[token_id] for token_id in token_ids]

    def first_pass(self, step: DraftPass) -> Tensor:
        """See `PagedDrafter`."""
        return self._forward(step, step.token_ids, step.sample_rows)

    def next_pass(self, step: DraftPass, token_ids: Tensor) -> Tensor:
        """See `PagedDrafter`."""
        return self._forward(step, token_ids, self._rows[: len(token_ids)])

    def weights(self) -> Iterator[Weight]:
        """See `Drafter`."""
        return self._model.weights()

    def _forward(self, step: DraftPass, token_ids: Tensor, sample_rows: Tensor) -> Tensor:
        ws = self._workspace.cut(len(token_ids), len(sample_rows))
        inputs = StepInputs(token_ids, sample_rows, (step.attention,) * self._num_groups)
        self._model.forward(ws, inputs, self.caches)
        return ws.logits
