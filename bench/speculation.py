"""What speculation gains over our own plain decoding, and other engines' gains beside it: `make bench-speculation`.

All ways to decode share one engine, each with proposers and a controller of its own; they take turns group by group of
prompts, and each round begins with another one, so that a noisy machine hits them alike. Every answer is compared with
plain decoding's, token by token: a speed-up on other text is none. Then vLLM and llama.cpp on the same prompts, each
against itself, and what a draft model costs. The figures go to a file, and from there to docs/
(bench/speculation_report.py). A run that was stopped, or whose `--minutes` were up, goes on with `--go-on`.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import math
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import speculation_costs, speculation_peers
from bench.bandwidth import read_bandwidth
from bench.code import code_hash
from bench.compare_workers import PEERS, Models
from bench.decode import default_model
from bench.serving_report import machine
from bench.speculation_engine import MAX_LEN, POOL_BYTES, Answered, BenchEngine, Work, another_way, load
from bench.speculation_report import write_page
from bench.speculation_results import CONTROL, PLAIN, WARM, Arm, Case, Counts, Measured, Results, loops
from bench.speculation_sets import ORDER, EncodedPrompt, PromptSet, encode, read_sets
from bench.transformers_llama import export
from engine.checkpoint import read_checkpoint
from engine.checkpoint.drafter_files import shipped_drafter
from engine.checkpoint.drafting import decide
from engine.config import LoadOptions
from engine.core.speculation import SpeculationParams
from engine.vocab import load_vocab

RESULTS = PEERS.parent / "bench" / "speculation.json"
AT_BATCH_ONE = 8  # prompts of a set, answered one by one, and four at a time
WARM_UP_GROUPS = 2  # of each case: recordings of steps, and what the controller learns
QUICK_PROMPTS, PEER_PROMPTS, QUICK_PEER_PROMPTS = 2, 8, 1
PEER_BATCHES = (1, 4)
SAME = ("machine", "threads", "rounds", "quick", "model", "ways", "code")  # facts in which all stretches of a run agree


class Run:
    """One run: its engines, its results and its clock."""

    def __init__(self, arguments: argparse.Namespace, model: Path) -> None:
        self.arguments = arguments
        self.model = model
        self.sets = read_sets(arguments.sets)
        self.vocab = load_vocab(model)
        self.prompts = {one.key: encode(one.prompts, self.vocab) for one in self.sets}
        self.engines: list[BenchEngine] = []
        self.is_whole = True  # so far, nothing was left out for want of time
        self._start = time.monotonic()
        self.results = begun(_facts(self), arguments.results) if arguments.go_on else Results(_facts(self))

    def has_time(self) -> bool:
        """Whether one more thing may be begun; it is then measured to its end."""
        self.is_whole = self.is_whole and time.monotonic() - self._start <= 60 * self.arguments.minutes
        return self.is_whole

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:5.0f} s  {text}", flush=True)

    def load_engine(self) -> None:
        """One engine, since two of them differ by where their memory lies. Its ways to decode: plainly, once more for
        the control, as an engine does by itself, and by every other proposer it has."""
        options = LoadOptions(
            kv_cache_memory_bytes=POOL_BYTES,
            max_model_len=MAX_LEN,
            max_num_seqs=max(self.arguments.batches),
            num_threads=self.arguments.threads,
            drafter=str(self.arguments.drafter or shipped_drafter(read_checkpoint(self.model)) or ""),
        )
        loaded = load(PLAIN, self.model, options, SpeculationParams()).loaded
        by_itself = decide(loaded.info, LoadOptions(drafter=str(self.arguments.drafter or ""))).speculation
        known = list(loaded.engine.speculator.proposers)
        others = [name for name in self.arguments.proposers or known if name != by_itself]
        plain = [PLAIN, CONTROL] if self.arguments.control else [PLAIN]
        for name in [*plain, by_itself, *others]:
            self.engines.append(another_way(name, loaded, options, "off" if name in plain else name))
        told = [f"{each.name}: {each.effective} ({each.reason})" for each in loaded.settings if each.reason]
        what = f"at most {options.num_speculative_tokens} drafts; drafter: {options.drafter or 'none'}"
        weights = Path(options.drafter) / "model.safetensors"
        self.results.facts |= {
            "default": by_itself,
            "drafter_sha256": hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "",
            "engine": "; ".join([what, *told]),
            "exactness": loaded.exactness.level,
            "exactness_reason": loaded.exactness.reason,
        }
        self.say(f"loaded: {', '.join(one.name for one in self.engines)}")

    def groups(self, one: PromptSet, batch: int, temperature: float) -> list[Work]:
        """The prompts of a set, so many at a time."""
        most = QUICK_PROMPTS if self.arguments.quick else AT_BATCH_ONE
        chosen = self.prompts[one.key][: max(batch, most)]
        whole = range(0, len(chosen) - batch + 1, batch)
        return [self._work(one, chosen[first : first + batch], first, temperature) for first in whole]

    def measure(self, one: PromptSet, batch: int, temperature: float) -> None:
        """One case in all ways, unless it has been measured."""
        found = Measured(Case(one.key, batch, temperature))
        if self.results.find(found.case) or not self.has_time():
            return
        groups = self.groups(one, batch, temperature)
        engines = self.engines
        for each in engines:
            found.arms[each.name] = Arm()
        self.results.bandwidths.append(self._bandwidth())
        _round(found, engines, groups[: 1 if self.arguments.quick else WARM_UP_GROUPS], 0)
        for number in range(1, self.arguments.rounds + 1):
            _round(found, engines, groups, number)
        if self.arguments.warm and batch == 1:
            _again(found, [each for each in engines if each.name == self.results.facts["default"]], groups)
        self.results.measured.append(found)
        gains = ", ".join(f"{name} {found.gain(name) or 'VOID'}" for name in found.arms if name != PLAIN)
        self.say(f"{one.key}, {found.case.how}, batch {batch}: plain {found.speed(PLAIN):.0f} tok/s; {gains}")
        self.results.save(self.arguments.results)

    def _work(self, one: PromptSet, prompts: Sequence[EncodedPrompt], first: int, temperature: float) -> Work:
        return Work(prompts, [first + index for index in range(len(prompts))], one.max_tokens, temperature)

    def _bandwidth(self) -> float:
        torch.set_num_threads(self.arguments.threads)
        found = read_bandwidth(torch.device("cpu"))
        torch.set_num_threads(1)  # as in the engine process: the kernels have threads of their own
        return found


def _round(found: Measured, engines: Sequence[BenchEngine], groups: Sequence[Work], number: int) -> None:
    """All groups in all ways, in turns. number 0: a warm-up, which is compared, but not timed."""
    seconds: dict[str, list[list[float]]] = {one.name: [] for one in engines}
    counts = {one.name: Counts() for one in engines}
    tokens, looping = [], 0
    for place, work in enumerate(groups):
        turn = (number + place) % len(engines)
        answered: dict[str, Answered] = {}
        for one in [*engines[turn:], *engines[:turn]]:
            one.prepare(work)
            answered[one.name] = one.answer(work)
        plain = answered[PLAIN].token_ids
        tokens.append(sum(map(len, plain)))
        looping += sum(map(loops, plain))
        for name, answers in answered.items():
            found.arms[name].differs += _differing(plain, answers)
            seconds[name].append(answers.seconds)
            counts[name].add(answers.counts)
    if number == 0:
        return
    found.tokens, found.loops = tokens, looping
    for name, arm in found.arms.items():
        if name in seconds:
            arm.add_round(seconds[name])
            arm.counts = counts[name]


def _again(found: Measured, engines: Sequence[BenchEngine], groups: Sequence[Work]) -> None:
    """Once more with what was learned from all answers of a pass over the prompts that is not timed."""
    for one in engines:
        arm = found.arms[one.name + WARM] = Arm()
        plain = [one.answer(work, keep=place > 0) for place, work in enumerate(groups)]
        for _ in found.arms[PLAIN].seconds:
            answered = [one.answer(work, keep=True) for work in groups]
            arm.add_round([each.seconds for each in answered])
            arm.counts = Counts()
            for first, each in zip(plain, answered, strict=True):
                arm.counts.add(each.counts)
                arm.differs += _differing(first.token_ids, each)


def _differing(plain: Sequence[Sequence[int]], answered: Answered) -> int:
    return sum(list(one) != list(other) for one, other in zip(plain, answered.token_ids, strict=True))


def begun(facts: dict[str, Any], path: Path) -> Results:
    """What earlier stretches of this run found, if there were any. SystemExit where they were of another run."""
    if not path.exists():
        return Results(facts)
    try:
        found = Results.read(path)
    except (KeyError, TypeError) as error:
        sys.exit(f"{path} has another form than this version's ({error}). Leave --go-on away to measure anew")
    then = found.facts
    other = [f"{one} {then.get(one)!r} then, {facts[one]!r} now" for one in SAME if then.get(one) != facts[one]]
    if other:
        sys.exit(f"{path} is of another run: {'; '.join(other)}. Leave --go-on away to measure anew")
    then["stretches"] += 1
    return found


def main() -> int:
    """Measures, keeps the figures, and writes the page where asked to. 1: an answer differed from plain decoding's."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started ends as well
    model = arguments.model or default_model()
    run = Run(arguments, model)
    run.load_engine()
    for temperature in arguments.temperatures:
        for batch in arguments.batches:
            for one in run.sets:
                run.measure(one, batch, temperature)
    run.engines.clear()  # their memory and threads are wanted
    if arguments.costs and not run.results.costs and run.has_time():
        speculation_costs.measure(model, arguments.threads, arguments.quick, run.results, run.say)
        run.results.save(arguments.results)
    if arguments.with_peers and not run.results.peers and run.has_time():
        _peers(run)
        run.results.save(arguments.results)
    left = "" if run.is_whole else "; there is more to measure: --go-on"
    run.say(f"the figures are in {arguments.results}{left}")
    write_page(run.results, arguments.write)
    return int(any(arm.differs for one in run.results.measured for arm in one.arms.values()))


