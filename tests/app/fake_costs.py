"""What the fake engine says of its drafts: its proposers, and, by a word, tables whose verdicts are known by hand."""

from __future__ import annotations

from engine.core.speculation import CostBucket, DraftCounters, DraftsCost, ProposerStats


def bucket(
    t_s: float, accepted: float, *, size: int = 1, steps: int = 400, plain_age_s: float = 5.0, spread: float = 0.1
) -> CostBucket:
    """A plain step takes 10 ms, one with drafts 12 ms, drafting 1 ms: drafts break even at 0.3 accepted of a step."""
    return CostBucket(
        requests_from=1 if size == 1 else size // 2 + 1,
        requests_to=size,
        context_from=0,
        context_to=512,
        plain_steps=40,
        plain_blocks=10,
        plain_s=0.010,
        plain_variance=1e-8,
        plain_t_s=t_s - plain_age_s,
        steps=steps,
        blocks=steps // 20,
        baseline_s=0.010,
        worth_s=0.010 * (1.0 + accepted),
        drafted=2.0,
        step_s=0.012,
        draft_s=0.001,
        worth_variance=(0.010 * spread) ** 2,
        time_variance=1e-8,
        covariance=0.0,
        t_s=t_s,
        by_drafts=[
            DraftsCost(0, steps // 4, 0.010, 0.0),
            DraftsCost(2, steps // 4, 0.0120, accepted),
            DraftsCost(4, steps // 2, 0.0135, accepted),
        ],
    )


def measured_costs(word: str, t_s: float) -> list[CostBucket]:
    """pays: 1.5 times as fast. even: 1.0. costs: 0.8. mixed: 1.5 alone, 0.8 from 5 requests on. The others: unknown."""
    tables = {
        "pays": [bucket(t_s, 0.95)],
        "even": [bucket(t_s, 0.3)],
        "costs": [bucket(t_s, 0.04)],
        "mixed": [bucket(t_s, 0.95, steps=800), bucket(t_s, 0.04, size=8)],
        "few": [bucket(t_s, 0.95, steps=180)],
        "stale": [bucket(t_s, 0.95, plain_age_s=3600.0)],
        "wide": [bucket(t_s, 0.3, spread=3.0)],
        "hopeful": [bucket(t_s, 1.0, spread=1.5)],
    }
    return tables[word]


def proposers(total: DraftCounters, why_off: str) -> list[ProposerStats]:
    """`suffix` has made all drafts."""
    suffix = ProposerStats(
        "suffix",
        total.drafts,
        total.drafted,
        total.accepted,
        total.accepted_per_position,
        total.drafted_per_position,
        total.draft_s,
        "off" if why_off else "on",
        why_off,
        total.judged_per_position,
    )
    return [ProposerStats("ngram"), suffix]
