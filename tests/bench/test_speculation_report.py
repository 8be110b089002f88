"""The page and the chart of what speculation gains hold the figures they were given, the failures as well."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.code import ROOT
from bench.speculation_chart import chart, panels_of
from bench.speculation_report import page, verdict_line, write_page
from bench.speculation_results import Results
from bench.speculation_targets import LEAST, drafter_wins
from tests.bench.gains import gains, measured

SVG = "{http://www.w3.org/2000/svg}"


def test_the_table_holds_gains_and_their_intervals() -> None:
    text = page(gains())
    assert "| | plain, tok/s | suffix | ngram |" in text
    assert "| code_edit, greedy, batch 1 | 50 | **4.00** (4.00 to 4.00) | **2.00** (2.00 to 2.00) |" in text
    assert "| open_chat, temperature 1, batch 1 | 50 | **0.80** (0.80 to 0.80) | - |" in text
    assert "Read bandwidth 21.0 GB/s, the median of 2 measurements between 20.0 and 22.0." in text
    assert "exactness `bits` (rows are independent)" in text


def test_acceptance_times_and_places_stand_on_the_page() -> None:
    text = page(gains())
    assert "| code_edit, greedy, batch 1 | suffix | 75% | 2.50 | 71% | 1.00 | 5.00 | 4.00 | 1 of 2 |" in text
    assert "| code_edit, greedy, batch 1 | suffix | 90% | 60% |" in text
    assert "| large | small | 4 | 1 | 10.00 | 4.00 | 11.00 | 20.00 | - | 1.50 tokens a step |" in text


def test_promises_peers_and_failures_stand_on_the_page() -> None:
    text = page(gains())
    assert "| code_edit, greedy, batch 1: at least 2.5 times plain decoding | 4.00 (4.00 to 4.00) | yes |" in text
    assert "| open_chat, greedy, batch 4: at least 1.2 times plain decoding | not measured | - |" in text
    assert "| code_edit, batch 1 | Pizarra suffix | **4.00** (4.00 to 4.00) | 200 | - | all |" in text
    assert "| code_edit, batch 1 | vLLM ngram | **2.00** (2.00 to 2.00) | 40 | 50% | 1 of 2 |" in text
    assert "- vLLM ngram: 1.0, as its manual says" in text
    assert "- llama.cpp: does not start: no program" in text


def test_a_differing_answer_voids_its_figure() -> None:
    results = gains()
    results.measured[1].arms["suffix"].differs = 2
    text = page(results)
    assert "| code_edit, greedy, batch 1 | 50 | void: 2 answers differ | **2.00** (2.00 to 2.00) |" in text


def test_a_quick_run_says_that_it_measures_nothing() -> None:
    results = gains()
    assert "these are no measurements" not in page(results)
    results.facts["quick"] = True
    assert "these are no measurements" in page(results)


def test_a_run_in_stretches_says_so() -> None:
    results = gains()
    assert "stretches" not in page(results)
    results.facts["stretches"] = 2
    assert f"rounds: {results.facts['rounds']}, in 2 stretches." in page(results)


def test_the_page_and_its_chart_are_written(tmp_path: Path) -> None:
    write_page(gains(), tmp_path / "docs" / "speculation-bench.md")
    text = (tmp_path / "docs" / "speculation-bench.md").read_text(encoding="utf-8")
    assert "(images/speculation-bench.svg)" in text
    assert (tmp_path / "docs" / "images" / "speculation-bench.svg").read_text(encoding="utf-8").startswith("<svg")


def test_bars_are_as_long_as_gains_are_high_and_lie_on_the_page() -> None:
    root = ElementTree.fromstring(chart(panels_of(gains()), "Gains & more"))
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.attrib["class"] != "page"]
    lengths = [float(bar.attrib["width"]) for bar in bars]
    assert len(bars) == 7  # no bar is drawn for who was not measured
    assert lengths[2] / lengths[0] == 4 / 1.25
    assert lengths[2] / lengths[1] == 4
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for each in (*bars, *root.iter(f"{SVG}text")):
        assert float(each.attrib.get("x", 0)) + float(each.attrib.get("width", 0)) <= width
        assert float(each.attrib.get("y", 0)) <= height
    titles = [each.text for each in root.iter(f"{SVG}text")]
    assert {"greedy, batch 1", "greedy, batch 4", "temperature 1, batch 1", "Gains & more"} <= set(titles)


def complete(hybrid: float, slow: float = 0.9) -> Results:
    """All that was promised, with a drafter; slow: its seconds at temperature 1."""
    results = gains()
    results.facts["drafter_sha256"] = "0123456789abcdef0123"
    results.measured = [
        measured(key, batch, temperature, suffix=0.9, hybrid=slow if temperature else hybrid)
        for temperature, batch in LEAST
        for key in results.facts["sets"]
    ]
    return results


def test_a_drafter_wins_by_the_mean_of_all_cases_and_not_by_being_slow_in_some() -> None:
    assert drafter_wins(gains()) is None
    found = drafter_wins(complete(hybrid=0.45))
    assert found is not None
    assert found == (pytest.approx(2 ** (2 / 3)), True)
    assert "The drafter with the weights `0123456789abcdef` wins." in page(complete(0.45))
    assert "The drafter with the weights `0123456789abcdef` does not win." in page(complete(0.95))
    mean, wins = drafter_wins(complete(hybrid=0.45, slow=1.1)) or (0.0, True)
    assert mean > 1.0
    assert not wins
    part = complete(0.45)
    del part.measured[-1]
    assert "The drafter" not in page(part)


def test_the_shipped_drafter_is_the_default_only_where_the_committed_page_says_that_it_wins() -> None:
    bench = (ROOT / "docs" / "speculation-bench.md").read_text(encoding="utf-8")
    for config in (ROOT / "assets" / "drafters").glob("*/config.json"):
        weights = hashlib.sha256((config.parent / "model.safetensors").read_bytes()).hexdigest()
        wins = json.loads(config.read_text(encoding="utf-8"))["pizarra"].get("wins", False)
        assert wins == (verdict_line(weights, wins=True) in bench), config
