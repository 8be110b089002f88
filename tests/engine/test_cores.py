"""The cores of a container are those that it was given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.cores import usable_cores


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("6400000 100000", 8),
        ("0 0", 8),
        ("", 8),
    ],
)
def test_a_share_of_time_bounds_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path) == cores
    assert usable_cores(tmp_path / "none") == 8
