"""What a part of the GPU check is told, and what it tells: rows, each written out as soon as it is known.

Owns the form of a row and the clock of a part. Invariant: a row that was added is on disk, so that a part which hangs
or crashes afterwards has lost nothing.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

RIGHT, WRONG = "right", "WRONG"
MET, MISSED = "target met", "target missed"
LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Row:
    """One finding. figures: by the heading of their column. verdict: one of the words above, or empty."""

    name: str
    figures: dict[str, str] = field(default_factory=dict)
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """dry: everything in miniature on the CPU, through Triton's interpreter. ends: `time.monotonic` at its end."""

    dry: bool
    ends: float
    rows: Path

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda:0")

    @property
    def seconds_left(self) -> float:
        """Until this part is ended from outside."""
        return self.ends - time.monotonic()

    def add(self, row: Row) -> None:
        """Writes the row out, and prints it."""
        with self.rows.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(row)) + "\n")
        shown = " ".join([*row.figures.values(), row.verdict, row.note])
        print(f"  {row.name}: {shown}", flush=True)

    def fits(self, name: str, seconds: float) -> bool:
        """Whether there is time for what takes so long; if not a row says that it was left out."""
        if self.seconds_left >= seconds:
            return True
        self.add(
            Row(name, verdict=LEFT_OUT, note=f"needs some {seconds:.0f} s, {max(0.0, self.seconds_left):.0f} are left")
        )
        return False


def verdict(share: float, target: float) -> str:
    """Whether a share of a roof is what was aimed for."""
    return f"{MET} ({target:.0%})" if share >= target else f"{MISSED} ({target:.0%})"


def read_rows(path: Path) -> list[Row]:
    """The rows that a part wrote; a line that it was cut off in is dropped."""
    found: list[Row] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(Row(**json.loads(line)))
            except (ValueError, TypeError):
                break
    return found
