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
    drafts; both null before anything was drafted. *_per_position: counts of the first draft token, the second, ..."""

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
    draft_s: float


class Speculation(Outgoing):
    """How an engine speculates. gain: measured, tokens a second with the drafts of late over those without."""

    enabled: bool
    proposer: str
    num_speculative_tokens: int
    rule: str
    gain: float | None
    model_hash: str
    drafter_hash: str
    proposers: list[ProposerState]


class SpeculationBody(Incoming):
    """What is to change; an absent field stays as it is. clear: forget past outputs that proposers look into."""

    enabled: bool | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=15)
    rule: Literal["match", "rejection"] | None = None
    clear: bool = False


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
    """Where the self-test of an engine's pair stands. stale: the result is another version's of Pizarra."""

    state: Literal["never", "running", "passed", "failed", "inconclusive"]
    at: float | None = None
    id: str | None = None
    job_id: str | None = None
    proposer: str | None = None
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
