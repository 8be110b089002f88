"""A short `make soak`: the same mixed life, with fewer requests."""

from __future__ import annotations

from bench.soak_engine import soak


def test_nothing_is_left_behind_by_a_mixed_life() -> None:
    assert soak(160, seed=1) == []
