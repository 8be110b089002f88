"""Other engines' own speculation on the same prompts: what vLLM and llama.cpp gain by it over themselves.

Owns which of their ways are tried and how they take turns. Knows nothing of our engine. Invariants: an engine is held
against itself alone, in turns with it; one that fails is a line in the results, never an end of the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compare_workers import Models, PeerError, Start, Worker, native_programs
from bench.servers import ROOT, vllm_variables
from bench.speculation_results import Case, PeerGain, Results
from bench.speculation_sets import EncodedPrompt

SLOTS = 4  # answers at once, at most
MAX_LEN = 1024
ARCTIC = "arctic"  # beside vLLM's environment: the package that its suffix decoding needs
# What each engine's manual gives for prompts whose text comes again
VLLM: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_cached_requests": 0},
}
LLAMA: Mapping[str, Sequence[str]] = {
    "ngram-simple": (
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"),
    ),
    "ngram-cache": ("--spec-type", "ngram-cache"),
}

Work = Mapping[Case, Sequence[tuple[Sequence[EncodedPrompt], int]]]  # case -> groups of prompts, tokens of an answer


@dataclass(frozen=True, slots=True)
class Wishes:
    """What all peers of a run are told. peers: where bench/peers.sh set them up. folder: for logs."""

    peers: Path
    models: Models
    threads: int
    rounds: int
    folder: Path
    stop_token_ids: tuple[int, ...]


def measure(wishes: Wishes, work: Work, results: Results, say: Callable[[str], None]) -> None:
    """Adds the gains of both engines to the results; what could not be measured goes to its failures."""
    lone = wishes.folder / "peers"
    lone.mkdir()
    (lone / "bench").symlink_to(ROOT / "bench")
    for engine, plain, ways in (("vLLM", *_vllm(wishes, lone)), ("llama.cpp", *_llama(wishes, lone))):
        with ExitStack() as stack:
            workers = {name: _worker(wishes, start, stack) for name, start in {"": plain, **ways}.items()}
            _measure_engine(engine, workers, wishes, work, results, say)


def _measure_engine(
    engine: str,
    workers: Mapping[str, Worker],
    wishes: Wishes,
    work: Work,
    results: Results,
    say: Callable[[str], None],
) -> None:
    """One engine, plain and in all its ways, in turns."""
    up: dict[str, Worker] = {}
    for way, worker in workers.items():
        try:
            worker.load()
        except PeerError as error:
            results.failures[f"{engine} {way}".strip()] = str(error)
            say(f"{engine} {way}: {error}")
            continue
        results.facts.setdefault("peers", {})[f"{engine} {way}".strip()] = worker.described
        up[way] = worker
    if "" not in up:
        return
    for case, groups in work.items():
        found = _take_turns(engine, up, wishes, case, groups, results)
        for gain in found:
            same = f"the same text in {gain.same_text} of {gain.answers}"
            say(f"{engine} {gain.way}, {case.key}, batch {case.batch}: {gain.gain()}, {same}")
        results.peers.extend(found)


def _take_turns(
    engine: str,
    workers: Mapping[str, Worker],
    wishes: Wishes,
    case: Case,
    groups: Sequence[tuple[Sequence[EncodedPrompt], int]],
    results: Results,
) -> list[PeerGain]:
    """One case: a warm-up round and all rounds. A way that fails is left out."""
    seconds: dict[str, list[list[float]]] = {way: [] for way in workers}
    last: dict[str, list[dict[str, Any]]] = {}
    failed: set[str] = set()
    for number in range(wishes.rounds + 1):
        answers: dict[str, list[dict[str, Any]]] = {way: [] for way in workers}
        for prompts, max_tokens in groups:
            for way, worker in workers.items():
                if way in failed:
                    continue
                try:
                    answers[way].append(_ask(worker, prompts, max_tokens, wishes))
                except PeerError as error:
                    failed.add(way)
                    results.failures[f"{engine} {way}, {case.key}, batch {case.batch}"] = str(error)
        last = answers
        if number:
            for way, found in answers.items():
                seconds[way].append([one["seconds"] for one in found])
    if "" in failed:
        return []
    return [_gain(engine, way, case, len(groups), seconds, last) for way in workers if way and way not in failed]


def _ask(worker: Worker, prompts: Sequence[EncodedPrompt], max_tokens: int, wishes: Wishes) -> dict[str, Any]:
    found: dict[str, Any] = worker.ask(
        "answer",
        prompts=[list(one.token_ids) for one in prompts],
        schemas=[one.prompt.schema for one in prompts],
        max_tokens=max_tokens,
        stop_token_ids=list(wishes.stop_token_ids),
    )
    return found


def _gain(
    engine: str,
    way: str,
    case: Case,
    groups: int,
    seconds: Mapping[str, list[list[float]]],
    last: Mapping[str, Sequence[Mapping[str, Any]]],
) -> PeerGain:
    plain, spec = ([answer for one in last[each] for answer in one["token_ids"]] for each in ("", way))
    return PeerGain(
        engine=engine,
        way=way,
        case=case,
        groups=groups,
        plain_s=seconds[""],
        spec_s=seconds[way],
        plain_tokens=sum(map(len, plain)),
        spec_tokens=sum(map(len, spec)),
        same_text=sum(one == other for one, other in zip(plain, spec, strict=True)),
        answers=len(plain),
        drafted=sum(one["drafted"] for one in last[way]),
        accepted=sum(one["accepted"] for one in last[way]),
    )


def _worker(wishes: Wishes, start: Start, stack: ExitStack) -> Worker:
    worker = Worker(start, wishes.folder / f"{start.name.replace(' ', '-')}.log", wishes.threads, SLOTS, MAX_LEN)
    stack.callback(worker.close)
    return worker


def _vllm(wishes: Wishes, lone: Path) -> tuple[Start, dict[str, Start]]:
    environment = wishes.peers / "vllm"
    variables = vllm_variables(environment, f"0-{wishes.threads - 1}") | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    suffix = {**variables, "PYTHONPATH": str(wishes.peers / ARCTIC)}

    def start(name: str, config: Mapping[str, Any] | None) -> Start:
        command = [str(environment / "bin" / "python"), "-m", "bench.peer_vllm_speculation", json.dumps(config)]
        return Start(f"vLLM {name}", command, lone, wishes.models.bf16, suffix if name == "suffix" else variables)

    return start("plain", None), {name: start(name, config) for name, config in VLLM.items()}


def _llama(wishes: Wishes, lone: Path) -> tuple[Start, dict[str, Start]]:
    programs = native_programs(wishes.peers)

    def start(name: str, flags: Sequence[str]) -> Start:
        command = [sys.executable, "-m", "bench.peer_llama_cpp_speculation", str(programs), *flags]
        return Start(f"llama.cpp {name}", command, lone, wishes.models.gguf, {"LD_LIBRARY_PATH": str(programs)})

    return start("plain", ()), {name: start(name, flags) for name, flags in LLAMA.items()}
