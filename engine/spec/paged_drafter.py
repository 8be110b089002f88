"""What drafters with a KV cache of their own have in common: catching up, then one pass for each further token.

Owns the turn; a subclass owns the model. The cache lies at the block ids of the target's full-attention layers. Entries
are missing where the target has computed tokens and nobody drafted; they are computed when a draft is asked for, so
that a drafter that is switched off costs nothing. Invariant: an entry counts as filled only if it was computed of the
sequence's own tokens; those of drafted tokens are written anew once they, or others in their place, are known.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.speculation import Draft, DraftPlan, DraftResult, DraftShare
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.layers.linear import Weight
from engine.models.features import FeatureTap
from engine.spec.draft_batch import DraftBatch, DraftPass, FirstRows, PassShape
from engine.spec.draft_sampler import DraftSampler
from engine.spec.draft_slots import DraftedRequest, DraftSlots
from kernels.ops import KVCache
from kernels.recording import Recorder

MOST_STEPS = 512  # shapes of passes whose functions are kept


@dataclass(frozen=True, slots=True)
class DraftingParts:
    """What every drafter works with."""

    slots: DraftSlots
    sampler: DraftSampler
    recorder: Recorder


@dataclass(frozen=True, slots=True)
class _Entries:
    """The missing entries of one request that this turn computes: positions first to end - 1. index: in the plan."""

    index: int
    share: DraftShare
    request: DraftedRequest
    first: int
    end: int


class PagedDrafter(ABC):
    """See `engine.spec.drafter.Drafter`."""

    name = ""
    tap: FeatureTap | None = None
    reads_own_ids = False  # whether passes read tokens by the drafter's own ids

    def __init__(self, parts: DraftingParts, batch: DraftBatch, caches: Sequence[KVCache]) -> None:
        self._slots, self._sampler, self._batch = parts.slots, parts.sampler, batch
        self.recorder = parts.recorder
        self.caches = list(caches)
        self._step = functools.lru_cache(MOST_STEPS)(self._make_step)

    @abstractmethod
    def weights(self) -> Iterator[Weight]:
        """See `Drafter`."""

    @abstractmethod
    def first_pass(self, step: DraftPass) -> Tensor:
        """Computes the missing entries, ops alone. Returns the logits of step.sample_rows [S, V of the drafter]."""

    @abstractmethod
    def next_pass(self, step: DraftPass, token_ids: Tensor) -> Tensor:
        """Computes one entry a request, of the tokens just drawn, int64 [R]: ops alone. Returns logits [R, V of the
        drafter]."""

    def inputs_of(self, token_ids: list[int]) -> list[int]:
        """The drafter's own ids of the target's."""
        return token_ids

    def see(self, plan: SchedulerOutput) -> None:
        """See `Drafter`."""
        self._slots.see(plan)

    def forget(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        self._slots.forget(request_ids)

    def draft_scores(self, share: ScheduledRequest) -> Tensor | None:
        """See `Drafter`."""
        return self._sampler.scores(share.request_id, share.num_drafts) if share.proposer == self.name else None

    @property
    def cache_bytes(self) -> int:
        """Bytes of its own keys and values."""
        return sum(cache.keys.nbytes + cache.values.nbytes for cache in self.caches)

    @torch.inference_mode()
    def propose(self, plan: DraftPlan) -> DraftResult:
        """See `Drafter`. A request that has more to catch up with than one pass holds gets no draft this turn."""
        start = time.perf_counter()
        drafting, late = self._missing(plan)
        drafts = [Draft(proposer=self.name)] * len(plan.requests)
        if drafting or late:
            for entries, draft in zip(drafting, self._run(drafting, late), strict=True):
                drafts[entries.index] = draft
        num_rows = sum(entries.end - entries.first for entries in (*drafting, *late))
        return DraftResult(tuple(drafts), time.perf_counter() - start, num_rows)

    def _missing(self, plan: DraftPlan) -> tuple[list[_Entries], list[_Entries]]:
        """Whose entries this turn computes: to the end, most drafts first; and of one request a part."""
        found = []
        for index, share in enumerate(plan.requests):
            request = self._slots.take(share)
            end = share.num_computed_tokens + len(share.token_ids)
            first = min(self._slots.first_missing(request), end - 1)  # the last one is what is drafted from
            found.append(_Entries(index, share, request, first, end))
        room, drafting, late = self._batch.most_rows, [], []
        for entries in sorted(found, key=lambda one: one.end - one.first):
            if entries.end - entries.first <= room:
                drafting.append(entries)
            elif room > 0:
                end = entries.first + room
                late.append(_Entries(entries.index, entries.share, entries.request, entries.first, end))
            room = max(0, room - (entries.end - entries.first))
        drafting.sort(key=lambda one: -one.share.num_drafts)
        return drafting, late

    def _run(self, drafting: list[_Entries], late: list[_Entries]) -> list[Draft]:
        """All passes of a turn; the drafts of `drafting`, in order."""
        everybody = [*drafting, *late]
        self._batch.begin([entries.request.tables for entries in everybody])
        rows = FirstRows()
        for number, entries in enumerate(everybody):
            self._add(rows, entries, drafts=number < len(drafting))
        first = self._batch.first(rows)
        counts = self._sampler.begin(
            [entries.share for entries in drafting], [entries.share.num_drafts for entries in drafting]
        )
        widths = self._fill(drafting, counts)
        self._batch.sent()
        logits = self._record(first)
        for entries in everybody:
            self._slots.mark(entries.request, entries.end)
        self._sampler.draw(0, first.samples, logits)
        for index, width in enumerate(widths, start=1):
            shape = self._batch.shape_of(index, width)
            self._sampler.draw(index, shape.samples, self._record(shape))
        return self._sampler.drafts(counts, self.name)

    def _add(self, rows: FirstRows, entries: _Entries, *, drafts: bool) -> None:
        before = max(entries.first - 1, 0)
        slots = self._slots.slots(entries.request, before, entries.end)
        own = slots[1:] if entries.first > 0 else slots
        known = self._slots.token_ids
        token_ids = self.inputs_of([known[slot] for slot in own])
        rows.add(token_ids, entries.first, own, slots[0] if entries.first > 0 else 0, drafts)

    def _fill(self, drafting: list[_Entries], counts: Sequence[int]) -> list[int]:
        """Writes the passes behind the first one; returns how many requests each of them has."""
        widths = []
        for index in range(1, max(counts, default=0)):
            width = max(row for row, count in enumerate(counts) if count > index) + 1
            positions, slots = list[int](), list[int]()
            for entries, count in zip(drafting[:width], counts, strict=False):
                position = entries.end + index - 1
                wanted = count > index  # a row between others that want more writes nowhere
                positions.append(position if wanted else 0)
                slots.extend(self._slots.slots(entries.request, position, position + 1) if wanted else (-1,))
            self._batch.next(index, positions, slots)
            widths.append(width)
        return widths

    def _record(self, shape: PassShape) -> Tensor:
        """Runs a pass or replays it. Returns its logits."""
        run, place = self._step(shape)
        self.recorder.run(shape, run)
        return place[0]

    def _make_step(self, shape: PassShape) -> tuple[Callable[[], None], list[Tensor]]:
        """The function of a shape, and where it leaves its logits once it has run."""
        step, place, sampler = self._batch.view(shape), list[Tensor](), self._sampler
        drawn = sampler.ids if self.reads_own_ids else sampler.chosen
        token_ids = drawn[shape.number - 1, : shape.rows]

        def run() -> None:
            logits = self.next_pass(step, token_ids) if shape.number else self.first_pass(step)
            sampler.choose(shape.number, shape.samples, logits)
            place[:] = [logits]

        return run, place
