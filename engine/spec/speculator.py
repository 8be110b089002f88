"""Speculation within one turn of the engine: who gets drafts, how many, and what came of them.

Owns the order: the controller decides what a drafter may cost, blocks are reserved, proposers propose, the controller
decides how much of that is worth verifying. Knows neither how drafts are made nor how they are verified.
Invariant: a draft is never longer than what its request may still emit, and its blocks are there before it is made; no
request waits, or loses its blocks, for the sake of a draft (`engine.core.draft_room`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.core.draft_room import DraftRoom
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.core.speculation import (
    NO_DRAFT,
    Draft,
    DraftCounters,
    ProposerStats,
    SpeculationParams,
    VerifiedDraft,
)
from engine.core.step import SchedulerOutput, StepResult
from engine.spec.base import DraftWish, Proposer
from engine.spec.controller import SpecController
from engine.spec.patience import Patience
from engine.spec.turn import Candidate, Outcome, TurnTimes
from engine.spec.turn_table import MeasuredTurn, TurnTable

MAX_TRACES = 4096  # verified drafts that wait to be taken: the oldest go first


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a load decided. proposers: by name, those that requests may ask for; none: nothing is ever drafted. default:
    of requests that ask for none."""

    proposers: Mapping[str, Proposer]
    default: str
    controller: SpecController


