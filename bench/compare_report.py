"""What bench/compare.py found, as a page and its charts: `python -m bench.compare_report FILE... --write PAGE`.

Owns the page: the figures of one run or of several, what they mean, and what they were measured with. Knows nothing of
how anything is measured. Invariant: every figure on the page stands in the results, and so does every failure.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.compare_chart import chart
from bench.compare_results import LONG_CONTEXT, OURS, VERIFY_ROWS, Results, Task
from bench.compare_targets import targets

HEAD = """\
# Pizarra beside other engines

Decoding and prefill of the default model on CPUs, each engine in a process and an environment of its own
(`sh bench/peers.sh vllm openvino llama.cpp` sets them up), all loaded at once and taking turns. `make bench-compare`
measures anew and writes this page; `docs/benchmarks.md` has the figures of serving: times to the first token, many
lengths, shared beginnings.

How it is measured:

- Speeds are tokens a second, medians of the rounds after a warm-up, with the lowest and the highest; "x" is Pizarra's
  speed over that engine's.
- Decoding: prompts of {prompt_tokens} random tokens, the same for all, greedy, no end of text. The time of long answers
  less the time of short ones to the same prompts, so that the prompts' time and whatever a call costs once cancel out:
  {lengths}. llama.cpp's own program times its answers apart from the prompts; its tokens are random and it draws none.
- Prefill: one prompt up to its first token, nothing remembered from before. llama.cpp: its program's own figure.
- Over HTTP: streamed `/v1/completions`, all requests of a load sent at once, long answers less short ones to other
  prompts of the same length. OpenVINO GenAI's package has no server, and transformers' own takes no token ids.
- With an older processor's instructions: Pizarra and llama.cpp are built for them, OpenVINO and transformers are told
  to leave the newer ones (`ONEDNN_MAX_CPU_ISA`, `ATEN_CPU_CAPABILITY`) as far as they listen, vLLM cannot be told.
- Pizarra, llama.cpp and OpenVINO read the same GGUF file. vLLM and transformers take its weights dequantised to bf16.
- The roof: the bandwidth at which this machine read memory in the same run, over the bytes of our weights as they are
  stored, each read once a token.
