"""What is said about speculation between its parts: wishes, drafts, plans, counters. Plain data, no torch.

Owns the words (design, sections 7 and 10). A *proposer* makes *drafts* for a request: tokens that may follow its last
one. The target *verifies* them in one step: the first ones that it would have drawn itself are *accepted*; the token
that replaces the first other one is *recovered*, the one behind a whole accepted draft is the *bonus*.
Invariant: counters only grow; `acceptance_rate = accepted / drafted`, `mean_acceptance_length = 1 + accepted / drafts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import MAX_DRAFTS, SPECULATION_RULES, SPECULATIONS, LoadOptions
from engine.core.sampling_params import SamplingError, SamplingParams

MAX_VERIFY_ROWS = 256  # of one step: beyond, logits cost more memory than drafts bring
BlockIds = tuple[tuple[int, ...], ...]  # of each KV group


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """What a request wants of speculation. An engine without the proposer that is named refuses the request.

    enabled: False decodes plainly. proposer: one of the engine's own, empty: its choice. num_speculative_tokens: at
    most so many drafts a step, 0: what the engine has. rule: "match" or "rejection", empty: the engine's. adaptive:
    False drafts as much as it may in every step, whatever that costs: for proofs and self-tests. learn: False keeps
    nothing of its answer for the drafts of later requests.
    """

    enabled: bool = True
    proposer: str = ""
    num_speculative_tokens: int = 0
    rule: str = ""
    adaptive: bool = True
    learn: bool = True

    def __post_init__(self) -> None:
        known = [name for name in SPECULATIONS if name not in ("auto", "off")]
        if self.proposer and self.proposer not in known:
            raise SamplingError("speculation", f"speculation.proposer={self.proposer!r}: known are {', '.join(known)}")
        if self.rule and self.rule not in SPECULATION_RULES:
            raise SamplingError(
                "speculation", f"speculation.rule={self.rule!r}: known are {', '.join(SPECULATION_RULES)}"
            )
        if not 0 <= self.num_speculative_tokens <= MAX_DRAFTS:
            raise SamplingError(
                "speculation",
                f"speculation.num_speculative_tokens={self.num_speculative_tokens}: must lie between 1 and "
                f"{MAX_DRAFTS}, or be 0 for the engine's own",
            )


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed to follow a request's last one; empty: nothing.

    confidence: the proposer's own guess, for each token, that it is accepted if those before it are; in (0, 1), rough,
    and calibrated by the controller. proposer: who made it.
    """

    token_ids: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()
    proposer: str = ""

    def part(self, count: int) -> Draft:
        """The first `count` tokens."""
        return Draft(self.token_ids[:count], self.confidence[:count], self.proposer)


DEFAULT_SPECULATION = SpeculationParams()
NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class DraftShare:
    """One request's share of a draft plan: plain data, as `engine.core.scheduler.ScheduledRequest` is.

    token_ids: the request's tokens from position num_computed_tokens on, which the target has not computed: its last
    one. block_ids: added to its tables since the runner last heard of it; the tables have room for num_drafts more
    tokens. rule: where it is "rejection" and the draft is sampled, the distribution is kept for the verification.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_computed_tokens: int
    block_ids: BlockIds
    num_drafts: int
    sampling: SamplingParams
    seed: int
    sample_index: int = 0
    rule: str = "match"


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What a drafter is asked for in one turn."""

    requests: tuple[DraftShare, ...]


