"""From the ids that a drafter draws to the target's, on the device.

Owns the table of ids and the mask of those that stand for no token of the target. Knows no tokenizers: see vocab_map.
Invariant: an id that is not masked stands for one token of the target, and two of them for two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NOTHING = -1  # in place of a target id: the draft id is never drawn


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """size: ids of the drafter; target_size: of the target. identity: ids are the target's, up to `size`.

    to_target: int64 [size], 0 where an id is masked. mask: fp32 or fp64 [rows, size], -inf there and else 0; None: no
    id is masked. columns, targets: int64, the ids that are not masked and what they stand for. inputs: of each target
    id, the draft id that it is read as; None: the same id.
    """

    size: int
    target_size: int
    identity: bool
    to_target: Tensor
    mask: Tensor | None
    columns: Tensor
    targets: Tensor
    inputs: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.to_target, self.mask, self.columns, self.targets, self.inputs)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def draft_vocab(
    target_ids: Sequence[int],
    target_size: int,
    rows: int,
    dtype: torch.dtype,
    device: torch.device,
    inputs: Sequence[int] | None = None,
) -> DraftVocab:
    """target_ids: of each draft id, NOTHING where there is none. inputs: of each target id, the draft id; None: equal.

    ValueError where two ids stand for one token, or one for a token that the target does not have.
    """
    table = torch.tensor(target_ids, dtype=torch.int64)
    columns = (table != NOTHING).nonzero().squeeze(-1)
    targets = table[columns]
    if len(targets) == 0 or int(targets.min()) < 0 or int(targets.max()) >= target_size:
        raise ValueError(f"drafted ids lie outside the model's vocabulary of {target_size} tokens")
    if len(set(targets.tolist())) < len(targets):
        raise ValueError("two drafted ids stand for one token of the model")
    mask = None
    if len(columns) < len(table):
        line = torch.full((len(table),), -math.inf, dtype=dtype)
        line[columns] = 0
        mask = line.expand(rows, len(table)).contiguous().to(device)
    return DraftVocab(
        size=len(table),
        target_size=target_size,
        identity=torch.equal(columns, targets),
        to_target=table.clamp(min=0).to(device),
        mask=mask,
        columns=columns.to(device),
        targets=targets.to(device),
        inputs=None if inputs is None else torch.tensor(inputs, dtype=torch.int64, device=device),
    )