"""


def write_page(runs: Sequence[Results], path: Path | None) -> None:
    """Prints the page; writes it, and its charts into images/ beside it, where asked to."""
    text = page(runs)
    print(text)
    if path is None:
        return
    (path.parent / "images").mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    for results in runs:
        (path.parent / _image(results)).write_text(chart(results, _heading(results)), encoding="utf-8")


def page(runs: Sequence[Results]) -> str:
    """All of it as Markdown."""
    facts = runs[0].facts
    lengths = "; ".join(
        f"{long} and {short} tokens at batch {batch}" for batch, (short, long) in facts["lengths"].items()
    )
    parts = [HEAD.format(prompt_tokens=facts["prompt_tokens"], lengths=lengths)]
    for results in runs:
        parts += [*_head(results), *_speeds(results), *_troubles(results), *_own(results), *_promises(results)]
    return "\n".join(parts).rstrip() + "\n"


def _heading(results: Results) -> str:
    march = results.facts["march"]
    return "With all instructions of the processor" if march is None else f"With the instructions of {march} alone"


def _image(results: Results) -> str:
    march = results.facts["march"]
    return f"images/compare{'' if march is None else f'-{march}'}.svg"


def _head(results: Results) -> list[str]:
    facts = results.facts
    widths = [each / 1e9 for each in results.bandwidths]
    what = (
        f"`{facts['command']}` on {facts['date']}: {facts['machine']}, {facts['threads']} threads for each engine, "
        f"rounds: {facts['rounds']}. Read bandwidth {results.bandwidth / 1e9:.1f} GB/s, the median of {len(widths)} "
        f"measurements between {min(widths):.1f} and {max(widths):.1f}. Model: `{facts['model']}`."
    )
    lines = ["", f"## {_heading(results)}", "", what]
    weights, cache = results.engines.get(OURS, {}).get("weights_bytes", math.inf), facts.get("cache_bytes", 0)
    if weights < cache:
        sizes = (
            f"The weights ({weights / 1e6:.0f} MB) fit this machine's last cache ({cache / 1e6:.0f} MB, which others"
        )
        told = (
            "may share), so that a step may read them faster than memory gives: a share of the roof shows little here."
        )
        lines += ["", f"{sizes} {told}"]
    if facts["quick"]:
        lines += ["", "**One round of short answers, to see that everything runs: these are no measurements.**"]
    lines += ["", f"![Tokens a second by engine and task]({_image(results)})", ""]
    for name, engine in results.engines.items():
        lines.append(f"- {name} {engine.get('version', '(did not load)')}: {engine.get('settings', '-')}")
    idle = [f"{name} {max(shares):.1%}" for name, shares in results.idle_shares.items() if shares]
    if idle:
        lines += ["", f"Who was not measured idled, which took of one core at most: {', '.join(idle)}."]
    return lines


def _speeds(results: Results) -> list[str]:
    tasks, names = results.tasks(), results.names()
    lines = ["", f"| tokens a second | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    cells = ((task.title, [_cell(results, task, name) for name in names]) for task in tasks)
    return [*lines, *(f"| {title} | {' | '.join(row)} |" for title, row in cells)]


def _cell(results: Results, task: Task, name: str) -> str:
    if name in results.failures.get(task.key, {}):
        return "failed, see below"
    if results.is_impossible(task, name):
        return "no figure, see below"
    speed, spread = results.speed(task, name), results.spread(task, name)
    if speed is None or spread is None:
        return "-"
    ratio = results.ratio(task, name)
    times = f" {ratio:.2f} x" if ratio is not None and name != OURS else ""
    mark = " \\*" if name in results.notes.get(task.key, {}) else ""
    return f"**{speed:,.1f}**{mark}{times} ({spread[0]:,.1f} to {spread[1]:,.1f})"


def _troubles(results: Results) -> list[str]:
    """Failures and footnotes."""
    lines = []
    for sign, found in (("", results.failures), ("\\* ", results.notes)):
        for key, names in found.items():
            lines += [f"- {sign}{name}, {Task.of(key).title}: {what}" for name, what in names.items()]
    for task in results.tasks():
        for name in (name for name in results.names() if results.is_impossible(task, name)):
            low, high = results.spread(task, name) or (0.0, 0.0)
            lines.append(
                f"- {name}, {task.title}: the rounds gave {low:,.1f} to {high:,.1f}, more than its own loop "
                "without HTTP, which cannot be: the difference of the two loads was mostly noise."
            )
    return ["", *lines] if lines else []


def _own(results: Results) -> list[str]:
    """What only we were asked."""
    lines = []
    for temperature, rounds in results.verify.items():
        single, several, chunk = (_median_ms([each[index] for each in rounds]) for index in (0, 1, 2))
        lines.append(
            f"- Verifying {VERIFY_ROWS} tokens of one text in one step at temperature {temperature}: {several:.2f} ms, "
            f"a single-token step {single:.2f} ms; ratio, the median of rounds: "
            f"{results.verify_cost(float(temperature)):.2f}. Each row yields logits and a draw; "
            f"a step of as many rows that draws the last alone takes {chunk:.2f} ms."
        )
    if results.contexts:
        short, long = (_median_ms([each[index] for each in results.contexts]) for index in (0, 1))
        size = results.contexts[0][2]
        lines.append(
            f"- A step at batch 1 behind {LONG_CONTEXT:,} tokens: {long:.2f} ms, behind a few {short:.2f} ms. The "
            f"difference is {results.context_cost():.2f} times what reading {size / 1e6:.0f} MB of keys and values "
            "takes at the measured bandwidth."
        )
    return ["", *lines] if lines else []


def _median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e3


def _promises(results: Results) -> list[str]:
    words = {True: "yes", False: "**no**", None: "-"}
    lines = ["", "| promised | found | kept |", "|---|---|---|"]
    lines += [f"| {one.promise} | {one.found} | {words[one.reached]} |" for one in targets(results)]
    return lines


def main() -> int:
    """One page of the results of one run or of several."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare_report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="files that bench/compare.py wrote")
    parser.add_argument("--write", type=Path, help="the page to write, for instance docs/compare.md")
    arguments = parser.parse_args()
    write_page([Results.read(path) for path in arguments.results], arguments.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
