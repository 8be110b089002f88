"""What one run of bench/compare.py found: speeds of every engine at every task, and what became of those without one.

Owns the figures, their file and their medians and ratios. Knows nothing of how anything is measured or shown.
Invariant: a figure is the median of what the run measured; where nothing was measured there is none.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = "Pizarra"
DECODE, PREFILL, HTTP = "decode", "prefill", "http"
VERIFY_ROWS, LONG_CONTEXT = 8, 4096
NOISE = 1.1  # a server that seems faster than its own engine's loop by more than this was not measured


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """size: answers at once, or for a prefill the prompt's tokens."""

    kind: str
    size: int

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.size}"

    @property
    def title(self) -> str:
        return {
            DECODE: f"decode, batch {self.size}",
            PREFILL: f"prefill of {self.size:,}",
            HTTP: f"decode over HTTP, {self.size} at a time",
        }[self.kind]

    @classmethod
    def of(cls, key: str) -> Task:
        kind, _, size = key.partition("/")
        return cls(kind, int(size))


@dataclass
class Results:
    """One run. Speeds in tokens a second; bandwidths in bytes a second, one or more a round.

    facts: what the run was: date, command, machine, threads, rounds, march (None: all that the processor has), model,
    and the lengths of prompts and answers. engines: what each said of itself when it loaded. speeds, failures, notes:
    by task and engine. idle_shares: of one core, while another engine was measured. verify: by temperature, seconds of
    [a single-token step, one that verifies, one of as many rows that draws the last alone]. contexts:
    [short_s, long_s, kv_bytes].
    """

    facts: dict[str, Any] = field(default_factory=dict)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    speeds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: dict[str, dict[str, str]] = field(default_factory=dict)
    bandwidths: list[float] = field(default_factory=list)
    idle_shares: dict[str, list[float]] = field(default_factory=dict)
    verify: dict[str, list[list[float]]] = field(default_factory=dict)
    contexts: list[list[float]] = field(default_factory=list)

    def add(self, task: Task, engine: str, tokens: float, seconds: float) -> None:
        self.speeds.setdefault(task.key, {}).setdefault(engine, []).append(tokens / seconds)

    def tasks(self) -> list[Task]:
        """All that was tried, in the order of the first try."""
        return [Task.of(key) for key in dict.fromkeys([*self.speeds, *self.failures])]

    def names(self) -> list[str]:
        """All engines that were tried, ours first."""
        tried = (names for found in (self.speeds, self.failures) for names in found.values())
        return list(dict.fromkeys([OURS, *self.engines, *(name for names in tried for name in names)]))

    def speed(self, task: Task, engine: str) -> float | None:
        """Tokens a second. None where a failure cut the rounds short, too: a median of what went well flatters."""
        values = self.speeds.get(task.key, {}).get(engine)
        if not values or engine in self.failures.get(task.key, {}) or self.is_impossible(task, engine):
            return None
        return statistics.median(values)

    def is_impossible(self, task: Task, engine: str) -> bool:
        """Whether a figure over HTTP lies above the one without: then the difference of two loads was mostly noise."""
        values = self.speeds.get(task.key, {}).get(engine)
        if task.kind != HTTP or not values:
            return False
        in_loop = self.speed(Task(DECODE, task.size), engine)
        return in_loop is not None and statistics.median(values) > NOISE * in_loop

    def spread(self, task: Task, engine: str) -> tuple[float, float] | None:
        """The lowest and the highest."""
        values = self.speeds.get(task.key, {}).get(engine)
        return (min(values), max(values)) if values else None

    def best_peer(self, task: Task) -> tuple[str, float] | None:
        """The fastest of the others. One that was timed without prompts serves none and does not count."""
        speeds = [
            (speed, name)
            for name in self.names()
            if name != OURS
            and name not in self.notes.get(task.key, {})
            and (speed := self.speed(task, name)) is not None
        ]
        return (max(speeds)[1], max(speeds)[0]) if speeds else None

    def ratio(self, task: Task, engine: str) -> float | None:
        """Ours to that engine's."""
        own, theirs = self.speed(task, OURS), self.speed(task, engine)
        return own / theirs if own is not None and theirs is not None else None

    @property
    def bandwidth(self) -> float:
        return statistics.median(self.bandwidths)

    def roof(self) -> float | None:
        """Tokens a second at batch 1 if reading our weights once a token were all there is to do."""
        weights = self.engines.get(OURS, {}).get("weights_bytes")
        return self.bandwidth / weights if weights and self.bandwidths else None

    def verify_cost(self, temperature: float) -> float | None:
        """How many single-token steps a verifying step takes."""
        pairs = self.verify.get(str(temperature))
        return statistics.median(several / single for single, several, _ in pairs) if pairs else None

    def context_cost(self) -> float | None:
        """What a long context adds to a step, in reads of its keys and values at the measured bandwidth."""
        if not self.contexts or not self.bandwidths:
            return None
        return statistics.median((long - short) / (size / self.bandwidth) for short, long, size in self.contexts)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{json.dumps(dataclasses.asdict(self), indent=1)}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text(encoding="utf-8")))
