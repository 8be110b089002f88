"""Latency histograms: fixed buckets, exact merging, quantiles within a bucket's width."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.histogram import LOWEST_S, NUM_BUCKETS, LatencyHistogram, bucket_of, upper_bound_s

LATENCIES = st.lists(st.floats(min_value=1e-6, max_value=1e5), max_size=60)


def _histogram(latencies: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for seconds in latencies:
        histogram.add(seconds)
    return histogram


@given(st.floats(min_value=0, max_value=1e6))
def test_every_latency_lies_in_its_bucket(seconds: float) -> None:
    bucket = bucket_of(seconds)
    assert 0 <= bucket < NUM_BUCKETS
    assert seconds <= upper_bound_s(bucket) * (1 + 1e-9)
    if bucket > 0:
        assert seconds > upper_bound_s(bucket - 1) * (1 - 1e-9)


def test_a_bound_belongs_to_the_bucket_it_ends() -> None:
    assert [bucket_of(upper_bound_s(bucket)) for bucket in range(NUM_BUCKETS)] == list(range(NUM_BUCKETS))
    assert math.isinf(upper_bound_s(NUM_BUCKETS - 1))
    assert upper_bound_s(NUM_BUCKETS - 2) == pytest.approx(1000.0)


@given(LATENCIES, LATENCIES)
def test_merging_equals_counting_all(some: list[float], more: list[float]) -> None:
    merged = _histogram(some)
    merged.merge(_histogram(more))
    assert merged == _histogram(some + more)
    assert merged.count == len(some) + len(more)


@given(LATENCIES)
def test_the_stored_form_keeps_everything(latencies: list[float]) -> None:
    histogram = _histogram(latencies)
    assert LatencyHistogram.loads(histogram.dumps()) == histogram


@given(st.lists(st.floats(min_value=LOWEST_S, max_value=900), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_quantiles_are_right_to_a_bucket(latencies: list[float], q: float) -> None:
    exact = sorted(latencies)[max(0, math.ceil(q * len(latencies) - 1e-9) - 1)]
    quantile = _histogram(latencies).quantile(q)
    assert quantile is not None
    assert abs(bucket_of(quantile) - bucket_of(exact)) <= 1


def test_ends_of_the_scale() -> None:
    assert LatencyHistogram().quantile(0.5) is None
    assert LatencyHistogram().dumps() is None
    assert _histogram([1e-6]).quantile(0.5) == LOWEST_S
    assert _histogram([1e9]).quantile(0.5) == pytest.approx(1000.0)