class Speculator:
    """What `Engine` knows of speculation."""

    def __init__(self, scheduler: Scheduler, speculation: Speculation, *, max_drafts: int, rule: str) -> None:
        """max_drafts, rule: of the load options."""
        self.proposers = dict(speculation.proposers)
        self.default = speculation.default
        self.controller = speculation.controller
        self.enabled = bool(self.proposers)
        self.max_drafts = self._loaded_max = max_drafts
        self.rule = rule
        self.total = DraftCounters()
        self.by_proposer: dict[str, DraftCounters] = {}
        self.table = TurnTable()
        self._scheduler = scheduler
        self._steps = 0
        self._draft_s = 0.0  # of the turn that is on
        self._drafter_rows = 0  # that a costly drafter computed in its first pass of that turn
        self._asked: list[Request] = []  # in it
        self._wanting: list[Request] = []  # in it: those that may have drafts
        self._patience = Patience()
        self._traces: deque[VerifiedDraft] = deque(maxlen=MAX_TRACES)

    def settle(self, wish: SpeculationParams, *, guided: bool) -> SpeculationParams:
        """A request's wish with the engine's own where it leaves something open.

        guided: a grammar cuts a draft at the first token that it forbids. Where drafts are sampled, `rejection` is
        lossless only if nothing decides about verifying a draft by looking at it, so such requests match.
        """
        return replace(
            wish,
            enabled=wish.enabled and bool(self.proposers),
            proposer=wish.proposer or self.default,
            num_speculative_tokens=min(wish.num_speculative_tokens or self._loaded_max, self._loaded_max),
            rule="match" if guided else wish.rule or self.rule,
        )

    def fault(self, wish: SpeculationParams) -> str | None:
        """Why a request's wish cannot be served, or None."""
        if not wish.enabled or not wish.proposer or wish.proposer in self.proposers:
            return None
        known = f"those of this engine are {', '.join(self.proposers)}" if self.proposers else "this engine has none"
        return f"speculation.proposer={wish.proposer!r}: {known}; load the model with another `speculation`"

    def configure(self, enabled: bool | None, num_speculative_tokens: int | None, rule: str | None) -> None:
        """Changes what holds from the next turn on; None leaves a thing as it is. rule: of requests to come."""
        if enabled is not None:
            self.enabled = enabled and bool(self.proposers)
        if num_speculative_tokens is not None:
            self.max_drafts = max(1, min(num_speculative_tokens, self._loaded_max))
        if rule is not None:
            self.rule = rule
        if (enabled, num_speculative_tokens, rule) != (None, None, None):
            self.table.clear()

    def clear(self) -> None:
        """Has every proposer drop what it learned from requests that have ended."""
        for proposer in self.proposers.values():
            proposer.clear()

    def draft(self) -> None:
        """Gives requests whose next token is due a draft, where that pays."""
        self._draft_s, self._drafter_rows = 0.0, 0
        self._asked, self._wanting = [], []
        due = self._scheduler.decoding()
        for request in due:
            request.draft = NO_DRAFT  # the last step may have had no room for it
        if not self.enabled:
            return
        wanting = [(request, limit) for request in due if (limit := self._limit(request)) > 0]
        self._wanting = [request for request, _ in wanting]
        if not wanting or self._measures_plain():
            return
        start = time.perf_counter()
        candidates = [self._candidate(request, limit) for request, limit in wanting]
        others = len(self._scheduler.running) - len(wanting)
        costly = self.controller.plan(candidates, others)
        room = DraftRoom(self._scheduler)
        asked = [
            index
            for index, (request, limit) in enumerate(wanting)
            if self._is_asked(request, costly[index]) and room.reserve(request, request.num_tokens + limit)
        ]
        if asked:
            drafts = [NO_DRAFT] * len(wanting)
            wishes = [self._wish(*wanting[index], index, costly[index]) for index in asked]
            for index, draft in zip(asked, self._propose(wishes), strict=True):
                drafts[index] = draft
            judged = [_judged(request, draft) for (request, _), draft in zip(wanting, drafts, strict=True)]
            counts = self.controller.trim(candidates, judged, others)
            for (request, _), draft, count in zip(wanting, drafts, counts, strict=True):
                request.draft = draft.part(count)
        self._asked = [wanting[index][0] for index in asked]
        self._draft_s = time.perf_counter() - start

    def observe(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Counts a step's verified drafts, and has the controller learn. To be called before the scheduler's update:
        requests end there. result: cut at the ends of answers."""
        self._steps += 1
        verifying = [share for share in plan.requests if share.num_drafts and share.request_id in result.num_accepted]
        outcomes: list[Outcome] = []
        for share in verifying:
            request = self._scheduler.requests.get(share.request_id)
            if request is None:
                continue
            accepted = result.num_accepted[share.request_id]
            is_cut = len(result.token_ids.get(share.request_id, ())) <= accepted  # what lies behind is not judged
            judged = accepted if is_cut else share.num_drafts
            outcomes.append(Outcome(share.request_id, share.proposer, judged, accepted, request.draft.confidence))
            proposer = self._counters(share.proposer)
            for counters in (self.total, proposer):
                counters.observe(share.num_drafts, accepted)
            request.draft_counters.draft_s += self._draft_s / len(verifying)
            request.draft_counters.verify_s += result.step_s / len(plan.requests)
            proposer.verify_s += result.step_s / len(verifying)
        self._trace(plan, result)
        self.total.draft_s += self._draft_s
        self.total.verify_s += result.step_s if verifying else 0.0
        for request in self._asked:
            self._patience.learned(request.request_id, self._steps - 1, result.num_accepted.get(request.request_id, 0))
        if not self.proposers:
            return
        times = self._times(plan, result)
        self._measure(times, outcomes)
        if not self.enabled:
            return
        if self._asked:
            self.controller.observe(outcomes, times)
        elif self._draft_s:
            self.controller.idle(times)

    def take_traces(self) -> list[VerifiedDraft]:
        """The steps of traced requests since the last call, oldest first: verified drafts, and plain steps between."""
        traces = list(self._traces)
        self._traces.clear()
        return traces

    def stats(self) -> list[ProposerStats]:
        """The counters of every proposer that drafted or is judged."""
        states = {name: (state, reason) for name, state, reason in self.controller.proposers()}
        return [
            _stats(name, self.by_proposer.get(name, DraftCounters()), *states.get(name, ("on", "")))
            for name in dict.fromkeys([*self.by_proposer, *states])
        ]

    def _counters(self, name: str) -> DraftCounters:
        return self.by_proposer.setdefault(name, DraftCounters())

    def _measures_plain(self) -> bool:
        """Whether this turn goes without drafts, so that it is known what plain steps take."""
        if not all(request.speculation.adaptive for request in self._wanting):
            return False
        running = self._scheduler.running
        context = sum([request.num_tokens for request in running]) // len(running)
        return self.table.claim_plain(len(running), context)

    def _measure(self, times: TurnTimes, outcomes: Sequence[Outcome]) -> None:
        if not times.is_decode_only:
            return
        self.table.observe(
            MeasuredTurn(
                t_s=time.time(),
                num_requests=times.num_requests,
                context=times.context,
                step_s=times.step_s,
                draft_s=times.draft_s,
                drafted=times.num_rows - times.num_requests,
                accepted=sum(outcome.num_accepted for outcome in outcomes),
                drafts_allowed=bool(self._wanting),
                forced=not all(request.speculation.adaptive for request in self._wanting),
            )
        )

    def _wish(self, request: Request, limit: int, index: int, num_costly: int) -> DraftWish:
        count = min(limit, num_costly)
        return DraftWish(request, limit, count, self.controller.hope(index, count) if count else 0.0)

    def _is_asked(self, request: Request, num_costly: int) -> bool:
        """Whether a request's proposer is asked in this turn; where its drafter is, it is in any case."""
        if num_costly > 0 or not request.speculation.adaptive:
            return True
        return self._patience.is_due(request.request_id, self._steps)

    def _limit(self, request: Request) -> int:
        """The most drafts that may be verified for a request now: the token behind them has to fit, too."""
        wish = request.speculation
        if not wish.enabled:
            return 0
        room = request.max_num_tokens - request.num_tokens - 1
        return min(wish.num_speculative_tokens, self.max_drafts, room, self._scheduler.max_num_batched_tokens - 1)

    def _candidate(self, request: Request, limit: int) -> Candidate:
        wish = request.speculation
        return Candidate(
            request_id=request.request_id,
            limit=limit,
            context=request.num_tokens,
            greedy=request.sampling.greedy,
            adaptive=wish.adaptive,
            costly=self.proposers[wish.proposer].costly,
            cached=request.num_cached_tokens,
            left=request.max_num_tokens - request.num_tokens,
        )

    def _propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        """Each wish's draft, by the proposer of its request; each proposer is asked once."""
        by_name: dict[str, list[int]] = {}
        for index, wish in enumerate(wishes):
            by_name.setdefault(wish.request.speculation.proposer, []).append(index)
        drafts = [NO_DRAFT] * len(wishes)
        for name, indices in by_name.items():
            start, proposer = time.perf_counter(), self.proposers[name]
            found = proposer.propose([wishes[index] for index in indices])
            for index, draft in zip(indices, found, strict=True):
                drafts[index] = draft
            self._note_time(proposer, time.perf_counter() - start)
        return drafts

    def _note_time(self, proposer: Proposer, took_s: float) -> None:
        """Time that a proposer took is its own, whether or not anything came of it."""
        run = proposer.run
        if run.num_rows:
            self._drafter_rows += run.num_rows
            self._counters(proposer.costly).draft_s += run.draft_s if proposer.free else took_s
        if proposer.free:
            self._counters(proposer.free).draft_s += max(took_s - run.draft_s, 0.0)

    def _times(self, plan: SchedulerOutput, result: StepResult) -> TurnTimes:
        decoding = [share for share in plan.requests if share.samples and len(share.token_ids) == 1 + share.num_drafts]
        return TurnTimes(
            draft_s=self._draft_s,
            drafter_rows=self._drafter_rows,
            step_s=result.step_s,
            num_rows=plan.num_tokens,
            num_requests=len(plan.requests),
            is_decode_only=len(decoding) == len(plan.requests),
            context=sum(share.num_computed_tokens for share in plan.requests) // max(1, len(plan.requests)),
        )

    def _trace(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Notes what a step gave to traced requests, plain steps included: together they spell the text."""
        for share in plan.requests:
            request_id, request = share.request_id, self._scheduler.requests.get(share.request_id)
            if not share.trace or request is None or not result.token_ids.get(request_id):
                continue
            draft = request.draft if share.num_drafts else NO_DRAFT
            self._traces.append(
                VerifiedDraft(
                    request_id=request.client_id,
                    index=request.sample_index,
                    step=self._steps,
                    t_s=time.time(),
                    position=request.num_tokens,
                    proposer=draft.proposer,
                    draft_token_ids=list(draft.token_ids),
                    num_accepted=result.num_accepted.get(request_id, 0),
                    token_ids=list(result.token_ids[request_id]),
                    draft_ms=self._draft_s * 1e3,
                    verify_ms=result.step_s * 1e3,
                    num_requests=len(plan.requests),
                    p=result.draft_probabilities.get(request_id, []),
                    q=list(draft.confidence),
                )
            )

    def end(self, request: Request) -> None:
        """A request has ended, for whatever reason."""
        for proposer in self.proposers.values():
            proposer.end(request)
        self.controller.end(request.request_id)
        self._patience.end(request.request_id)


def _judged(request: Request, draft: Draft) -> Draft:
    """What the controller may know of a draft. A token that was sampled for `rejection` must not be verified, or left
    out, for what it is: its confidence is its own probability, and the target's share of it would be lost."""
    if request.speculation.rule == "rejection" and not request.sampling.greedy:
        return Draft(draft.token_ids, (), draft.proposer)
    return draft


def _stats(name: str, counters: DraftCounters, state: str, reason: str) -> ProposerStats:
    return ProposerStats(
        name=name,
        drafts_total=counters.drafts,
        drafted_total=counters.drafted,
        accepted_total=counters.accepted,
        accepted_per_position_total=list(counters.accepted_per_position),
        drafted_per_position_total=list(counters.drafted_per_position),
        draft_s_total=counters.draft_s,
        verify_s_total=counters.verify_s,
        state=state,
        reason=reason,
        judged_per_position_total=list(counters.judged_per_position),
    )
