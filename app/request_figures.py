"""The figures of an ended request, and why it ended, from its samples.

Owns what is taken of the first sample and what is summed over all. Knows nothing of how a request runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.sample_text import SampleText
from engine.protocol import AddRequest
from engine.vocab import Vocab

SUMMED = ("num_preemptions", "drafts", "drafted", "accepted", "draft_s", "verify_s")
SUMMED_POSITIONS = ("accepted_per_position", "drafted_per_position")


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all values do not exceed; None of none."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)] if values else None


def sum_positions(counts: Sequence[Sequence[int]]) -> list[int]:
    """Counts per position of several requests, added up; they need not be equally long."""
    length = max(map(len, counts), default=0)
    return [sum(each[position] for each in counts if position < len(each)) for position in range(length)]


def summary_figures(samples: Sequence[SampleText]) -> dict[str, object]:
    """What the engine said at the end: of the first sample where the samples share it, else in sum."""
    summaries = [sample.summary for sample in samples if sample.summary is not None]
    if not summaries:
        return {}
    first = summaries[0]
    summed: dict[str, object] = {name: sum(getattr(each, name) for each in summaries) for name in SUMMED}
    summed |= {name: sum_positions([getattr(each, name) for each in summaries]) for name in SUMMED_POSITIONS}
    shared = {"num_cached_tokens": first.num_cached_tokens, "queue_s": first.timing.queue_s, "seed": first.seed}
    return {**shared, **summed}


def arrival_figures(samples: Sequence[SampleText]) -> dict[str, float | int | None]:
    """Tokens and their pace, by when they reached the server."""
    arrivals = sorted(arrival for sample in samples for arrival in sample.arrivals)
    decode_s = arrivals[-1][0] - arrivals[0][0] if arrivals else 0.0
    num_tokens = sum(sample.num_tokens for sample in samples)
    decoded = num_tokens - (arrivals[0][1] if arrivals else 0)
    gaps = [gap for sample in samples for gap in sample.token_gaps()]
    return {
        "num_output_tokens": num_tokens,
        "itl_p95_s": percentile(gaps, 0.95),
        "tokens_per_s": decoded / decode_s if decode_s > 0 and decoded > 0 else None,
    }


def stop_cause(sample: SampleText, message: AddRequest, vocab: Vocab, max_model_len: int) -> str:
    """What lies behind "stop" or "length" (see `app.request_timeline.STOP_CAUSES`)."""
    sampling = message.sampling
    if message.pooling:
        return "computed"
    if sample.finish_reason == "length":
        full = len(message.prompt_token_ids) + sample.num_tokens >= max_model_len
        return "context" if full else "max_tokens"
    if sample.stopped:
        return "stop_string"
    if sample.last_token_id in sampling.stop_token_ids:
        return "stop_token"
    ends = not sampling.ignore_eos and sample.last_token_id in vocab.eos_token_ids
    return "end_token" if ends or sampling.guided is None else "grammar"
