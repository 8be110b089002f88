"""Which tokens of which requests run in the next step.

One invariant instead of phases: a request wants `num_tokens_with_drafts - num_computed_tokens`, capped by the step's
budget. A prompt, a chunk of it, a decode step, a draft to verify and a recomputed sequence are that same line (design,
section 4; after vLLM's V1 scheduler); a draft that is rejected only lowers `num_computed_tokens`. Knows no tensors and
no text. Running requests are served before waiting ones, by rank (priority, then arrival); without room, the last in
rank is preempted and recomputed later, so the first always progresses. New requests leave a small reserve of blocks to
those that run, which saves most preemptions, and one that was preempted often comes back only with room for all of it.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.core.kv_cache_manager import KVCacheManager
from engine.core.outputs import Logprobs, RequestOutput
from engine.core.request import FinishReason, Request, RequestStatus
from engine.core.speculation import NO_DRAFT, BlockIds
from engine.core.step import ScheduledRequest, SchedulerOutput, StepResult
from engine.core.timeline import BLOCKS, BUDGET, SLOTS, QueueClock

WATERMARK_SHARE = 0.02  # of the pool, kept from new requests while others run
MAX_PREEMPTIONS = 3  # after these a request waits until the whole of it fits


class Scheduler:
    """Continuous batching over one block pool."""

    def __init__(
        self,
        kv: KVCacheManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int = 0,
        *,
        max_sampled_rows: int = 0,
    ) -> None:
        """long_prefill_token_threshold: the most tokens of one request in a step; 0: only the budget counts.
        max_sampled_rows: rows of logits in a step; what those that sample leave of them is for drafts."""
        self.kv = kv
        self.most_per_request = long_prefill_token_threshold or max_num_batched_tokens
        self.watermark = int(kv.pool.num_total * WATERMARK_SHARE)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []  # both sorted by rank
        self.held: list[Request] = []  # not in the queue yet: see `hold`
        self.num_preemptions = 0
        self.prefix_queries = 0  # prompt tokens looked up in the cache, and those found there
        self.prefix_hits = 0
        self.queue_clock = QueueClock()
        self._now = 0.0  # of the step that is being planned
        self._ended: list[str] = []
        self._max_sampled_rows = max_sampled_rows
        self._verify_rows = 0  # what is left of them for the drafts of the step that is being planned
        self.on_end: Callable[[Request], None] = lambda request: None  # called when a request has ended

    def add(self, request: Request) -> None:
        """Queues a request. ValueError when its id is taken."""
        self._register(request)
        self._queue(request)

    def add_samples(self, samples: Sequence[Request]) -> None:
        """Queues the samples of one prompt: the first at once; the others once it has computed the prompt."""
        self.add(samples[0])
        for request in samples[1:]:
            self.hold(request, RequestStatus.WAITING_SIBLING)

    def hold(self, request: Request, status: RequestStatus) -> None:
        """Takes a request that cannot be queued yet; `status` says what it waits for."""
        self._register(request)
        request.status = status
        self.held.append(request)

    def start_samples(self, samples: Sequence[Request]) -> None:
        """Queues held samples of one prompt, those that have not ended, as `add_samples` does."""
        for index, request in enumerate(samples):
            request.status = RequestStatus.WAITING_SIBLING
            if index == 0 or samples[0].sample_index > 0:
                self._release(request)

    def fail(self, request: Request, error: str) -> RequestOutput:
        """Ends a request that is here with an error row."""
        return self._row(request, [], FinishReason.ERROR, error=error)

    def samples_of(self, client_id: str) -> list[Request]:
        """The requests whose rows bear this id: one, or the samples of one prompt that have not ended."""
        return [request for request in self.requests.values() if request.client_id == client_id]

    def decoding(self) -> list[Request]:
        """The requests whose next token is due in the next step: all tokens but their last are computed."""
        return [
            request
            for request in self.running
            if request.num_computed_tokens == request.num_tokens - 1 and not request.pooling
        ]

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def _release(self, request: Request) -> None:
        self.held.remove(request)
        request.status = RequestStatus.WAITING
        self._queue(request)

    def _queue(self, request: Request) -> None:
        place = bisect.bisect_right(self.waiting, request.rank, key=_rank)
        self.waiting.insert(place, request)
        request.timeline.queued(request.arrival_s, self.queue_clock, place, len(self.running))

    def _register(self, request: Request) -> None:
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is in use")
        self.requests[request.request_id] = request

    def schedule(self) -> SchedulerOutput:
        """The next step's plan. May be empty, when nothing is there to run."""
        budget = self.max_num_batched_tokens
        self._now = time.monotonic()
        self.queue_clock.tick(self._now)
        admitted = min(len(self.waiting), self.max_num_seqs - len(self.running))
        self._verify_rows = max(0, self._max_sampled_rows - len(self.running) - admitted)
        scheduled: dict[str, ScheduledRequest] = {}
        preemptions = self.num_preemptions
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            index += 1
            reserved = min(len(self.running) - index, budget - 1)  # a row for each that follows: chunks stall nobody
            share = self._schedule_running(request, budget - reserved)
            if share is not None:
                scheduled[request.request_id] = share
                budget -= len(share.token_ids)
        while (
            self.waiting
            and budget > 0
            and len(self.running) < self.max_num_seqs
            and preemptions == self.num_preemptions
        ):
            share = self._admit(self.waiting[0], budget)
            if share is None:
                break
            scheduled[share.request_id] = share
            budget -= len(share.token_ids)
        self.queue_clock.cause = self._lacking(budget, preempted=preemptions != self.num_preemptions)
        ended, self._ended = tuple(self._ended), []
        return SchedulerOutput(tuple(scheduled.values()), ended)

    def _lacking(self, budget: int, *, preempted: bool) -> str:
        """What the first in the queue has to wait for."""
        if not self.waiting:
            return ""
        if not preempted and len(self.running) >= self.max_num_seqs:
            return SLOTS
        return BUDGET if not preempted and budget <= 0 else BLOCKS

    def update(self, plan: SchedulerOutput, result: StepResult) -> list[RequestOutput]:
        """Takes the sampled tokens in: a row for each request that got one. Requests gone meanwhile are ignored."""
        rows: list[RequestOutput] = []
        now = time.monotonic()
        prompt_tokens = sum(share.num_prompt_part for share in plan.requests)
        for share in plan.requests:
            request = self.requests.get(share.request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue
            start, end = share.num_computed_tokens, share.num_computed_tokens + len(share.token_ids)
            if share.num_prompt_part:
                request.timeline.computed(now, request.arrival_s, start, end, request.num_prompt_tokens)
            elif share.samples:
                request.timeline.decoded(len(plan.requests) - 1, prompt_tokens)
            if share.prompt_targets:
                known = len(request.prompt_logprobs.logprobs) - share.num_computed_tokens
                request.prompt_logprobs.extend(result.prompt_logprobs[share.request_id].part(known))
            if share.samples or share.completes_pooling:
                rows.append(self._take(request, share, result))
            else:
                self.kv.commit(request)
        return rows

    def _take(self, request: Request, share: ScheduledRequest, result: StepResult) -> RequestOutput:
        """Gives a request the tokens that were drawn for it, up to the one that ends it; rejected drafts are as if they
        had never been computed."""
        accepted = result.num_accepted.get(request.request_id, 0)
        request.num_computed_tokens -= share.num_drafts - accepted
        fault = result.faults.get(request.request_id)
        if fault is not None:
            return self.fail(request, fault)
        if request.pooling:
            self.kv.commit(request)
            return replace(self._row(request, [], FinishReason.STOP), pooled=result.pooled[request.request_id])
        is_first = request.num_output_tokens == 0
        if is_first and request.sample_index == 0:
            self._release_siblings(request)
        before = request.num_output_tokens
        taken: list[int] = []
        reason: FinishReason | None = None
        for token_id in result.token_ids[request.request_id]:
            taken.append(token_id)
            reason = request.append_output(token_id)
            if reason is not None:
                break
        if share.num_drafts:
            request.observe_draft(before, share.num_drafts, min(accepted, len(taken)))
            request.draft = NO_DRAFT
        self.kv.commit(request)
        logprobs = result.logprobs.get(request.request_id)
        wants_prompt = is_first and request.sampling.prompt_logprobs is not None
        row = self._row(
            request,
            taken,
            reason,
            logprobs=None if logprobs is None else logprobs.part(0, len(taken)),
            prompt_logprobs=request.prompt_logprobs if wants_prompt else None,
        )
        return row if request.inspect is None else replace(row, inspection=result.inspections[request.request_id])

    def abort(self, request_id: str, num_output_tokens: int | None = None) -> RequestOutput | None:
        """Ends a request in whatever state it is. Unknown and finished ids give None."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        summary = request.summary(num_output_tokens)
        if num_output_tokens is not None:  # what the app cut off was never said, and nobody may learn from it
            del request.token_ids[request.num_prompt_tokens + num_output_tokens :]
        self._finish(request)
        return RequestOutput(
            request.client_id, [], finish_reason=FinishReason.ABORT, summary=summary, index=request.sample_index
        )

    def _schedule_running(self, request: Request, budget: int) -> ScheduledRequest | None:
        """The request's share, after making room by preempting the youngest; None when it had to yield itself."""
        request.draft = request.draft.part(self._verify_rows)
        while True:
            wanted = request.num_tokens_with_drafts - request.num_computed_tokens
            count = min(wanted, budget, self.most_per_request)
            added = self.kv.allocate_slots(request.request_id, request.num_computed_tokens + count)
            if added is not None:
                return self._share(request, count, added, first=False)
            if request.draft.token_ids:  # nobody has to go for the sake of a guess
                request.draft = NO_DRAFT
                continue
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return None

    def _admit(self, request: Request, budget: int) -> ScheduledRequest | None:
        """The first share of a waiting request, behind what the cache has of it; None when there is no room."""
        prefix = None if request.needs_whole_prompt else self.kv.cached_prefix(request)
        cached_blocks = 0 if prefix is None else prefix.num_blocks
        cached = cached_blocks * self.kv.block_size
        count = min(request.num_tokens - cached, budget, self.most_per_request)
        spare = self.watermark if self.running else 0
        if request.num_preemptions >= MAX_PREEMPTIONS and self.running:
            spare += self.kv.blocks_to_come(request.max_num_tokens, cached, cached + count, self.most_per_request)
        added = self.kv.allocate_slots(request.request_id, cached + count, prefix=prefix, spare=spare)
        if added is None:
            return None
        self.waiting.remove(request)
        bisect.insort(self.running, request, key=_rank)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = cached
        request.num_published_blocks = cached_blocks
        if request.num_preemptions == 0:
            request.num_cached_tokens = cached
            self.prefix_queries += request.num_tokens
            self.prefix_hits += cached
        return self._share(request, count, added, first=True)

    def _share(self, request: Request, count: int, block_ids: BlockIds, *, first: bool) -> ScheduledRequest:
        start, sampling = request.num_computed_tokens, request.sampling
        request.draft = request.draft.part(max(0, start + count - request.num_tokens))
        samples = start + count >= request.num_tokens and not request.pooling
        allowed: tuple[bytes, ...] = ()
        if samples and request.grammar is not None:
            allowed = tuple(request.grammar.allowed_along(request.draft.token_ids))
            request.draft = request.draft.part(len(allowed) - 1)
        drafts = request.draft.token_ids
        end = min(start + count, request.num_tokens + len(drafts))
        request.num_computed_tokens = end
        self._verify_rows -= len(drafts)
        self._stamp(request, first=first)
        return ScheduledRequest(
            request_id=request.request_id,
            first=first,
            token_ids=(*request.token_ids[start:end], *drafts),
            num_computed_tokens=start,
            block_ids=request.take_untold_blocks(block_ids),
            samples=samples,
            sampling=sampling,
            seed=request.seed,
            num_prompt_tokens=request.num_prompt_tokens,
            known_token_ids=tuple(request.token_ids[:start]) if first and sampling.needs_token_ids else (),
            end_token_ids=tuple(sorted(request.end_token_ids)) if sampling.min_tokens else (),
            prompt_targets=tuple(request.token_ids[start + 1 : min(end + 1, request.num_prompt_tokens)])
            if request.lacks_prompt_logprobs
            else (),
            sample_index=request.sample_index,
            allowed=allowed,
            pooling=request.pooling,
            num_drafts=len(drafts),
            rule=request.speculation.rule or "match",
            proposer=request.draft.proposer,
            trace=request.trace,
            inspect=request.inspect,
        )

    def _stamp(self, request: Request, *, first: bool) -> None:
        """Notes that a share of the request is in this step's plan."""
        unseen = request.scheduled_s is None
        if unseen:
            request.mark_scheduled(self._now)
        request.timeline.planned(
            self._now, request.arrival_s, self.queue_clock, first=unseen, resumed=first and not unseen
        )

    def _preempt(self, request: Request) -> None:
        """Takes a running request's blocks; it is recomputed from the front of the queue."""
        request.timeline.preempted(request.arrival_s, request.num_computed_tokens)
        self.running.remove(request)
        self.kv.free(request.request_id)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_published_blocks = 0
        request.draft, request.untold_blocks = NO_DRAFT, []
        request.num_preemptions += 1
        self.num_preemptions += 1
        bisect.insort(self.waiting, request, key=_rank)
        self._ended.append(request.request_id)

    def _row(
        self,
        request: Request,
        token_ids: list[int],
        reason: FinishReason | None,
        *,
        error: str | None = None,
        logprobs: Logprobs | None = None,
        prompt_logprobs: Logprobs | None = None,
    ) -> RequestOutput:
        summary = None if reason is None else request.summary()
        if reason is not None:
            self._finish(request)
        return RequestOutput(
            request.client_id, token_ids, reason, error, summary, logprobs, prompt_logprobs, request.sample_index
        )

    def _release_siblings(self, first: Request) -> None:
        """Queues the other samples of a prompt: its whole blocks can be found now."""
        for request in [one for one in self.held if one.client_id == first.client_id]:
            if request.status is RequestStatus.WAITING_SIBLING:
                self._release(request)

    def _finish(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request in self.held:
            self.held.remove(request)
        else:
            self.waiting.remove(request)
        if request.sample_index == 0:
            self._release_siblings(request)
        request.status = RequestStatus.FINISHED
        self.kv.free(request.request_id)
        del self.requests[request.request_id]
        self._ended.append(request.request_id)
        self.on_end(request)


def _rank(request: Request) -> tuple[int, float]:
    return request.rank
