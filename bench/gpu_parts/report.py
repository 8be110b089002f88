"""The report of a GPU check: what ran where, part by part, as JSON and as Markdown.

Owns both files and what counts as wrong. Invariant: the files are whole whenever someone reads them, and hold all that
was known when the last part ended.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.gpu_parts.task import WRONG, Row

COLUMNS = ("error", "allowed", "us", "rate", "tok/s", "ms", "of the roof")  # in this order, where a part has them


@dataclass(frozen=True, slots=True)
class Machine:
    """Where this ran. dry: in miniature, on a CPU."""

    date: str
    device: str
    versions: str
    revision: str
    dry: bool

    @classmethod
    def look(cls, *, dry: bool) -> Machine | None:
        """This machine; None where there is no GPU and one is needed."""
        if not dry and not torch.cuda.is_available():
            return None
        names = ("torch", "triton", "transformers")
        return cls(
            date=f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            device="the CPU, through Triton's interpreter" if dry else torch.cuda.get_device_name(0),
            versions=", ".join(f"{name} {_version(name)}" for name in names),
            revision=_revision(),
            dry=dry,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A part that ran. fault: why it did not end well. binding: whether that is wrong. log: what a faulty one said."""

    name: str
    budget_s: float
    seconds: float
    fault: str = ""
    rows: tuple[Row, ...] = ()
    binding: bool = True
    log: str = ""

    @property
    def wrong(self) -> bool:
        """Whether something is wrong with what was checked."""
        return any(row.verdict == WRONG for row in self.rows) or (self.binding and bool(self.fault))


def write_report(folder: Path, machine: Machine, parts: list[Part]) -> None:
    """Writes gpu-check.json and gpu-check.md."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {"machine": asdict(machine), "parts": [asdict(part) | {"wrong": part.wrong} for part in parts]}
    _replace(folder / "gpu-check.json", json.dumps(held, indent=1) + "\n")
    _replace(folder / "gpu-check.md", markdown(machine, parts))


def markdown(machine: Machine, parts: list[Part]) -> str:
    """All parts as tables under one heading."""
    lines = [
        "# GPU check",
        "",
        f"{machine.date}, {machine.device}, {machine.versions}, revision {machine.revision}.",
        "",
    ]
    if machine.dry:
        lines += ["A dry run in miniature: its times mean nothing.", ""]
    lines += ["| part | seconds | budget | verdict |", "|---|---|---|---|"]
    for part in parts:
        lines.append(f"| {part.name} | {part.seconds:.0f} | {part.budget_s:.0f} | {_summary(part)} |")
    for part in parts:
        if part.rows:
            lines += ["", f"## {part.name[0].upper()}{part.name[1:]}", "", *_table(part)]
    return "\n".join(lines) + "\n"


def _summary(part: Part) -> str:
    counts: dict[str, int] = {}
    for row in part.rows:
        if row.verdict:
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
    told = [f"{count} {verdict}" for verdict, count in counts.items()]
    return _cell("; ".join([*told, *([f"**{part.fault}**"] if part.fault else [])]) or "measured")


def _table(part: Part) -> list[str]:
    columns = [name for name in COLUMNS if any(name in row.figures for row in part.rows)]
    lines = [f"| | {' | '.join([*columns, 'verdict'])} |", "|---" * (len(columns) + 2) + "|"]
    for row in part.rows:
        verdict = ": ".join(text for text in (row.verdict, row.note) if text)
        cells = [row.name, *(row.figures.get(name, "") for name in columns), verdict]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _revision() -> str:
    """The commit, where there is git and a repository."""
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
