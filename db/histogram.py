"""Latency histograms over fixed logarithmic buckets, so that any two of them merge exactly.

Owns the bucket bounds and the stored form. Knows nothing of what is timed or where it is stored.
Invariant: the bounds never change; bucket i counts seconds in (bound(i - 1), bound(i)], ten buckets a decade.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

BUCKETS_PER_DECADE = 10
LOWEST_S = 1e-4  # bucket 0 counts everything up to this
NUM_BUCKETS = 7 * BUCKETS_PER_DECADE + 2  # 0.1 ms to 1000 s, and one bucket for everything above


def upper_bound_s(bucket: int) -> float:
    """Where `bucket` ends, in seconds; infinity for the last."""
    if bucket == NUM_BUCKETS - 1:
        return math.inf
    return LOWEST_S * math.pow(10.0, bucket / BUCKETS_PER_DECADE)


def bucket_of(seconds: float) -> int:
    """The bucket that counts `seconds`."""
    if seconds <= LOWEST_S:
        return 0
    exact = math.log10(seconds / LOWEST_S) * BUCKETS_PER_DECADE
    return math.ceil(min(exact - 1e-9, NUM_BUCKETS - 1))


@dataclass(slots=True)
class LatencyHistogram:
    """How often each bucket was hit; empty buckets are absent."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """Count one latency."""
        bucket = bucket_of(seconds)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: LatencyHistogram) -> None:
        """Count all that `other` counted."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    @property
    def count(self) -> int:
        """How many latencies were counted."""
        return sum(self.counts.values())

    def quantile(self, q: float) -> float | None:
        """The latency below which the share `q` lies, interpolated inside its bucket; None when empty."""
        wanted = q * self.count
        seen = 0
        for bucket in sorted(self.counts):
            inside = self.counts[bucket]
            if seen + inside >= wanted:
                return _interpolate(bucket, (wanted - seen) / inside)
            seen += inside
        return None

    def dumps(self) -> str | None:
        """The stored form; None when empty."""
        if not self.counts:
            return None
        return json.dumps({str(bucket): self.counts[bucket] for bucket in sorted(self.counts)}, separators=(",", ":"))

    @classmethod
    def loads(cls, text: str | None) -> LatencyHistogram:
        """The histogram of a stored form."""
        return cls({int(bucket): count for bucket, count in json.loads(text).items()} if text else {})


def _interpolate(bucket: int, share: float) -> float:
    """The point `share` of the way through `bucket`, on the logarithmic scale of the bounds."""
    if bucket == 0:
        return LOWEST_S
    low = upper_bound_s(bucket - 1)
    high = upper_bound_s(bucket)
    return low if math.isinf(high) else low * (high / low) ** share


class MergeHistograms:
    """SQLite aggregate `merge_histograms(text)`: the stored form of the sum of stored histograms."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def step(self, text: str | None) -> None:
        """One row."""
        if text is not None:
            self._texts.append(text)

    def finalize(self) -> str | None:
        """The merged histogram."""
        if len(self._texts) == 1:  # most seconds of a reading: nothing to merge
            return self._texts[0]
        merged = LatencyHistogram()
        for text in self._texts:
            merged.merge(LatencyHistogram.loads(text))
        return merged.dumps()
