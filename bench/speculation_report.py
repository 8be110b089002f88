"""What bench/speculation.py found, as a page and its chart: `python -m bench.speculation_report FILE --write PAGE`.

Owns the page: the figures of one run, what they mean and what they were measured with. Knows nothing of how anything is
measured. Invariant: every figure on the page stands in the results, and so does every failure.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from bench.speculation_chart import chart, panels_of
from bench.speculation_results import CONTROL, PLAIN, WARM, Arm, Case, Measured, PeerGain, Results
from bench.speculation_targets import drafter_wins, targets

IMAGE = "images/speculation-bench.svg"
DETAILS = """
## Acceptance and times

Acceptance is accepted / drafted; mean length 1 + accepted / drafts; no draft: the share of an answer's own steps
without one (k = 0). Draft: per step of the engine, verified or not. Verify, plain: one step with drafts, and one
without. Loops: answers that end by repeating themselves, which drafts foresee easily.

| | proposer | acceptance | mean length | no draft | draft ms | verify ms | plain ms | loops |
|---|---|---|---|---|---|---|---|---|"""
PEERS = """
## Beside the gains of other engines

Each engine's own speculation over its own plain decoding, greedy, on the first prompts of each set, the same for all;
for JSON schemas each uses its own grammars. Gains and speeds are of all answers of a batch, up to the last token of the
last one; prompts are not timed. Same text: answers that speculation left as they were, token by token.

| | engine | gain | tok/s | acceptance | same text |
|---|---|---|---|---|---|"""
COSTS = """
## What a draft model costs

The default model drafts for larger ones. Where the larger one's weights are random, acceptance means nothing and is
not given: only times are. Catch-up: what a request's first draft takes longer than a later one, since the drafter
computes the prompt for it. Pays from: the tokens that a verification has to yield to be as fast as plain steps.

| target | drafter | k | batch | plain ms | draft ms | verify ms | catch-up ms | acceptance | pays from |
|---|---|---|---|---|---|---|---|---|---|"""
HEAD = """\
# Speculation, measured

What speculation gains on this machine, over our own decoding without it. `make bench-speculation` measures anew and
writes this page; [speculation.md](speculation.md) says how it works and what the words mean.

- The prompts are those of `bench/prompts/`, {prompts}. Answers end by themselves, or at {lengths} tokens. The model is
  small: where it would not do what is asked for, the prompt gives the first words of the answer.
- All ways to decode share one engine, each with proposers and a controller of its own. They take turns prompt by
  prompt, and every round begins with another one. The clock runs over decoding alone: a prompt's blocks are in the
  prefix cache.
- What is kept of past answers is dropped before every group of prompts; the figures of "{warm}" are of a second
  run over the same prompts that kept it, and say what a repeated question gains.
- Every answer is compared with plain decoding's, token by token, at temperature 1 as well, where both draw with the
  same seed. One that differs would void the figures of its case.
- A gain is the ratio of the times to an answer's last token: of the sums over prompts of their medians over rounds,
  with its 95 % interval from drawing rounds and prompts anew. Prompts at once are sent at one moment, and their
  answers' times are averaged; "last" is the gain of the answer that ends last, which is the one that drafts help least.
  "{control}" is plain decoding as one more way: what noise alone does to a ratio.