def _peers(run: Run) -> None:
    """The first prompts of each set, greedy, to the engines that bench/peers.sh set up."""
    arguments, info = run.arguments, read_checkpoint(run.model)
    count = QUICK_PEER_PROMPTS if arguments.quick else PEER_PROMPTS
    batches = [batch for batch in PEER_BATCHES if batch in arguments.batches]
    work: dict[Case, list[tuple[Sequence[EncodedPrompt], int]]] = {}
    for batch in batches:
        for one in run.sets:
            prompts = run.prompts[one.key][: max(count, batch)]
            groups = [prompts[first : first + batch] for first in range(0, len(prompts) - batch + 1, batch)]
            work[Case(one.key, batch, 0.0)] = [(group, one.max_tokens) for group in groups]
    with tempfile.TemporaryDirectory() as folder:
        weights = arguments.peers / f"{info.path.stem}-{info.weights_bytes_on_disk}"
        if not (weights / "tokenizer.json").exists():  # written last
            export(info, weights, torch.bfloat16)
        wishes = speculation_peers.Wishes(
            peers=arguments.peers,
            models=Models(run.model, weights),
            threads=arguments.threads,
            rounds=1 if arguments.quick else 2,
            folder=Path(folder),
            stop_token_ids=tuple(info.config.eos_token_ids),
        )
        speculation_peers.measure(wishes, work, run.results, run.say)


