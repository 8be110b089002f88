"""The time of a stretch of the job `train-drafter`: what it bounds, where it may end, and how it goes on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.train import drafter_features, drafter_loop, drafter_stretch, drafter_text
from engine.train.refusal import Refusal
from tests.engine.train.tiny_training import job, make_small, weights_of


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def ticks(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, seconds: float) -> list[float]:
        """From now on each call of a method takes so long. Returns what grows with each call: when it began."""
        plain, calls = getattr(owner, name), list[float]()

        def slow(*arguments: Any) -> Any:
            calls.append(self.seconds)
            self.seconds += seconds
            return plain(*arguments)

        monkeypatch.setattr(owner, name, slow)
        return calls


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(drafter_stretch, "now", lambda: found.seconds)
    return found


def test_a_stretch_that_is_over_leaves_a_drafter_and_goes_on(
    arguments: dict[str, Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(arguments["output"])
    steps = clock.ticks(monkeypatch, drafter_loop.Loop, "_step", 30.0)
    status, lines = job(arguments | {"minutes": 1, "passes": 1000})
    assert status == 0, lines[-1]
    assert (lines[-1]["result"]["finished"], len(steps)) == (False, 2)
    assert "the same call trains on" in lines[-1]["message"]
    first = lines[-1]["result"]["training"]
    before = weights_of(output)
    status, lines = job(arguments | {"minutes": 2, "passes": 1000})
    assert status == 0, lines[-1]
    second = lines[-1]["result"]["training"]
    assert second["learned_positions"] > first["learned_positions"]
    assert (len(steps), first["whole_seconds"], second["whole_seconds"]) == (6, 60, 180)
    assert weights_of(output) != before
    assert {path.name for path in output.parent.iterdir()} == {"out", "out.partial"}
    assert "- Cost: 3 minutes on cpu" in (output / "README.md").read_text()


def test_writing_text_is_part_of_a_stretch(
    arguments: dict[str, Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(arguments["output"])
    shutil.rmtree(f"{output}.partial")
    clock.ticks(monkeypatch, drafter_text._Writer, "_go_on", 10.0)
    status, lines = job(arguments | {"minutes": 1, "passes": 1})
    assert status == 0, lines[-1]
    result = lines[-1]["result"]
    assert (result["output"], result["finished"], output.exists()) == ("", False, False)
    assert re.search(
        r"the 1 minutes were over while the model wrote text \(\d+ of 1,200 tokens\)", lines[-1]["message"]
    )
    assert clock.seconds < 60 + 16 * 10, "the answers that ended in one step, and none after them"
    status, lines = job(arguments | {"passes": 1})
    assert status == 0, lines[-1]
    assert lines[-1]["result"]["training"]["whole_seconds"] == clock.seconds


def test_the_models_states_are_part_of_a_stretch_and_are_computed_once(
    arguments: dict[str, Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stretches that are shorter than a shard's states come to an end all the same, and to the same bytes."""
    output, text = Path(arguments["output"]), Path(f"{arguments['output']}.text")
    shutil.copytree(f"{output}.partial", text)
    monkeypatch.setattr(drafter_features, "_TOKENS_AT_ONCE", 512)
    groups = clock.ticks(monkeypatch, drafter_features.FeatureStore, "_group", 60.0)
    assert job(arguments)[0] == 0
    expected, needed = weights_of(output), len(groups)
    assert needed > 6
    output.rename(output.with_name("whole"))
    text.rename(f"{output}.partial")
    groups.clear()
    ends: list[str] = []
    while not output.exists():
        assert len(ends) < needed, "no stretch gets any further"
        begun = clock.seconds
        status, lines = job(arguments | {"minutes": 2})
        assert (status, clock.seconds - begun <= 120) == (0, True), lines[-1]
        ends.append(lines[-1]["message"])
    assert len(ends) > 3
    assert "were over while the model's states of the text were computed" in ends[0]
    while not lines[-1]["result"]["finished"]:
        lines = job(arguments | {"minutes": 2})[1]
    assert (weights_of(output), len(groups)) == (expected, needed)


def test_time_that_cannot_be_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / drafter_stretch.FILE).write_text("{")
    with pytest.raises(Refusal, match=r"time.json: .* remove the file to count anew"):
        drafter_stretch.Stretch(tmp_path, None)
