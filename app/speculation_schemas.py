"""Bodies of the /api calls about speculation: drafters, an engine's proposers, self-tests, traces.

Owns field names, types and ranges. Knows nothing of what is done with them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from app.schema_base import Incoming, Outgoing, Text


class Drafter(Outgoing):
    """source: "shipped" with Pizarra, "trained" here, or another "model" on this disk."""

    id: str
    kind: str
    source: Literal["shipped", "trained", "model"]
    path: str
    size_bytes: int
    target_model_id: str
    acceptance: dict[str, Any]
    error: str


class Drafters(Outgoing):
    drafters: list[Drafter]


class ProposerState(Outgoing):
    """One proposer since the load. acceptance_rate = accepted / drafted, mean_acceptance_length = 1 + accepted /
    drafts; both null before anything was drafted. *_per_position: counts of the first draft token, the second, ...; one
    is verified where all before it were accepted: accepted / verified is the chance of a place, given those before.
    draft_s: its own time, used or not; verify_s: its share of steps that verified."""

    name: str
    state: Literal["on", "probing", "off"]
    reason: str
    drafts: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    accepted_per_position: list[int]
    drafted_per_position: list[int]
    verified_per_position: list[int]
    draft_s: float
    verify_s: float


VerdictState = Literal["pays", "even", "costs", "not_enough_data", "off", "failed", "none"]


class BriefVerdict(Outgoing):
    """Whether it pays: gain is the measured speedup, low to high its 95 % interval; null without enough data. reason:
    why there is no answer, for people; why: the same as {code, numbers...}, as `reason` of a `Verdict`."""

    state: VerdictState
    reason: str
    why: dict[str, Any] | None
    proposer: str | None
    gain: float | None
    low: float | None
    high: float | None


class Speculation(Outgoing):
    """How an engine speculates. gain: the engine's own running estimate over its last 200 turns, tokens a second with
    the drafts of late over those without; verdict: the same with an interval, from measured plain steps."""

    enabled: bool
    proposer: str
    num_speculative_tokens: int
    rule: str
    gain: float | None
    model_hash: str
    drafter_hash: str
    verdict: BriefVerdict
    proposers: list[ProposerState]


class SpeculationBody(Incoming):
    """What is to change; an absent field stays as it is. clear: forget past outputs that proposers look into."""

    enabled: bool | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=15)
    rule: Literal["match", "rejection"] | None = None
    clear: bool = False


class Judged(Outgoing):
    """Steps that were measured, against plain ones of the same batch and context.

    A step is one in which everybody decoded and drafts were allowed, whether or not any was made. accepted_per_step:
    drafts accepted of a request, a, weighted by P. plain_ms, draft_ms, verify_ms: a plain step, drafting, and a step
    that may verify, P, D and V, on average. speedup = (1 + a) P / (D + V); break_even = (D + V) / P - 1, the a at which
    that is 1.
    low, high: 95 % interval of the speedup, from means of blocks of 20 steps (plain: 4), Student's t. plain_at: when
    the oldest baseline among them was measured last. State "pays": low > 1.05; "costs": high < 1; "not_enough_data":
    fewer than 200 steps, no fresh baseline (12 plain steps, 10 minutes), or an interval beyond 0.95 and 1.05 both.
    reason: {code, numbers...}, null for the first three.
    """

    state: VerdictState
    reason: dict[str, Any] | None
    steps: int
    speedup: float | None
    low: float | None
    high: float | None
    accepted_per_step: float | None
    break_even: float | None
    plain_ms: float | None
    draft_ms: float | None
    verify_ms: float | None
    plain_steps: int
    plain_at: float | None


class DraftsTiming(Outgoing):
    """Steps with so many drafts of a request (of all requests, rounded up). verify_ms: of the step, of late."""

    num_drafts: int
    steps: int
    verify_ms: float
    accepted_per_step: float


class VerdictBucket(Judged):
    """Steps with so many requests and so many tokens of context of each (context_to: not reached; null: open)."""

    requests_from: int
    requests_to: int
    context_from: int
    context_to: int | None
    at: float | None
    by_drafts: list[DraftsTiming]


class PositionCounts(Outgoing):
    """Drafts of a place, since the load: drafted; verified (all before it were accepted); accepted."""

    position: int
    drafted: int
    verified: int
    accepted: int


class DrafterMemory(Outgoing):
    """What the drafter holds: weights, its share of the KV pool, buffers. kv_tokens: of the pool as it is;
    kv_tokens_lost: how many more it would have room for without the drafter."""

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int
    bytes: int
    kv_tokens: int
    kv_tokens_lost: int


class Verdict(Judged):
    """Whether speculation pays on this engine, over all buckets used of late, and by bucket. advice: [{code, ...}]."""

    engine_run_id: str
    model_id: str
    enabled: bool
    proposer: str | None
    num_speculative_tokens: int
    max_num_speculative_tokens: int
    rule: str
    now: float
    measured_at: float | None
    buckets: list[VerdictBucket]
    positions: list[PositionCounts]
    proposers: list[ProposerState]
    memory: DrafterMemory
    advice: list[dict[str, Any]]


class SelfTestBody(Incoming):
    """proposer: whom to test, absent: the engine's own. num_samples: of each distribution that is compared."""

    proposer: Text | None = None
    num_samples: int = Field(default=512, ge=128, le=8192)


class SelfTest(Outgoing):
    """A result. parts: one entry for each thing that was tried, with its state and figures."""

    id: str
    model_id: str
    engine_run_id: str
    model_hash: str
    drafter_hash: str
    proposer: str
    state: Literal["passed", "failed", "inconclusive"]
    started_at: float
    finished_at: float
    versions: dict[str, Any]
    parts: list[dict[str, Any]]


class SelfTests(Outgoing):
    selftests: list[SelfTest]


class SelfTestState(Outgoing):
    """Where the self-test of an engine's pair stands. The result is the newest failure that no later test of its
    proposer has undone by passing, else the newest of all. flagged: it is such a failure, also while another test is
    running. stale: the result is another version's of Pizarra."""

    state: Literal["never", "running", "passed", "failed", "inconclusive"]
    at: float | None = None
    id: str | None = None
    job_id: str | None = None
    proposer: str | None = None
    flagged: bool = False
    stale: bool = False


class EngineSelfTest(SelfTestState):
    """The same with the whole result."""

    result: SelfTest | None = None


class TraceTotals(Outgoing):
    """Sums over all steps of a request, the dropped ones included, up to the end of its answer.

    steps: of the model, each of which gave at least one token. drafts: steps that verified a draft. draft_ms,
    verify_ms: of whole steps, whose requests share them.
    """

    steps: int
    drafts: int
    drafted: int
    accepted: int
    draft_ms: float
    verify_ms: float


class RequestTrace(Outgoing):
    """The newest steps of a traced request, verifications and plain ones.

    text: the answer, which `dropped_text` and the entries' texts spell, joined. dropped: older steps that are no longer
    kept; their text is. entries: see the topic `trace:{request}`, which carries each as it comes, and at the end
    {"ended": true, "finish_reason": ...}.
    """

    request_id: str
    engine_run_id: str
    dropped: int
    dropped_text: str
    ended: bool
    finish_reason: str | None
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    text: str
    totals: TraceTotals
    entries: list[dict[str, Any]]
