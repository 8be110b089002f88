"""What one run of bench/speculation.py found, and the ratios of it with their intervals.

Owns the figures and their file. Knows nothing of how anything is measured or shown. Invariants: times that are held
against each other are of the same answers, token by token; where an answer differed there is no ratio.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLAIN = "off"
CONTROL = "off again"  # plain decoding as another way: what ratios come of noise alone
WARM = " (warm)"  # behind the name of a proposer that kept the answers of the run before
RESAMPLES, SHARE = 2000, 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """Which work: a prompt set, how many answers at once, at which temperature."""

    key: str
    batch: int
    temperature: float

    @property
    def how(self) -> str:
        return "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"


@dataclass
class Counts:
    """Sums over one round. steps, verify_steps: of the engine. drafted_at, accepted_at: by the place in a draft.

    Times in seconds: draft_s for making drafts, verify_s of the steps that verified, plain_s of the other steps that
    decoded.
    """

    tokens: int = 0
    answers: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    steps: int = 0
    verify_steps: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    plain_s: float = 0.0
    draft_by: dict[str, float] = field(default_factory=dict)  # seconds, by proposer

    def add(self, other: Counts) -> None:
        """Adds the sums of other work."""
        for each in dataclasses.fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, list):
                mine.extend([0] * (len(theirs) - len(mine)))
                for place, count in enumerate(theirs):
                    mine[place] += count
            elif isinstance(mine, dict):
                for name, value in theirs.items():
                    mine[name] = mine.get(name, 0.0) + value
            else:
                setattr(self, each.name, mine + theirs)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts: tokens that a verification yields."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def without_draft(self) -> float | None:
        """Share of the answers' own steps that had no draft. An answer's first token comes with its prompt."""
        own = self.tokens - self.answers - self.accepted
        return 1 - self.drafts / own if own > 0 else None

    def curve(self) -> list[float]:
        """Of the drafts that reached each place, the share that was accepted there."""
        return [taken / made for made, taken in zip(self.drafted_at, self.accepted_at, strict=False) if made]

    @property
    def draft_ms(self) -> float | None:
        """Of one turn of the engine that proposed, whatever came of it, on average over the steps."""
        return 1e3 * self.draft_s / self.steps if self.steps else None

    @property
    def verify_ms(self) -> float | None:
        return 1e3 * self.verify_s / self.verify_steps if self.verify_steps else None

    @property
    def plain_ms(self) -> float | None:
        others = self.steps - self.verify_steps
        return 1e3 * self.plain_s / others if others else None


@dataclass
class Arm:
    """One way to decode one case. differs: answers unlike the plain ones.

    Times in seconds, [round][group] of requests, from sending a group: mean_s to an answer's last token, on average
    over its answers; seconds to the last token of all.
    """

    seconds: list[list[float]] = field(default_factory=list)
    mean_s: list[list[float]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    differs: int = 0

    def add_round(self, groups: Sequence[Sequence[float]]) -> None:
        """groups: of each the times of its answers."""
        self.seconds.append([max(answers) for answers in groups])
        self.mean_s.append([statistics.fmean(answers) for answers in groups])


@dataclass
class Measured:
    """A case and its arms. tokens: of each group of requests, the same in every round and for every arm."""

    case: Case
    tokens: list[int] = field(default_factory=list)
    loops: int = 0  # answers that end in a loop
    arms: dict[str, Arm] = field(default_factory=dict)

    def speed(self, name: str, groups: int | None = None) -> float | None:
        """Tokens a second: all tokens over the sum of the groups' median times. groups: of the first so many alone."""
        arm = self.arms.get(name)
        if arm is None or not arm.seconds:
            return None
        tokens = self.tokens[:groups]
        return sum(tokens) / _total(arm.seconds, range(len(tokens)))

    def gain(self, name: str) -> Interval | None:
        """How many times as soon as by plain decoding an answer has ended, on average."""
        both = self._comparable(name)
        return ratio(both[0].mean_s, both[1].mean_s) if both else None

    def gain_of_all(self, name: str, groups: int | None = None) -> Interval | None:
        """The same of the last of a group's answers. groups: over the first so many alone."""
        both = self._comparable(name)
        return ratio(both[0].seconds, both[1].seconds, groups) if both else None

    def _comparable(self, name: str) -> tuple[Arm, Arm] | None:
        plain, other = self.arms.get(PLAIN), self.arms.get(name)
        if plain is None or other is None or other.differs or not plain.seconds or not other.seconds:
            return None
        return plain, other


