"""The verdict's arithmetic, against figures worked out by hand, and what is never claimed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from app.engine_verdict import drafter_memory
from app.verdict import by_bucket, judged, recent, speedup_of, student_t
from app.verdict_advice import advice_on, better_number
from engine.core.speculation import DraftsCost
from engine.protocol import EngineMemory, EngineReady
from tests.app.fake_costs import bucket, measured_costs

NOW = 1000.0
NO_DRAFTER = {"kv_tokens_lost": 0, "bytes": 0}


@pytest.mark.parametrize(
    ("word", "state", "speedup"), [("pays", "pays", 1.5), ("even", "even", 1.0), ("costs", "costs", 0.8)]
)
def test_speedup_is_one_plus_a_times_plain_over_draft_and_verify(word: str, state: str, speedup: float) -> None:
    told = judged(measured_costs(word, NOW))
    assert (told["state"], told["reason"], told["steps"]) == (state, None, 400)
    assert told["speedup"] == pytest.approx(speedup)
    assert told["break_even"] == pytest.approx(0.3)
    assert (told["plain_ms"], told["draft_ms"], told["verify_ms"]) == pytest.approx((10.0, 1.0, 12.0))
    assert (1 + told["accepted_per_step"]) * 10 / 13 == pytest.approx(told["speedup"])
    assert (1 + told["break_even"]) * 10 / 13 == pytest.approx(1.0)
    assert (told["plain_steps"], told["plain_at"]) == (40, NOW - 5)


def test_the_interval_is_that_of_block_means_with_students_t() -> None:
    """Only acceptance varies: 20 blocks with a deviation of 0.1, so 0.1 / sqrt(20) of a, times P / C."""
    quiet = replace(bucket(NOW, 0.95), plain_variance=0.0, time_variance=0.0)
    found = speedup_of([quiet])
    assert found is not None
    reach = 2.093 * 0.1 / math.sqrt(20) * 10 / 13  # 2.093: Student's t, 97.5 %, 19 degrees of freedom
    assert (found.low, found.high) == pytest.approx((1.5 - reach, 1.5 + reach), rel=1e-4)
    plain = replace(quiet, worth_variance=0.0, plain_variance=1e-6)  # 10 blocks, 1 ms apart: 3.2 % of P
    found = speedup_of([plain])
    assert found is not None
    reach = 2.262 * 1.95 * 0.001 / math.sqrt(10) / 0.013  # 9 degrees of freedom
    assert found.high - found.value == pytest.approx(reach, rel=1e-3)


def test_what_varies_together_cancels() -> None:
    """Steps that take longer exactly where more is accepted leave the ratio as it is."""
    together = replace(bucket(NOW, 0.3), plain_variance=0.0, time_variance=0.001**2, covariance=0.001**2)
    found = speedup_of([together])
    assert found is not None
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("freedom", "point"), [(3, 3.182), (5, 2.571), (9, 2.262), (30, 2.042), (1e6, 1.960)])
def test_students_t(freedom: float, point: float) -> None:
    assert student_t(freedom) == pytest.approx(point, rel=0.01)


@pytest.mark.parametrize(
    ("word", "code", "numbers"),
    [
        ("few", "few_steps", {"steps": 180, "needed": 200}),
        ("stale", "stale_baseline", {"age_s": 3600.0, "most_s": 600.0}),
        ("wide", "wide_interval", {}),
        ("hopeful", "wide_interval", {}),
    ],
)
def test_without_evidence_there_is_a_reason_and_no_verdict(word: str, code: str, numbers: dict[str, float]) -> None:
    told = judged(measured_costs(word, NOW))
    assert (told["state"], told["reason"]) == ("not_enough_data", {"code": code, **numbers})
    assert (told["speedup"] is None) == (word not in ("wide", "hopeful"))
    assert told["verify_ms"] == pytest.approx(12.0)


def test_without_any_plain_steps_nothing_is_compared() -> None:
    alone = replace(bucket(NOW, 0.95), plain_steps=8, plain_blocks=2)
    told = judged([alone])
    assert told["reason"] == {"code": "no_baseline", "steps": 8, "needed": 12}
    assert (told["break_even"], told["plain_ms"]) == (None, None)
    compared = bucket(NOW, 0.12, steps=120)
    assert judged([compared, replace(alone, steps=280)])["reason"] == told["reason"], (
        "not the other bucket's plain steps"
    )
    assert judged([])["reason"]["code"] == "no_steps"
    assert judged([])["accepted_per_step"] is None


def test_several_buckets_are_summed_by_their_steps() -> None:
    """800 turns at 1.5 and 400 at 0.8, all of 13 ms: the mean of both, weighted by turns."""
    buckets = measured_costs("mixed", NOW)
    told = judged(buckets)
    assert (told["state"], told["steps"]) == ("pays", 1200)
    assert told["speedup"] == pytest.approx((800 * 1.5 + 400 * 0.8) / 1200)
    alone, crowded = by_bucket(buckets)
    assert (alone["state"], crowded["state"]) == ("pays", "costs")
    assert (crowded["requests_from"], crowded["requests_to"], crowded["context_to"]) == (5, 8, 512)
    stale = replace(buckets[1], plain_t_s=0.0, t_s=NOW)
    assert judged([buckets[0], stale])["speedup"] == pytest.approx(1.5), "what has no fresh baseline is left out"
    old = replace(buckets[1], t_s=NOW - 3600)
    assert recent([buckets[0], old]) == [buckets[0]]


def advice(word: str, memory: dict[str, int] = NO_DRAFTER) -> list[dict[str, Any]]:
    buckets = measured_costs(word, NOW)
    return advice_on(judged(buckets), by_bucket(buckets), memory, None)


def test_advice_follows_from_the_figures() -> None:
    assert [each["code"] for each in advice("pays")] == ["keep"]
    keep, batch = advice("mixed")
    assert (keep["code"], batch["code"], batch["requests"]) == ("keep", "off_at_batch", 5)
    assert batch["speedup"] == pytest.approx(0.8)
    held = {"kv_tokens_lost": 640, "bytes": 10**6}
    assert [each["code"] for each in advice("costs", held)] == ["turn_off", "drafter_memory"]
    assert [each["code"] for each in advice("pays", held)] == ["keep"]
    assert advice("few") == [{"code": "go_on", "steps": 180, "needed": 200}]


def test_fewer_drafts_are_advised_where_they_promise_clearly_more() -> None:
    """Half of all turns draft. Two drafts: 0.9 + 0.81 accepted; four cost 30 ms a step."""
    costs = [DraftsCost(0, 200, 0.010, 0.0), DraftsCost(2, 100, 0.012, 1.7), DraftsCost(4, 100, 0.030, 2.0)]
    buckets = [replace(bucket(NOW, 0.5), by_drafts=costs)]
    judged_, accepted = [100, 90, 81, 73], [90, 81, 20, 5]
    found = better_number(buckets, judged_, accepted, 8, 1.15)
    assert found is not None
    assert found["num_drafts"] == 2
    assert found["speedup"] == pytest.approx((1 + 0.5 * 1.71) * 10 / (1 + 0.5 * 12 + 0.5 * 10))
    assert better_number(buckets, judged_, accepted, 8, found["speedup"]) is None
    assert better_number(buckets, judged_, accepted, 2, 1.15) is None, "that is the limit already"
    assert better_number(buckets, [29], [29], 8, 1.15) is None, "a place that was hardly judged"


def test_a_drafters_memory_is_tokens_that_the_pool_could_hold() -> None:
    """A block of 16 tokens is 100 bytes; the drafter holds 1000 + 200 + 300: 15 blocks."""
    memory = EngineMemory(
        kv_bytes=1200, draft_weights_bytes=1000, draft_kv_bytes=200, draft_workspace_bytes=300, workspace_bytes=400
    )
    blank = dict.fromkeys(("architecture", "device", "device_name", "dtype", "exactness", "exactness_reason"), "")
    sizes = {"num_kv_blocks": 10, "block_size": 16, "max_model_len": 1, "vocab_size": 1, "num_threads": 1}
    ready = EngineReady(1, 1, effective_settings=[], memory=memory, kernels={}, **blank, **sizes)  # type: ignore[arg-type]
    assert drafter_memory(ready) == {
        "weights_bytes": 1000,
        "kv_bytes": 200,
        "workspace_bytes": 300,
        "bytes": 1500,
        "kv_tokens": 160,
        "kv_tokens_lost": 240,
    }
