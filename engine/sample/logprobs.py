"""Log probabilities of rows of logits: each token's own, and the most likely ones beside it.

Taken from the raw logits, or from the processed scores where a request says so, by the op `log_probabilities`: a row's
are the same bits in any batch; ties go to the lowest id.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.outputs import Logprobs
from kernels.ops import Ops

NO_TOKEN = -1  # in place of a token id: the row is passed over, or there is no further one


def log_probabilities(logits: Tensor, token_ids: Sequence[int], num_top: int, ops: Ops) -> Logprobs:
    """One entry for each row of logits [R, V], of the token that was drawn from it or stood behind it.

    The entry of a row whose token is NO_TOKEN means nothing. Fewer than num_top are listed where fewer can come.
    """
    rows, device = len(token_ids), logits.device
    own = torch.empty(rows, dtype=logits.dtype, device=device)
    top = torch.empty(rows, num_top, dtype=logits.dtype, device=device)
    ids = torch.empty(rows, num_top, dtype=torch.int64, device=device)
    ops.log_probabilities(own, top, ids, logits, torch.tensor(token_ids, dtype=torch.int64, device=device))
    listed = [line[: line.index(NO_TOKEN)] if NO_TOKEN in line else line for line in ids.tolist()]
    values = [line[: len(names)] for line, names in zip(top.tolist(), listed, strict=True)]
    return Logprobs(own.tolist(), listed, values)
