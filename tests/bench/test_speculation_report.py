"""The page and the chart of what speculation gains hold the figures they were given, the failures as well."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from bench.speculation_chart import chart, panels_of
from bench.speculation_report import page, write_page
from tests.bench.gains import gains

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