"""


def write_page(results: Results, path: Path | None) -> None:
    """Prints the page; writes it, and its chart into images/ beside it, where asked to."""
    text = page(results)
    print(text)
    if path is None:
        return
    (path.parent / IMAGE).parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (path.parent / IMAGE).write_text(chart(panels_of(results), "What speculation gains"), encoding="utf-8")


def page(results: Results) -> str:
    """All of it as Markdown."""
    facts = results.facts
    lengths = sorted(set(facts["max_tokens"].values()))
    head = HEAD.format(
        prompts=f"{facts['prompts']} of each of {len(facts['sets'])} sets",
        lengths=f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0]),
        warm=WARM.strip(" ()"),
        control=CONTROL,
    )
    parts = [head, *_facts(results), *_promises(results), *_gains(results), *_details(results), *_curves(results)]
    return "\n".join([*parts, *_peers(results), *_costs(results), *_troubles(results)]).rstrip() + "\n"


def _facts(results: Results) -> list[str]:
    facts, widths = results.facts, [each / 1e9 for each in results.bandwidths]
    stretches = f", in {facts['stretches']} stretches" if facts["stretches"] > 1 else ""
    what = (
        f"`{facts['command']}` on {facts['date']}: {facts['machine']}, {facts['threads']} threads, rounds: "
        f"{facts['rounds']}{stretches}. "
        f"Model `{facts['model']}`, exactness `{facts['exactness']}` ({facts['exactness_reason']}). "
        f"Read bandwidth {statistics.median(widths):.1f} GB/s, the median of {len(widths)} measurements between "
        f"{min(widths):.1f} and {max(widths):.1f}."
    )
    lines = [what]
    if facts["quick"]:
        lines += ["", "**A short run, to see that everything works: these are no measurements.**"]
    lines += ["", f"By itself an engine speculates by {facts['default']}. The engine: {facts['engine']}."]
    return [*lines, "", f"![Gains by prompt set, batch and way to draw]({IMAGE})"]


def _promises(results: Results) -> list[str]:
    words = {True: "yes", False: "**no**", None: "-"}
    lines = ["", "## What was to be reached", ""]
    lines += [f"By `{results.facts['default']}`, what an engine uses that is not told otherwise:", ""]
    lines += ["| promised | found | reached |", "|---|---|---|"]
    found = targets(results, results.facts["default"])
    lines += [f"| {one.promise} | {one.found} | {words[one.reached]} |" for one in found]
    verdict = drafter_wins(results)
    if verdict is not None:
        mean, wins = verdict
        lines += ["", f"`hybrid` gives {mean:.3f} times what `suffix` gives, the geometric mean over all cases."]
        lines += [verdict_line(results.facts["drafter_sha256"], wins=wins)]
    return lines


def verdict_line(sha256: str, *, wins: bool) -> str:
    """What `pizarra.wins` of the drafter with these weights has to say: a test holds the shipped one against it."""
    return f"The drafter with the weights `{sha256[:16]}` {'wins' if wins else 'does not win'}."


def _gains(results: Results) -> list[str]:
    names = [name for name in dict.fromkeys(name for one in results.measured for name in one.arms) if name != PLAIN]
    lines = ["", "## Times plain decoding", ""]
    lines += [f"| | plain, tok/s | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for one in results.measured:
        cells = [_number(one.speed(PLAIN), "{:,.0f}"), *(_gain(one, name) for name in names)]
        lines.append(f"| {_title(one)} | {' | '.join(cells)} |")
    return lines


def _gain(one: Measured, name: str) -> str:
    arm = one.arms.get(name)
    if arm is None:
        return "-"
    if arm.differs:
        return f"void: {arm.differs} answers differ"
    gain = one.gain(name)
    if gain is None:
        return "-"
    last = one.gain_of_all(name) if one.case.batch > 1 else None
    return f"**{gain.value:.2f}** ({gain.low:.2f} to {gain.high:.2f})" + (f", last {last.value:.2f}" if last else "")


def _details(results: Results) -> list[str]:
    rows = [(one, name, one.arms[name]) for one in results.measured for name in results.proposers() if name in one.arms]
    return [
        DETAILS,
        *(
            f"| {_title(one)} | {name} | {' | '.join(_figures(arm))} | {one.loops} of {arm.counts.answers} |"
            for one, name, arm in rows
        ),
    ]


def _figures(arm: Arm) -> list[str]:
    counts = arm.counts
    return [
        _number(counts.acceptance_rate, "{:.0%}"),
        _number(counts.mean_acceptance_length, "{:.2f}"),
        _number(counts.without_draft, "{:.0%}"),
        _number(counts.draft_ms, "{:.2f}"),
        _number(counts.verify_ms, "{:.2f}"),
        _number(counts.plain_ms, "{:.2f}"),
    ]


def _curves(results: Results) -> list[str]:
    """Acceptance by place, at the smallest batch."""
    least = min((one.case.batch for one in results.measured), default=1)
    rows = [
        (one, name, one.arms[name].counts.curve())
        for one in results.measured
        if one.case.batch == least
        for name in results.proposers()
        if name in one.arms
    ]
    most = max((len(curve) for _, _, curve in rows), default=0)
    if not most:
        return []
    lines = ["", "## Acceptance by place in the draft", ""]
    lines += [
        f"Of the drafts that were long enough, the share that was accepted up to that place, at batch {least}.",
        "",
        f"| | proposer | {' | '.join(str(place + 1) for place in range(most))} |",
        f"|---|---|{'---|' * most}",
    ]
    for one, name, curve in rows:
        cells = [f"{share:.0%}" for share in curve] + ["-"] * (most - len(curve))
        lines.append(f"| {_title(one)} | {name} | {' | '.join(cells)} |")
    return lines


def _peers(results: Results) -> list[str]:
    if not results.peers:
        return []
    lines = [PEERS]
    cases: dict[Case, list[PeerGain]] = {}
    for one in results.peers:
        cases.setdefault(one.case, []).append(one)
    for case, gains in cases.items():
        title = f"{case.key}, batch {case.batch}"
        measured = results.find(case)
        if measured is not None:
            lines += _own_line(title, measured, results.facts["default"], gains[0].groups)
        lines += [_peer_line(title, one) for one in gains]
    told = results.facts.get("peers", {})
    return [*lines, "", *(f"- {name}: {one['version']}, {one['settings']}" for name, one in told.items())]


def _own_line(title: str, measured: Measured, name: str, groups: int) -> list[str]:
    """Our own gain on the same prompts."""
    gain, speed = measured.gain_of_all(name, groups), measured.speed(name, groups)
    if gain is None or speed is None:
        return []
    found = f"**{gain.value:.2f}** ({gain.low:.2f} to {gain.high:.2f}) | {speed:,.0f}"
    return [f"| {title} | Pizarra {name} | {found} | - | all |"]


def _peer_line(title: str, one: PeerGain) -> str:
    gain = one.gain()
    accepted = f"{one.accepted / one.drafted:.0%}" if one.drafted else "-"
    return (
        f"| {title} | {one.engine} {one.way} | **{gain.value:.2f}** ({gain.low:.2f} to {gain.high:.2f}) | "
        f"{one.speed():,.0f} | {accepted} | {one.same_text} of {one.answers} |"
    )


def _costs(results: Results) -> list[str]:
    """Of drafting with a model."""
    if not results.costs:
        return []
    lines = [COSTS]
    for one in results.costs:
        cells = [one["target"], one["drafter"], str(one["k"]), str(one["batch"])]
        cells += [_number(one[name], "{:.2f}") for name in ("plain_ms", "draft_ms", "verify_ms", "catch_up_ms")]
        cells += [_number(one["acceptance"], "{:.0%}"), _number(one["pays_from"], "{:.2f} tokens a step")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _troubles(results: Results) -> list[str]:
    if not results.failures:
        return []
    found = [f"- {name}: {' '.join(what.split())}" for name, what in results.failures.items()]
    return ["", "## What could not be measured", "", *found]


def _title(one: Measured) -> str:
    return f"{one.case.key}, {one.case.how}, batch {one.case.batch}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def main() -> int:
    """The page of the results of one run."""
    parser = argparse.ArgumentParser(prog="python -m bench.speculation_report", description=__doc__)
    parser.add_argument("results", type=Path, help="the file that bench/speculation.py wrote")
    parser.add_argument("--write", type=Path, help="the page to write, for instance docs/speculation-bench.md")
    arguments = parser.parse_args()
    write_page(Results.read(arguments.results), arguments.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
