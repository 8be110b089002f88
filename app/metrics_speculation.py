"""The series of /metrics that speculation brings: vLLM's four, and ours beside them.

Owns their names and labels. Counts nothing. Invariant: positions and proposers are labels, so that a series never
changes its meaning; position 0 is a draft's first token, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.core.speculation import ProposerStats
from engine.protocol import EngineStats

Counted = Sequence[tuple[tuple[str, str], EngineStats]]  # (model_name, engine) and what it said last

COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("vllm:spec_decode_num_drafts", "Drafts verified.", lambda s: s.drafts_total),
    ("vllm:spec_decode_num_draft_tokens", "Tokens of the verified drafts.", lambda s: s.drafted_total),
    ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", lambda s: s.accepted_total),
    ("pizarra_draft_seconds", "Time spent on drafting.", lambda s: s.draft_s_total),
    ("pizarra_verify_seconds", "Time of steps that verified drafts.", lambda s: s.verify_s_total),
)
PER_POSITION: tuple[tuple[str, str, Callable[[EngineStats], Sequence[int]]], ...] = (
    (
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted tokens by their position in the draft.",
        lambda s: s.accepted_per_position_total,
    ),
    (
        "pizarra_drafted_tokens_per_pos",
        "Drafted tokens by their position in the draft.",
        lambda s: s.drafted_per_position_total,
    ),
)
PER_PROPOSER: tuple[tuple[str, str, Callable[[ProposerStats], float]], ...] = (
    ("pizarra_proposer_drafts", "Drafts of one proposer that were verified.", lambda p: p.drafts_total),
    ("pizarra_proposer_drafted_tokens", "Tokens of these drafts.", lambda p: p.drafted_total),
    ("pizarra_proposer_accepted_tokens", "Those of them that were accepted.", lambda p: p.accepted_total),
    ("pizarra_proposer_draft_seconds", "Time that one proposer spent, used or not.", lambda p: p.draft_s_total),
    ("pizarra_proposer_verify_seconds", "Its share of steps that verified.", lambda p: p.verify_s_total),
)


def speculation_families(counted: Counted, labels: Sequence[str]) -> Iterator[Metric]:
    """All of them. Engines that have said nothing yet have no series."""
    for name, text, read in COUNTERS:
        yield _counter(name, text, labels, ((run, read(stats)) for run, stats in counted))
    for name, text, counts in PER_POSITION:
        positions = (
            ((*run, str(position)), count) for run, stats in counted for position, count in enumerate(counts(stats))
        )
        yield _counter(name, text, (*labels, "position"), positions)
    proposers = [((*run, each.name), each) for run, stats in counted for each in stats.proposers]
    for name, text, of_proposer in PER_PROPOSER:
        yield _counter(name, text, (*labels, "proposer"), ((run, of_proposer(each)) for run, each in proposers))
    on = GaugeMetricFamily(
        "pizarra_proposer_on",
        "1 while a proposer drafts, 0 while it is off or being tried.",
        labels=(*labels, "proposer"),
    )
    for key, each in proposers:
        on.add_metric(key, float(each.state == "on"))
    gain = GaugeMetricFamily(
        "pizarra_speculation_gain", "Measured: tokens a second with drafts over those without.", labels=labels
    )
    for run, stats in counted:
        if stats.speculation_gain is not None:
            gain.add_metric(run, stats.speculation_gain)
    yield from (on, gain)


def _counter(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for run, value in values:
        family.add_metric(run, value)
    return family