def _facts(run: Run) -> dict[str, Any]:
    return {
        "date": f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M}",
        "command": f"python -m bench.speculation {shlex.join(sys.argv[1:])}".strip(),
        "machine": machine(),
        "threads": run.arguments.threads,
        "rounds": run.arguments.rounds,
        "quick": run.arguments.quick,
        "model": run.model.name,
        "ways": {name: str(getattr(run.arguments, name)) for name in ("proposers", "drafter", "control", "warm")},
        "code": code_hash(),
        "stretches": 1,
        "sets": {one.key: one.copies for one in run.sets},
        "max_tokens": {one.key: one.max_tokens for one in run.sets},
        "prompts": min(len(one.prompts) for one in run.sets),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file or folder; else the default model, fetched")
    parser.add_argument("--sets", nargs="+", default=list(ORDER), metavar="SET", help="files of bench/prompts/")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="answers at once")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--proposers", nargs="+", metavar="NAME", help="beside the default; else all that are there")
    parser.add_argument("--drafter", type=Path, help="a drafter's folder; else the one tied to the model, if any")
    parser.add_argument("--no-control", dest="control", action="store_false", help="no second plain way")
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="no runs that keep past outputs")
    parser.add_argument("--no-costs", dest="costs", action="store_false", help="no draft model for larger ones")
    parser.add_argument("--no-peers", dest="with_peers", action="store_false", help="no other engines")
    parser.add_argument("--peers", type=Path, default=PEERS, help="where bench/peers.sh set them up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="one round of few prompts: does everything run?")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after these")
    parser.add_argument("--go-on", action="store_true", help="measure what the results lack; else all, anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of the figures")
    parser.add_argument("--write", type=Path, help="the page to write, for instance docs/speculation-bench.md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.warm = 1, False
    return arguments


if __name__ == "__main__":
    sys.exit(main())
