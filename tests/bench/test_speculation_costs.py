"""What a draft model costs is measured on real engines: a tiny model that drafts for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import speculation_costs
from bench.speculation_costs import _pair
from bench.speculation_results import Results
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint


def test_times_and_the_acceptance_that_means_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation_costs, "PROMPT_TOKENS", 20)
    monkeypatch.setattr(speculation_costs, "POOL_BYTES", 4 << 20)
    monkeypatch.setattr(speculation_costs, "MAX_LEN", 96)
    model = tiny_llama_checkpoint(tmp_path)
    results = Results()
    for known in (True, False):
        _pair("itself", model, model, 1, True, results, lambda text: None, means_something=known)
    assert results.failures == {}
    first, second = results.costs
    assert (first["target"], first["drafter"], first["k"], first["batch"]) == ("itself", model.stem, 8, 1)
    assert first["acceptance"] == 1  # greedy, and the same weights
    assert second["acceptance"] is None
    for name in ("plain_ms", "draft_ms", "verify_ms"):
        assert first[name] > 0
    assert first["pays_from"] == (first["draft_ms"] + first["verify_ms"]) / first["plain_ms"]


def test_a_pair_that_does_not_load_is_a_failure_and_no_end(tmp_path: Path) -> None:
    results, said = Results(), list[str]()
    model = tiny_llama_checkpoint(tmp_path)
    _pair("one", model, tmp_path / "nowhere", 1, True, results, said.append, means_something=True)
    assert results.costs == []
    assert "nowhere" in results.failures["draft model for one"]
    assert said
