"""The page of measurements: its figures are those it was given, and ratios are ours to theirs."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.interleave import Interleaving
from bench.serving_report import Measured, Pool, write_report
from bench.streams import Answer, Load, percentile


def load(seconds: float) -> Load:
    """Two answers of three tokens to prompts of five."""
    return Load([Answer(5, 3, [0.1, 0.2, 0.4]), Answer(5, 3, [0.3, 0.35, 0.4])], seconds)


def arguments(page: Path) -> argparse.Namespace:
    return argparse.Namespace(input_tokens=5, output_tokens=3, rounds=3, threads=2, vllm=None, write=page)


def test_a_load_counts_tokens_times_and_gaps() -> None:
    one = load(2.0)
    assert (one.output_tokens_per_s, one.total_tokens_per_s) == (3.0, 8.0)
    assert one.ttfts == [0.1, 0.3]
    assert [round(gap, 3) for gap in one.gaps] == [0.1, 0.2, 0.05, 0.05]


def test_a_percentile_is_the_smallest_value_that_covers_the_share() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.5, 0.51, 0.95)] == [1.0, 2.0, 3.0, 4.0]


def test_the_page_holds_the_medians_and_the_ratios(tmp_path: Path) -> None:
    measured = Measured(bandwidths=[20e9, 21e9], pool=Pool(128, 64, 7, 33.0))
    for seconds in (1.0, 2.0, 6.0):
        measured.add(4, "Pizarra", load(seconds))
        measured.add(4, "transformers", load(2 * seconds))
    measured.prefix["Pizarra"] = (1.0, 0.1)
    measured.interleaved = [Interleaving(128, 10.0, 30.0, 35.0)]
    page = tmp_path / "page.md"
    write_report(measured, arguments(page), ["--rounds", "3"])
    text = page.read_text(encoding="utf-8")
    assert "`python -m bench.serving --rounds 3`" in text
    assert "| 4 | Pizarra | 3.0 | 8.0 | 100 ms | 300 ms | 50 ms | 200 ms | 1.00 |" in text
    assert "| 4 | transformers | 1.5 | 4.0 | 100 ms | 300 ms | 50 ms | 200 ms | 2.00 |" in text
    assert "| Pizarra | 1000 ms | 100 ms | 10.0 |" in text
    assert "in a pool of 128 blocks: all answers came whole, 33.0 output tokens a second, 7 preemptions" in text
    assert "| 128 | 10.0 ms | 30.0 ms | 40.0 ms | 35.0 ms |" in text
