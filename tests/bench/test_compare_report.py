"""The page and the chart of a comparison hold the figures they were given, the failures as well, and nothing else."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from bench.compare_chart import chart
from bench.compare_report import page, write_page
from bench.compare_results import DECODE, HTTP, OURS, PREFILL, Task
from tests.bench.comparison import comparison

SVG = "{http://www.w3.org/2000/svg}"


def bars(picture: str) -> list[tuple[str, float]]:
    """Each bar's class and length."""
    found = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    return [(bar.attrib["class"], float(bar.attrib["width"])) for bar in found if bar.attrib["class"] != "page"]


def texts(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_the_table_holds_medians_ratios_and_spreads() -> None:
    results = comparison()
    results.add(Task(DECODE, 1), "vLLM", 60, 1.0)
    results.add(Task(DECODE, 1), "vLLM", 45, 1.0)
    text = page([results])
    assert "| tokens a second | Pizarra | OpenVINO | vLLM |" in text
    assert "| **180.0** (180.0 to 180.0) | **80.0** 2.25 x (80.0 to 80.0) | **45.0** 4.00 x (40.0 to 60.0) |" in text
    assert "| decode over HTTP, 1 at a time | **140.0** (140.0 to 140.0) | - | **35.0** 4.00 x (35.0 to 35.0) |" in text
    assert "Read bandwidth 20.0 GB/s" in text
    assert "72 and 8 tokens at batch 1; 40 and 8 tokens at batch 16" in text
    assert "at most: vLLM 3.0%." in text


def test_a_failure_and_a_note_stand_on_the_page() -> None:
    results = comparison()
    results.notes = {Task(DECODE, 1).key: {"vLLM": "answers without a prompt"}}
    text = page([results])
    assert "failed, see below" in text
    assert "- vLLM, prefill of 512: prefill: its process was ended by SIGSEGV" in text
    assert "- \\* vLLM, decode, batch 1: answers without a prompt" in text


def test_a_server_faster_than_its_own_loop_has_no_figure() -> None:
    results = comparison()
    results.speeds[Task(HTTP, 1).key][OURS] = [190.0, 400.0, 230.0]
    assert results.speed(Task(HTTP, 1), OURS) is None
    text = page([results])
    assert "| decode over HTTP, 1 at a time | no figure, see below | - | **35.0** (35.0 to 35.0) |" in text
    assert "- Pizarra, decode over HTTP, 1 at a time: the rounds gave 190.0 to 400.0, more than its own loop" in text
    results.speeds[Task(HTTP, 1).key][OURS] = [190.0]  # within the noise
    assert results.speed(Task(HTTP, 1), OURS) == 190.0


def test_what_only_we_were_asked_stands_on_the_page() -> None:
    text = page([comparison()])
    assert "temperature 1.0: 1500.00 ms, a single-token step 1000.00 ms; ratio, the median of rounds: 1.50" in text
    assert "draws the last alone takes 1200.00 ms" in text
    assert "behind 4,096 tokens: 10.00 ms, behind a few 4.00 ms" in text
    assert "1.20 times what reading 100 MB" in text
    assert "| decode, batch 16: at least 5 times the best peer | 6.00 (vLLM) | yes |" in text
    assert "| decode, batch 64: at least 5 times the best peer | not measured | - |" in text


def test_weights_that_fit_the_cache_are_told() -> None:
    results = comparison()
    results.engines[OURS]["weights_bytes"] = 97_000_000
    assert "fit this machine's last cache" not in page([results])
    results.facts["cache_bytes"] = 266 << 20
    assert "The weights (97 MB) fit this machine's last cache (279 MB" in page([results])


def test_a_quick_run_says_that_it_measures_nothing() -> None:
    results = comparison()
    assert "these are no measurements" not in page([results])
    results.facts["quick"] = True
    assert "these are no measurements" in page([results])


def test_each_run_has_a_chart_of_its_own(tmp_path: Path) -> None:
    whole, older = comparison(), comparison()
    older.facts["march"] = "haswell"
    write_page([whole, older], tmp_path / "docs" / "compare.md")
    text = (tmp_path / "docs" / "compare.md").read_text(encoding="utf-8")
    for name in ("images/compare.svg", "images/compare-haswell.svg"):
        assert f"({name})" in text
        assert bars((tmp_path / "docs" / name).read_text(encoding="utf-8"))
    assert "## With the instructions of haswell alone" in text


def test_bars_are_as_long_as_speeds_are_high_and_ours_stand_out() -> None:
    results = comparison()
    results.speeds = {Task(DECODE, 1).key: {OURS: [200.0], "OpenVINO": [50.0], "vLLM": [100.0]}}
    results.failures = {}
    (ours, longest), (theirs, quarter), (_, half) = bars(chart(results, "Now"))
    assert (ours, theirs) == ("ours", "peer")
    assert longest / quarter == 4
    assert longest / half == 2


def test_a_bar_that_could_not_be_drawn_says_so_and_a_name_is_escaped() -> None:
    results = comparison()
    results.failures = {Task(PREFILL, 512).key: {"a < b": "crashed"}}
    picture = chart(results, 'With "all" & more')
    assert {"no measurement", "a < b", 'With "all" & more'} <= set(texts(picture))
    assert texts(picture).count("7,500") == 1


def test_all_bars_and_texts_lie_on_the_page() -> None:
    root = ElementTree.fromstring(chart(comparison(), "Now"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for each in (*root.iter(f"{SVG}rect"), *root.iter(f"{SVG}text")):
        right = float(each.attrib.get("x", 0)) + float(each.attrib.get("width", 0))
        assert right <= width
        assert float(each.attrib.get("y", 0)) <= height
