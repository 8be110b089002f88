"""The proof's books: finished cells are found again, other code's are not, and the page tells what was not proved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import proof
from bench.proof_report import Done, write_report
from tests.engine.spec.same_text import Cell
from tests.engine.spec.same_text_cells import covering, matrix

CELL = Cell("tiny", "float32", "suffix", 4, 1.0, 1, 16, "penalties", "tight")


def test_what_is_kept_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "STATE", tmp_path / "cells.csv")
    assert proof.read_state() == []
    other = replace(CELL, adaptive=True)
    kept = [
        proof.keep(Done(CELL, "a", [], 300, 40, 9, 2, 0.5)),
        proof.keep(Done(other, "b", ["r1: ids, 1", "r2: ids"])),
    ]
    assert proof.read_state() == kept
    proof.forget_other_code("b")
    assert proof.read_state() == kept[1:]


def test_the_matrix_begins_with_pairs_repeats_nothing_and_is_the_same_every_time() -> None:
    cells = list(matrix(("default", "tiny")))
    assert cells == list(matrix(("default", "tiny")))
    assert len({cell.key for cell in cells}) == len(cells) > 3000
    assert tuple(cells[: len(covering("default"))]) == covering("default")
    everything = {(cell.proposer, cell.k, cell.dtype, cell.temperature, cell.batch) for cell in cells}
    assert len(everything) == len({cell.proposer for cell in cells}) * 9 * 2 * 2 * 2


def test_the_page_has_the_sums_the_differences_and_what_could_not_be_loaded(tmp_path: Path) -> None:
    done = [Done(CELL, "abc", [], 300, 40, 9, 2, 0.5), Done(CELL, "abc", ["r1: logprobs differ"], 20, 5, 1, 0, 0.1)]
    page = tmp_path / "proof.md"
    write_report(page, "python -m bench.proof", {"(a)": "7 passed"}, done, 12, {"eagle on the tiny model": "no file"})
    text = page.read_text(encoding="utf-8")
    assert "2 cells, 320 tokens compared, 45 drafted, 10 accepted, 2 preemptions" in text
    assert "cells with a difference: 1" in text
    assert "Cells left to do: 12" in text
    assert "NOT PROVED: eagle on the tiny model could not be loaded: no file" in text
    assert f"- {CELL.key}: r1: logprobs differ" in text
    assert "| suffix | 2 | 320 | 45 | 10 | 1 |" in text
