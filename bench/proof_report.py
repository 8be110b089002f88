"""docs/proof.md: what the proof covers, and what came of it, as `bench.proof` writes it.

Owns the page and the sums in it. Knows finished cells, not how they are run.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine.spec.same_text import ADVERSARIES, Cell

MEANING = """\
The same request with the same seed gets the same tokens and the same log probabilities, to the last bit, whether drafts
are made or not, whoever makes them, however many, and whether they are right or wrong (rule `match`, the default); with
the rule `rejection` it gets tokens of the same distribution. Three layers stand behind that sentence.

- (a) Exact enumeration in fp64 over tiny vocabularies: every path of drafts, acceptances and replacements, the noise
  integrated out, both rules, chains of 0 to 3 drafts, every processor, drafters that sample, propose with certainty,
  know only a part of the vocabulary or share the target's noise. The joint distribution is the target's to 1e-12.
- (b) The compiled ops with their true noise, up to a million requests: chi-square on the first token, the first three,
  the bonus, the recovered token and the one behind it, with Holm's correction at 1e-3; the total variation of the first
  token within Weissman's bound (8 tokens and a million draws: 0.0025 at most above the counted one, with 99.9 %
  confidence; 64 tokens: 0.0051). Known mistakes, some two dozen, are put in one at a time: each must be found.
- (c) Whole engines: each cell below decodes some requests plainly and with drafts and compares token ids, log
  probabilities and the alternatives beside them, reasons to end, usage, what was published in the prefix cache, and
  that no block is left in use. "tight" pools preempt, "cached" runs twice and finds prefixes, "chunks" computes prompts
  in pieces while others decode, "company" has others come, go and be aborted meanwhile. `docs/proof-cells.csv` has a
  line for each.

"all wrong", "all right", "half right" and "random" are proposers that only a test can have: none of their drafts is
accepted, all are, or some.
"""


@dataclass(frozen=True)
class Done:
    """A finished cell."""

    cell: Cell
    code: str
    differences: list[str] = field(default_factory=list)
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_preemptions: int = 0
    seconds: float = 0.0


def write_report(
    path: Path, command: str, layers: Mapping[str, str], done: Sequence[Done], num_left: int, errors: Mapping[str, str]
) -> None:
    """Writes the page. layers: pytest's last lines by name. errors: proposers that could not be loaded, and why."""
    today = f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M}"
    code = ", ".join(sorted({one.code for one in done})) or "none"
    differing = [one for one in done if one.differences]
    lines = [
        "# Proof that speculation changes nothing\n",
        f"Written by `{command}` on {today}, {platform.machine()}; do not edit. Code {code}.\n",
        MEANING,
        "## Results\n",
        *(f"- Layer {name}: {outcome}" for name, outcome in layers.items()),
        (
            f"- Layer (c): {len(done)} cells, {sum(one.num_tokens for one in done):,} tokens compared, "
            f"{sum(one.num_drafted for one in done):,} drafted, {sum(one.num_accepted for one in done):,} accepted, "
            f"{sum(one.num_preemptions for one in done):,} preemptions; "
            f"**cells with a difference: {len(differing)}**. Cells left to do: {num_left}.\n"
        ),
        *(f"- NOT PROVED: {name} could not be loaded: {why}" for name, why in errors.items()),
        *table("proposer", done, lambda cell: cell.proposer + (" (test)" if cell.proposer in ADVERSARIES else "")),
        *table("model and dtype", done, lambda cell: f"{cell.model}, {cell.dtype}"),
        *table("drafts at most", done, lambda cell: f"{cell.k:2d}"),
        *table("temperature", done, lambda cell: f"{cell.temperature:g}"),
        *table("batch", done, lambda cell: f"{cell.batch:2d}"),
        *table("requests", done, lambda cell: cell.kind),
        *table("served", done, lambda cell: cell.serving),
        *table(
            "drafts", done, lambda cell: "as the controller decides" if cell.adaptive else "always as many as may be"
        ),
    ]
    if differing:
        lines += ["## Differences\n", *(f"- {one.cell.key}: {one.differences[0]}" for one in differing[:50])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def table(title: str, done: Sequence[Done], group: Callable[[Cell], str]) -> list[str]:
    """A Markdown table of sums."""
    lines = [
        f"| {title} | cells | tokens compared | drafted | accepted | cells with a difference |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in sorted({group(one.cell) for one in done}):
        own = [one for one in done if group(one.cell) == name]
        sums = (
            len(own),
            sum(one.num_tokens for one in own),
            sum(one.num_drafted for one in own),
            sum(one.num_accepted for one in own),
            sum(bool(one.differences) for one in own),
        )
        lines.append(f"| {name} | " + " | ".join(f"{number:,}" for number in sums) + " |")
    return [*lines, ""]