@dataclass
class PeerGain:
    """Another engine's own speculation beside its own plain decoding, on the first prompts of a set."""

    engine: str
    way: str
    case: Case
    groups: int
    plain_s: list[list[float]]  # [round][group]
    spec_s: list[list[float]]
    plain_tokens: int
    spec_tokens: int
    same_text: int  # answers, of `answers`, that speculation left as they were
    answers: int
    drafted: int = 0
    accepted: int = 0

    def speed(self) -> float:
        """Tokens a second with speculation."""
        return self.spec_tokens / _total(self.spec_s, range(len(self.spec_s[0])))

    def gain(self) -> Interval:
        """Of tokens a second: where its answers differ, so may their lengths."""
        factor = self.spec_tokens / self.plain_tokens
        found = ratio(self.plain_s, self.spec_s)
        return Interval(found.value * factor, found.low * factor, found.high * factor)


@dataclass
class Results:
    """One run. costs: of drafting with a model, as bench/speculation_costs.py names them."""

    facts: dict[str, Any] = field(default_factory=dict)
    bandwidths: list[float] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    peers: list[PeerGain] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    costs: list[dict[str, Any]] = field(default_factory=list)

    def find(self, case: Case) -> Measured | None:
        return next((one for one in self.measured if one.case == case), None)

    def proposers(self) -> list[str]:
        """Whose gains there are, in the order of the run; neither plain decoding nor the warm ones."""
        names: dict[str, None] = {}
        for one in self.measured:
            names |= dict.fromkeys(one.arms)
        return [name for name in names if name not in (PLAIN, CONTROL) and not name.endswith(WARM)]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Results:
        found = json.loads(path.read_text(encoding="utf-8"))
        measured = [
            Measured(
                Case(**one["case"]),
                one["tokens"],
                one["loops"],
                {
                    name: Arm(arm["seconds"], arm["mean_s"], Counts(**arm["counts"]), arm["differs"])
                    for name, arm in one["arms"].items()
                },
            )
            for one in found.pop("measured")
        ]
        peers = [PeerGain(**{**one, "case": Case(**one["case"])}) for one in found.pop("peers")]
        return cls(**found, measured=measured, peers=peers)


def ratio(plain: Sequence[Sequence[float]], other: Sequence[Sequence[float]], groups: int | None = None) -> Interval:
    """Plain time over the other's, [round][group] each: sums over groups of medians over rounds.

    The interval: rounds and groups are drawn anew with replacement, the same ones for both. Seeded.
    """
    rounds, count = len(plain), len(plain[0]) if groups is None else min(groups, len(plain[0]))
    pick = random.Random(0)
    drawn = sorted(
        _total([plain[one] for one in chosen], places) / _total([other[one] for one in chosen], places)
        for chosen, places in (
            (pick.choices(range(rounds), k=rounds), pick.choices(range(count), k=count)) for _ in range(RESAMPLES)
        )
    )
    aside = int(RESAMPLES * (1 - SHARE) / 2)
    value = _total(plain, range(count)) / _total(other, range(count))
    return Interval(value, min(value, drawn[aside]), max(value, drawn[-1 - aside]))


def _total(seconds: Sequence[Sequence[float]], groups: Iterable[int]) -> float:
    return sum(statistics.median(times[group] for times in seconds) for group in groups)


def loops(token_ids: Sequence[int], tail: int = 48, longest: int = 24) -> bool:
    """Whether an answer's last `tail` tokens repeat a piece of at most `longest`."""
    end = token_ids[-tail:]
    return len(end) == tail and any(end[period:] == end[:-period] for period in range(1, longest + 1))
