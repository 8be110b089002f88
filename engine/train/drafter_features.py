"""The target's states of whole shards, kept on disk as long as there is room: the target runs once for each text.

Owns the files `features-NAME.safetensors` and their limit. Knows no drafter. Invariant: a file is complete or not
there, and belongs to the target and the layers that its header names; another one is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.train.drafter_stories import ANSWER
from engine.train.drafter_target import Target
from engine.train.drafter_text import Shard

_TOKENS_AT_ONCE = 4096
_ALIKE = 32  # lengths are rounded up to multiples of this, so that rows of a batch are alike


@dataclass(frozen=True, slots=True)
class ShardStates:
    """Of a shard's N tokens, on the CPU: features [N, 3 * H], final [N, H], log_sum fp32 [N] and top int32 [N]: see
    `Target`. The last two are zero where nothing is learned."""

    features: Tensor
    final: Tensor
    log_sum: Tensor
    top: Tensor


class FeatureStore:
    """Hands out the states of shards. identity: what the files are of. limit: bytes that all files may take."""

    def __init__(self, target: Target, folder: Path, identity: str, limit: int) -> None:
        self._target, self._folder, self._limit = target, folder, limit
        self._identity = json.dumps([identity, list(target.feature_layers), str(target.dtype)])

    def states(self, name: str, shard: Shard, report: Callable[[int, int], None]) -> ShardStates:
        """Those of the shard of that name; report(done, total) tells of the tokens while they are computed."""
        path = self._folder / f"features-{name}.safetensors"
        if path.is_file() and self._is_ours(path, shard):
            return ShardStates(**load_file(path))
        tensors = self._compute(shard, report)
        size = sum(tensor.nbytes for tensor in tensors.values())
        if self._used() + size <= self._limit:
            writing = path.with_suffix(".tmp")
            save_file(tensors, writing, {"of": self._identity})
            writing.replace(path)
        return ShardStates(**tensors)

    def _is_ours(self, path: Path, shard: Shard) -> bool:
        with safe_open(str(path), framework="pt") as stored:
            rows = stored.get_slice("log_sum").get_shape()[0]
            return bool((stored.metadata() or {}).get("of") == self._identity and rows == len(shard.token_ids))

    def _used(self) -> int:
        return sum(path.stat().st_size for path in self._folder.glob("features-*.safetensors"))

    def _compute(self, shard: Shard, report: Callable[[int, int], None]) -> dict[str, Tensor]:
        target, count = self._target, len(shard.token_ids)
        hidden = target.config.hidden_size
        features = torch.empty(count, len(target.feature_layers) * hidden, dtype=target.dtype)
        final = torch.empty(count, hidden, dtype=target.dtype)
        log_sum, top = torch.zeros(count), torch.zeros(count, dtype=torch.int32)
        ends = shard.lengths.cumsum(0).tolist()
        done = 0
        for rows in alike(shard.lengths, _TOKENS_AT_ONCE):
            spans = [(ends[row] - int(shard.lengths[row]), ends[row]) for row in rows]
            longest = max(end - start for start, end in spans)
            padded = torch.zeros(len(rows), -(-longest // _ALIKE) * _ALIKE, dtype=torch.int64)
            for row, (start, end) in enumerate(spans):
                padded[row, : end - start] = shard.token_ids[start:end]
            states = target.states(padded.to(target.device))
            for row, (start, end) in enumerate(spans):
                kept = states.final[row, : end - start]
                at = learned_positions(shard.kinds[start:end])
                sums, tops = target.summary(kept[at.to(kept.device)])
                features[start:end] = states.features[row, : end - start].cpu()
                final[start:end] = kept.cpu()
                log_sum[start + at], top[start + at] = sums.cpu(), tops.int().cpu()
                done += end - start
            report(done, count)
        return {"features": features, "final": final, "log_sum": log_sum, "top": top}


def learned_positions(kinds: Tensor) -> Tensor:
    """int64: the positions of a conversation behind which there is a token of an answer. kinds [L]."""
    return (kinds[1:] >= ANSWER).nonzero().flatten()


def alike(lengths: Tensor, tokens: int) -> Iterator[list[int]]:
    """Rows in groups of about one length, each of at most `tokens` when padded, but at least one row."""
    order = lengths.argsort(stable=True).tolist()
    group: list[int] = []
    for row in order:
        padded = -(-int(lengths[row]) // _ALIKE) * _ALIKE
        if group and padded * (len(group) + 1) > tokens:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
