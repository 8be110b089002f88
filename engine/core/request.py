"""A request as the scheduler sees it: its tokens, how far they are computed, and where it stands.

Knows nothing of blocks (the KV cache manager does) or of text. Invariant: between steps `0 <= num_computed_tokens <=
num_tokens`; what is still to be computed is always `num_tokens_with_drafts - num_computed_tokens`, whether that is a
prompt, a chunk, one new token, or a draft to verify.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field, replace

from engine.core.grammar import GrammarMatcher
from engine.core.inspection import InspectionWish
from engine.core.outputs import Logprobs, RequestSummary, RequestTiming
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import DEFAULT_SPECULATION, NO_DRAFT, BlockIds, Draft, DraftCounters, SpeculationParams
from engine.core.timeline import Timeline

POOLINGS = ("", "last", "mean")  # of a prompt's hidden states: none; the last token's; the mean


class RequestStatus(enum.Enum):
    """Where a request stands.

    WAITING is in the queue. WAITING_GRAMMAR (until its grammar is compiled) and WAITING_SIBLING (until the first sample
    of the same prompt has computed it) are not in it yet. WAITING_REMOTE_KV is reserved for caches that arrive from
    elsewhere.
    """

    WAITING = enum.auto()
    WAITING_GRAMMAR = enum.auto()
    WAITING_SIBLING = enum.auto()
    WAITING_REMOTE_KV = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to continue.

    token_ids: prompt and output together. seed: the 64-bit key of its noise. end_token_ids: tokens that end the answer.
    max_output_tokens: clipped by the engine so that the sequence fits `max_model_len`. priority: lower is served first.
    cache_salt: only requests of one salt share cached blocks. block_hashes: of its full blocks, as far as needed.
    prompt_logprobs: those of the prompt that are known, from its second token on. client_id: the id that its rows bear,
    where it is one of several samples; sample_index: which. grammar: what its answer must obey. pooling: one of
    POOLINGS; other than "" it wants its prompt's hidden states pooled, and no tokens. draft: tokens that may follow its
    last one, to be verified in its next step. trace: whether each verification is told in full. inspect: it has one
    token, and wants to hear how that was drawn. verified: of each draft that was, how many output tokens stood before
    it, its length, and how many were accepted. untold_blocks: added to its tables, and not yet told to the runner.
    timeline: its course, for its timing.
    """

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    seed: int
    end_token_ids: frozenset[int]
    max_output_tokens: int
    priority: int = 0
    cache_salt: str = ""
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_published_blocks: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    prompt_logprobs: Logprobs = field(default_factory=Logprobs)
    client_id: str = ""
    sample_index: int = 0
    grammar: GrammarMatcher | None = None
    pooling: str = ""
    speculation: SpeculationParams = DEFAULT_SPECULATION
    trace: bool = False
    inspect: InspectionWish | None = None
    draft: Draft = NO_DRAFT
    draft_counters: DraftCounters = field(default_factory=DraftCounters)
    verified: list[tuple[int, int, int]] = field(default_factory=list)
    untold_blocks: list[BlockIds] = field(default_factory=list)
    num_prompt_tokens: int = field(init=False)
    arrival_s: float = field(default_factory=time.monotonic)
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    timeline: Timeline = field(default_factory=Timeline)

    def __post_init__(self) -> None:
        self.client_id = self.client_id or self.request_id
        self.num_prompt_tokens = len(self.token_ids)

    def sibling(self, sample_index: int) -> Request:
        """Another sample of this request's prompt, before anything is computed. Its prompt's log probabilities are the
        first one's work."""
        return Request(
            request_id=f"{self.request_id}\0{sample_index}",
            token_ids=list(self.token_ids),
            sampling=replace(self.sampling, prompt_logprobs=None),
            seed=self.seed,
            end_token_ids=self.end_token_ids,
            max_output_tokens=self.max_output_tokens,
            priority=self.priority,
            cache_salt=self.cache_salt,
            arrival_s=self.arrival_s,
            client_id=self.request_id,
            sample_index=sample_index,
            speculation=self.speculation,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_tokens_with_drafts(self) -> int:
        return len(self.token_ids) + len(self.draft.token_ids)

    @property
    def rank(self) -> tuple[int, float]:
        """Who goes first: the lower priority number, then the earlier arrival."""
        return self.priority, self.arrival_s

    @property
    def max_num_tokens(self) -> int:
        """What it may grow to."""
        return self.num_prompt_tokens + self.max_output_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether log probabilities of the prompt are wanted and not all known: the whole prompt must be computed."""
        known = len(self.prompt_logprobs.logprobs)
        return self.sampling.prompt_logprobs is not None and known < self.num_prompt_tokens - 1

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every token of the prompt must be computed: what it wants of them, a cached block does not hold."""
        return self.lacks_prompt_logprobs or self.pooling == "mean"

    def mark_scheduled(self, now: float) -> None:
        """Stamps the end of its time in the queue."""
        self.scheduled_s = now

    def append_output(self, token_id: int) -> FinishReason | None:
        """Takes one sampled token; returns why the request ends with it, or None."""
        self.token_ids.append(token_id)
        self.last_token_s = time.monotonic()
        if self.first_token_s is None:
            self.first_token_s = self.last_token_s
        if self.grammar is not None:
            self.grammar.accept(token_id)
        if token_id in self.end_token_ids or (self.grammar is not None and self.grammar.is_complete):
            return FinishReason.STOP
        if self.num_output_tokens >= self.max_output_tokens:
            return FinishReason.LENGTH
        return None

    def take_untold_blocks(self, added: BlockIds) -> BlockIds:
        """All blocks that the runner has not heard of, `added` the last of them; it is told now."""
        if not self.untold_blocks:
            return added
        parts, self.untold_blocks = [*self.untold_blocks, added], []
        return tuple(tuple(block for part in parts for block in part[group]) for group in range(len(added)))

    def observe_draft(self, num_output_tokens: int, num_drafted: int, num_accepted: int) -> None:
        """Counts a draft that was verified behind `num_output_tokens`."""
        self.verified.append((num_output_tokens, num_drafted, num_accepted))
        self.draft_counters.observe(num_drafted, num_accepted)

    def _draft_counters(self, num_output_tokens: int) -> DraftCounters:
        """The counters of what led to the first `num_output_tokens`."""
        if num_output_tokens >= self.num_output_tokens:
            return self.draft_counters
        counters = DraftCounters(draft_s=self.draft_counters.draft_s, verify_s=self.draft_counters.verify_s)
        for before, drafted, accepted in self.verified:
            if before < num_output_tokens:
                counters.observe(drafted, min(accepted, num_output_tokens - before))
        return counters

    def summary(self, num_output_tokens: int | None = None) -> RequestSummary:
        """The figures of the ended request; `num_output_tokens` overrides what counts (a stop string was found).

        Drafts that were verified behind it do not count then; the time that was spent on them does.
        """
        counted = self.num_output_tokens if num_output_tokens is None else num_output_tokens
        drafts = self._draft_counters(counted)
        return RequestSummary(
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=counted,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            seed=None if self.pooling else self.seed,
            drafts=drafts.drafts,
            drafted=drafts.drafted,
            accepted=drafts.accepted,
            accepted_per_position=list(drafts.accepted_per_position),
            drafted_per_position=list(drafts.drafted_per_position),
            draft_s=drafts.draft_s,
            verify_s=drafts.verify_s,
            timing=self._timing(),
        )

    def _timing(self) -> RequestTiming:
        line = self.timeline
        return RequestTiming(
            queue_s=_interval(self.arrival_s, self.scheduled_s),
            prefill_s=_interval(self.scheduled_s, self.first_token_s),
            decode_s=_interval(self.first_token_s, self.last_token_s),
            arrival_t=line.arrival_t,
            end_s=time.monotonic() - self.arrival_s,
            wait=line.wait,
            chunks=list(line.chunks),
            preemptions=list(line.preemptions),
            decode_steps=line.decode_steps,
            others_mean=line.others / line.decode_steps if line.decode_steps else None,
            others_max=line.others_max,
            others_prompt_tokens=line.others_prompt_tokens,
        )


def _interval(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
