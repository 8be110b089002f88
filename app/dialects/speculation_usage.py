"""What an engine grants of a wish for speculation, and what the answer says of its drafts.

Owns the refusals and the figures of `usage.speculation`. Knows nothing of how drafts are made. Invariant: a wish that
this engine cannot grant is refused with what it could, or named as ignored where the answer stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.errors import ApiError
from app.generation import Generation
from app.loaded_engine import Engine
from app.request_figures import sum_positions
from engine.core.speculation import DEFAULT_SPECULATION, SpeculationParams


def granted(wish: SpeculationParams | None, engine: Engine) -> SpeculationParams:
    """The wish as the engine gets it. Raises ApiError for a proposer that it does not have."""
    wish = wish or DEFAULT_SPECULATION
    has = engine.ready.proposers
    if wish.proposer and wish.proposer not in has:
        if has:
            found = f"{engine.model_id} was loaded with {', '.join(has)}"
            remedy = "Ask for one of these, or load the model with another speculation or drafter"
        else:
            found, remedy = (
                f"{engine.model_id} was loaded without speculation",
                "Load the model with it, or leave it out",
            )
        raise ApiError(
            400,
            f"speculation.proposer={wish.proposer!r}: {found}",
            param="speculation.proposer",
            remedy=remedy,
            code="invalid_value",
        )
    return wish


def ignored_wish(wish: SpeculationParams | None, engine: Engine) -> list[str]:
    """The field's name where drafts are asked for and this engine makes none: the same answer comes without them."""
    asks = wish is not None and wish.enabled
    return ["speculation"] if asks and not (engine.ready.proposers and engine.speculation.enabled) else []


def speculation_usage(generations: Sequence[Generation]) -> dict[str, Any]:
    """`usage.speculation` of a request: its drafts, and how far they were right.

    counted_output_tokens: the tokens that the counters are about. They are more than the answer's where the engine had
    gone on before it heard that a stop string ended the answer.
    """
    summaries = [each.summary for generation in generations for each in generation.samples if each.summary is not None]
    first = generations[0]
    drafts, drafted = sum(each.drafts for each in summaries), sum(each.drafted for each in summaries)
    accepted = sum(each.accepted for each in summaries)
    return {
        "proposer": first.row.proposer,
        "rule": first.rule,
        "num_speculative_tokens": first.most_drafts,
        "drafts": drafts,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
        "accepted_per_position": sum_positions([each.accepted_per_position for each in summaries]),
        "drafted_per_position": sum_positions([each.drafted_per_position for each in summaries]),
        "draft_ms": 1000 * sum(each.draft_s for each in summaries),
        "verify_ms": 1000 * sum(each.verify_s for each in summaries),
        "counted_output_tokens": sum(each.num_output_tokens for each in summaries),
    }


def with_speculation(usage: dict[str, Any], generations: Sequence[Generation]) -> dict[str, Any]:
    """The usage, with its speculation where `trace` asked for it."""
    if not any(each.message.trace for each in generations):
        return usage
    return {**usage, "speculation": speculation_usage(generations)}
