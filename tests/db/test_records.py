"""Runs, requests, jobs, events, settings: saving again replaces, lists are newest first and page without holes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from db.errors import NotFound
from db.rows import EngineRunRow, JobRow, RequestRow, SelfTestRow
from db.store import Store


def test_engine_runs(store: Store) -> None:
    loading = EngineRunRow("r", "tiny", "loading", 1.0)
    store.save_engine_run(loading)
    pair: dict[str, Any] = {"model_hash": "m1", "drafter_hash": "d1", "speculation": "hybrid"}
    ready = replace(
        loading, **pair, state="ready", pid=5, memory={"kv_bytes": 7}, effective_settings=[{"name": "dtype"}]
    )
    store.save_engine_run(ready).result()
    assert store.get_engine_run("r") == ready
    store.end_engine_run("r", "failed", "out of memory").result()
    ended = store.get_engine_run("r")
    assert ended is not None
    assert (ended.state, ended.error, ended.ended_at, ended.pid) == ("failed", "out of memory", 1_800_000_000.0, 5)
    store.save_engine_run(EngineRunRow("s", "tiny", "ready", 2.0)).result()
    assert [run.id for run in store.list_engine_runs()] == ["s", "r"]
    assert [run.id for run in store.list_engine_runs(limit=1)] == ["s"]
    assert store.get_engine_run("t") is None
    with pytest.raises(NotFound, match="engine run t was never saved"):
        store.end_engine_run("t", "stopped").result()


def test_requests_page_newest_first_while_new_ones_arrive(store: Store) -> None:
    for i in range(7):
        store.save_request(RequestRow(f"q{i}", "ab"[i % 2], "chat", "running", created_at=1.0))
    store.flush()
    first = store.list_requests(limit=3)
    assert [row.id for row in first.rows] == ["q6", "q5", "q4"]
    store.save_request(RequestRow("q7", "a", "chat", "running", created_at=1.0))
    store.save_request(RequestRow("q1", "b", "chat", "finished", created_at=1.0, ttft_s=0.5)).result()
    second = store.list_requests(limit=3, before=first.next_before)
    assert [row.id for row in second.rows] == ["q3", "q2", "q1"]
    assert second.rows[2].ttft_s == 0.5
    last = store.list_requests(limit=3, before=second.next_before)
    assert ([row.id for row in last.rows], last.next_before) == (["q0"], None)
    assert [row.id for row in store.list_requests(model="b").rows] == ["q5", "q3", "q1"]
    assert store.get_request("nobody") is None


def test_jobs(store: Store) -> None:
    job = JobRow("j", "pull", "tiny", "running", created_at=1.0)
    store.save_job(job)
    done = replace(job, state="succeeded", result={"path": "x"}, log=["a"], finished_at=2.0)
    store.save_job(done)
    store.save_job(replace(job, id="k", created_at=3.0)).result()
    assert store.get_job("j") == done
    assert [each.id for each in store.list_jobs()] == ["k", "j"]
    assert store.get_job("nobody") is None


def test_events(store: Store) -> None:
    written = [store.add_event("k", "info", f"event {i}", data={"i": i}).result() for i in range(5)]
    assert store.list_events() == written[::-1]
    assert store.list_events(limit=2, before=written[3].id) == [written[2], written[1]]


def test_settings(store: Store) -> None:
    assert store.get_settings() == {}
    store.set_settings({"theme": "dark", "sampling": {"top_p": 0.9}, "nothing": None})
    store.set_settings({"theme": "light"}).result()
    assert store.get_settings() == {"theme": "light", "sampling": {"top_p": 0.9}, "nothing": None}


def test_a_request_keeps_what_was_drafted_for_it(store: Store) -> None:
    row = RequestRow(
        "q",
        "tiny",
        "chat",
        "finished",
        1.0,
        drafts=3,
        drafted=6,
        accepted=4,
        accepted_per_position=[3, 1],
        drafted_per_position=[3, 3],
        draft_s=0.25,
        verify_s=0.5,
        proposer="hybrid",
    )
    store.save_request(row).result()
    assert store.get_request("q") == row == store.list_requests().rows[0]


def test_the_newest_self_test_of_a_pair_counts(store: Store) -> None:
    def result(
        test_id: str, at: float, *, model: str = "tiny", drafter: str = "d1", state: str = "passed"
    ) -> SelfTestRow:
        row = SelfTestRow(test_id, model, "r", "m1", drafter, "eagle", state, at - 1, at, {"pizarra": "1"}, [{"n": 1}])
        store.add_selftest(row).result()
        return row

    old, new = result("1", 5.0, state="failed"), result("2", 9.0)
    result("3", 11.0, drafter="d2", state="failed")
    result("4", 12.0, model="other")
    assert store.standing_selftest("tiny", "m1", "d1") == new
    assert store.standing_selftest("tiny", "m2", "d1") is None
    assert [row.id for row in store.list_selftests("tiny")] == ["3", "2", "1"]
    assert [row.id for row in store.list_selftests(limit=2)] == ["4", "3"]
    assert store.list_selftests("tiny")[-1] == old


def test_a_failure_counts_until_a_later_test_of_the_same_proposer_passes(store: Store) -> None:
    results = [
        ("hybrid", "failed", "1 failed"),
        ("ngram", "passed", "1 failed"),
        ("hybrid", "inconclusive", "1 failed"),
        ("suffix", "failed", "4 failed"),  # the newest of two failures
        ("hybrid", "passed", "4 failed"),
        ("suffix", "passed", "6 passed"),
        ("ngram", "inconclusive", "7 inconclusive"),
    ]
    for number, (proposer, state, standing) in enumerate(results, 1):
        row = SelfTestRow(str(number), "tiny", "r", "m", "d", proposer, state, number - 1, number, {}, [])
        store.add_selftest(row).result()
        found = store.standing_selftest("tiny", "m", "d")
        assert found is not None
        assert f"{found.id} {found.state}" == standing
