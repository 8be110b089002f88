"""The target's states of whole shards, kept on disk as long as there is room: the target runs once for each text.

Owns the files `features-NAME.safetensors` and their limit. Knows no drafter. Invariant: a file is complete or not
there, and belongs to the target and the layers that its header names; another one is made anew. What was computed when
the work was stopped lies in `features-NAME.part.safetensors`, if there was room, and is gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        """Those of the shard of that name; report(done, total) tells of the tokens while they are computed, and may
        raise between two groups of them."""
        path = self._folder / f"features-{name}.safetensors"
        if path.is_file() and self._is_ours(path, shard):
            return ShardStates(**load_file(path))
        part = path.with_suffix(".part.safetensors")
        tensors = self._compute(shard, part, report)
        part.unlink(missing_ok=True)  # its room is the whole's
        self._save(path, tensors, {})
        return ShardStates(**tensors)

    def _save(self, path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
        """Where there is room."""
        if self._used() + sum(tensor.nbytes for tensor in tensors.values()) <= self._limit:
            writing = path.with_suffix(".tmp")
            save_file(tensors, writing, {"of": self._identity} | notes)
            writing.replace(path)

    def _is_ours(self, path: Path, shard: Shard) -> bool:
        with safe_open(str(path), framework="pt") as stored:
            rows = stored.get_slice("log_sum").get_shape()[0]
            return bool((stored.metadata() or {}).get("of") == self._identity and rows == len(shard.token_ids))

    def _used(self) -> int:
        return sum(path.stat().st_size for path in self._folder.glob("features-*.safetensors"))

    def _compute(self, shard: Shard, part: Path, report: Callable[[int, int], None]) -> dict[str, Tensor]:
        """All of them, or up to where `report` raises: what there is then is kept in `part` for the next time."""
        count, done = len(shard.token_ids), 0
        tensors, known = self._begun(shard, part)
        ends = shard.lengths.cumsum(0).tolist()
        for group, rows in enumerate(alike(shard.lengths, _TOKENS_AT_ONCE)):
            spans = [(ends[row] - int(shard.lengths[row]), ends[row]) for row in rows]
            done += sum(end - start for start, end in spans)
            if group < known:
                continue
            self._group(shard, spans, tensors)
            try:
                report(done, count)
            except BaseException:
                part.unlink(missing_ok=True)
                self._save(part, tensors, {"groups": str(group + 1)})
                raise
        return tensors

    def _begun(self, shard: Shard, part: Path) -> tuple[dict[str, Tensor], int]:
        """Tensors to write into, and how many groups of rows they hold already."""
        if part.is_file() and self._is_ours(part, shard):
            with safe_open(str(part), framework="pt") as stored:
                return load_file(part), int(stored.metadata()["groups"])
        count, hidden, dtype = len(shard.token_ids), self._target.config.hidden_size, self._target.dtype
        tensors = {
            "features": torch.empty(count, len(self._target.feature_layers) * hidden, dtype=dtype),
            "final": torch.empty(count, hidden, dtype=dtype),
            "log_sum": torch.zeros(count),
            "top": torch.zeros(count, dtype=torch.int32),
        }
        return tensors, 0

    def _group(self, shard: Shard, spans: Sequence[tuple[int, int]], tensors: Mapping[str, Tensor]) -> None:
        """One pass of the target, over the conversations at `spans` of the shard."""
        target = self._target
        longest = max(end - start for start, end in spans)
        padded = torch.zeros(len(spans), -(-longest // _ALIKE) * _ALIKE, dtype=torch.int64)
        for row, (start, end) in enumerate(spans):
            padded[row, : end - start] = shard.token_ids[start:end]
        states = target.states(padded.to(target.device))
        for row, (start, end) in enumerate(spans):
            kept = states.final[row, : end - start]
            at = learned_positions(shard.kinds[start:end])
            sums, tops = target.summary(kept[at.to(kept.device)])
            tensors["features"][start:end] = states.features[row, : end - start].cpu()
            tensors["final"][start:end] = kept.cpu()
            tensors["log_sum"][start + at], tensors["top"][start + at] = sums.cpu(), tops.int().cpu()


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