@dataclass(frozen=True, slots=True)
class DraftResult:
    """drafts: in the plan's order, perhaps shorter than asked for or empty. draft_s: the time that it took. num_rows:
    entries of the first pass, what had to be caught up with among them."""

    drafts: tuple[Draft, ...]
    draft_s: float
    num_rows: int = 0


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """One step of a traced request, for people to read: a verification, or, without drafts, a plain step.

    position: where the first draft stands in the sequence. token_ids: what came of it, accepted drafts and one token
    more (recovered, or the bonus). draft_ms, verify_ms: of the whole batch's draft and step. p: each draft's
    probability under what the target draws from (of a greedy request: under its softmax); q: the proposer's confidence.
    """

    request_id: str
    index: int
    step: int
    t_s: float
    position: int
    proposer: str
    draft_token_ids: list[int]
    num_accepted: int
    token_ids: list[int]
    draft_ms: float
    verify_ms: float
    num_requests: int
    p: list[float] = field(default_factory=list)
    q: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProposerStats:
    """The counters of one proposer, as an engine sends them. acceptance: None before anything was drafted.

    draft_s_total: spent by it, whether or not anything came of it; verify_s_total: its share of steps that verified.
    state: "on" | "probing" | "off"; reason: why it is not on, for people. judged: see `DraftCounters`.
    """

    name: str
    drafts_total: int = 0
    drafted_total: int = 0
    accepted_total: int = 0
    accepted_per_position_total: list[int] = field(default_factory=list)
    drafted_per_position_total: list[int] = field(default_factory=list)
    draft_s_total: float = 0.0
    state: str = "on"
    reason: str = ""
    judged_per_position_total: list[int] = field(default_factory=list)
    verify_s_total: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftsCost:
    """The turns of a bucket with so many drafts of a request (of all requests, rounded up): how many there were, and
    of late what their step took and how many drafts of a request were accepted."""

    num_drafts: int
    steps: int
    step_s: float
    accepted: float


@dataclass(frozen=True, slots=True)
class CostBucket:
    """What turns took in which everybody decoded, by requests and by tokens of a request (context_to: not reached;
    0: open). Means of the last turns in whole blocks; variances are those between the means of blocks.

    plain_*: of steps without drafts, in the time of the other turns; plain_variance: from differences of blocks that
    follow each other, so that a drift, which all turns share, does not count. The others: of turns in which drafts were
    allowed, whether or not any was made. baseline_s: what a plain step took at that moment; worth_s: (1 + accepted of a
    request) times that; step_s of the step, draft_s of drafting, time: both. drafted: tokens of a request.
    plain_t_s, t_s: when the last one was, in seconds since the epoch.
    """

    requests_from: int
    requests_to: int
    context_from: int
    context_to: int
    plain_steps: int = 0
    plain_blocks: int = 0
    plain_s: float = 0.0
    plain_variance: float = 0.0
    plain_t_s: float = 0.0
    steps: int = 0
    blocks: int = 0
    baseline_s: float = 0.0
    worth_s: float = 0.0
    drafted: float = 0.0
    step_s: float = 0.0
    draft_s: float = 0.0
    worth_variance: float = 0.0
    time_variance: float = 0.0
    covariance: float = 0.0
    t_s: float = 0.0
    by_drafts: list[DraftsCost] = field(default_factory=list)


@dataclass(slots=True)
class DraftCounters:
    """Ever-growing counts of one request, one proposer or one engine. accepted_per_position[i]: how often draft i was
    accepted. judged_per_position[i]: how often draft i was there and all before it were accepted; behind a rejected
    one a draft is not judged. draft_s, verify_s: time spent on drafting, and in steps that verified."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    judged_per_position: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Counts one verified draft that was not empty."""
        self.drafts += 1
        self.drafted += num_drafted
        self.accepted += num_accepted
        for counts, reached in (
            (self.drafted_per_position, num_drafted),
            (self.judged_per_position, min(num_accepted + 1, num_drafted)),
            (self.accepted_per_position, num_accepted),
        ):
            counts.extend([0] * (num_drafted - len(counts)))
            for position in range(reached):
                counts[position] += 1

    def add(self, other: DraftCounters) -> None:
        """Adds another's counts."""
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.draft_s += other.draft_s
        self.verify_s += other.verify_s
        for mine, theirs in (
            (self.drafted_per_position, other.drafted_per_position),
            (self.judged_per_position, other.judged_per_position),
            (self.accepted_per_position, other.accepted_per_position),
        ):
            mine.extend([0] * (len(theirs) - len(mine)))
            for position, count in enumerate(theirs):
                mine[position] += count


def most_sampled_rows(options: LoadOptions) -> int:
    """Rows of logits that one step may have: one for each request, and those that verify drafts beside them."""
    if options.speculation == "off":
        return options.max_num_seqs
    wanted = min(options.max_num_seqs * (1 + options.num_speculative_tokens), MAX_VERIFY_ROWS)
    return max(options.max_num_seqs, min(wanted, options.max_num_batched_tokens))
