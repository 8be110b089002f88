"""Medians, ratios and promises of a comparison: from made-up measurements, to figures that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare_results import DECODE, HTTP, PREFILL, Results, Task
from bench.compare_targets import targets
from tests.bench.comparison import comparison


def test_a_speed_is_the_median_of_the_rounds() -> None:
    results = Results()
    for seconds in (1.0, 4.0, 2.0):
        results.add(Task(DECODE, 1), "vLLM", 64, seconds)
    assert results.speed(Task(DECODE, 1), "vLLM") == 32.0
    assert results.spread(Task(DECODE, 1), "vLLM") == (16.0, 64.0)


def test_who_failed_has_no_speed_though_some_rounds_went_well() -> None:
    results = Results()
    results.add(Task(DECODE, 1), "vLLM", 64, 1.0)
    results.failures = {"decode/1": {"vLLM": "was ended by SIGSEGV"}}
    assert results.speed(Task(DECODE, 1), "vLLM") is None
    assert results.best_peer(Task(DECODE, 1)) is None


def test_the_best_peer_is_neither_ours_nor_one_that_serves_no_prompts() -> None:
    results = comparison()
    task = Task(DECODE, 1)
    assert results.best_peer(task) == ("OpenVINO", 80.0)
    results.add(task, "llama.cpp with AMX", 300, 1.0)
    assert results.best_peer(task) == ("llama.cpp with AMX", 300.0)
    results.notes = {task.key: {"llama.cpp with AMX": "answers without a prompt"}}
    assert results.best_peer(task) == ("OpenVINO", 80.0)


def test_the_roof_is_the_median_bandwidth_over_our_weights() -> None:
    results = comparison()
    results.bandwidths = [20e9, 10e9, 30e9]
    assert results.roof() == 200.0
    results.engines = {}
    assert results.roof() is None


def test_costs_are_medians_of_each_round_s_ratio() -> None:
    results = comparison()
    results.verify = {"0.0": [[1.0, 1.1, 1.0], [2.0, 2.4, 2.0], [1.0, 5.0, 1.0]]}
    assert results.verify_cost(0.0) == pytest.approx(1.2)
    assert results.verify_cost(1.0) is None
    results.contexts = [[0.004, 0.009, 1e8]]  # 5 ms, and 100 MB take 5 ms at 20 GB/s
    assert results.context_cost() == pytest.approx(1.0)


def test_what_was_kept_and_what_was_not() -> None:
    kept = {one.promise: (one.found, one.reached) for one in targets(comparison())}
    assert kept["decode, batch 1: at least 85% of the bandwidth roof"] == ("90%: 180 of 200 tok/s", True)
    assert kept["decode over HTTP, 1 at a time: at least 75% of the bandwidth roof"] == ("70%: 140 of 200 tok/s", False)
    assert kept["decode, batch 1: at least 2.5 times OpenVINO"] == ("2.25", False)
    assert kept["decode, batch 16: at least 5 times the best peer"] == ("6.00 (vLLM)", True)
    assert kept["prefill of 512: at least 2.5 times the best peer"] == ("2.50 (OpenVINO)", True)
    assert kept["verifying 8 tokens at temperature 0: at most 1.15 single-token steps"] == ("1.10", True)
    assert kept["verifying 8 tokens at temperature 1: at most 1.25 single-token steps"] == ("1.50", False)
    assert kept["4,096 tokens of context: at most 1.15 times reading their keys and values"] == ("1.20", False)


def test_what_was_not_measured_is_not_kept() -> None:
    results = Results(facts={"march": None})
    assert {one.reached for one in targets(results)} == {None}


def test_an_older_processor_s_instructions_ask_for_the_best_peer_s_speed() -> None:
    results = comparison()
    results.facts["march"] = "haswell"
    found = {one.promise: one.reached for one in targets(results)}
    assert found == {
        "decode, batch 1: at least 1 times the best peer": True,
        "decode, batch 16: at least 1 times the best peer": True,
        "prefill of 512: at least 1 times the best peer": True,
    }


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    results = comparison()
    results.save(tmp_path / "deep" / "results.json")
    assert Results.read(tmp_path / "deep" / "results.json") == results


@pytest.mark.parametrize("task", [Task(DECODE, 16), Task(PREFILL, 2048), Task(HTTP, 1)])
def test_a_task_s_key_names_it(task: Task) -> None:
    assert Task.of(task.key) == task
