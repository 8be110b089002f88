"""One cell of the proof that drafts change nothing: the same requests, decoded plainly and with drafts, must agree.

Owns the cell (which model, proposer, requests and way of serving), how it runs, and what is compared: token ids, log
probabilities to the last bit, reasons to end, usage, what was published in the prefix cache, and that no block is left
in use. What the requests are: `same_text_wishes`. Knows the engine as a library; no process, no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.core.outputs import RequestOutput
from engine.core.prefix import DIGEST_BYTES, PrefixHasher
from engine.core.request import Request
from engine.core.speculation import Draft, SpeculationParams
from engine.engine import Engine
from engine.spec.base import NO_RUN, DraftWish
from engine.spec.speculator import Speculation, Speculator
from tests.engine.spec.same_text_engines import MAX_K, Engines, Models, forget_cached
from tests.engine.spec.same_text_wishes import KINDS_OF_ANSWERS, Wish, wishes

ADVERSARIES = ("all wrong", "all right", "half right", "random")  # proposers that only a test can have
SERVINGS = ("roomy", "tight", "cached", "chunks", "company")
KEPT_ANSWERS = 400
STAND_IN = "ngram"  # the name that adversaries bear: requests may name only what PROPOSERS has


@dataclass(frozen=True)
class Cell:
    """One comparison. temperature: 0.0 or 1.0. serving: one of SERVINGS. proposer: of PROPOSERS or ADVERSARIES."""

    model: str
    dtype: str
    proposer: str
    k: int
    temperature: float
    seed: int
    batch: int
    kind: str
    serving: str
    adaptive: bool = False

    @property
    def key(self) -> str:
        return " | ".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass
class Answer:
    """What one sample got, whichever way."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[list[int], list[float]]] = field(default_factory=list)
    finish_reason: str | None = None
    num_output_tokens: int = -1


Answers = dict[tuple[str, int], Answer]  # by request and sample


@dataclass(frozen=True)
class Outcome:
    """What a cell came to. differences: empty when nothing differed."""

    differences: list[str]
    num_tokens: int
    num_drafted: int
    num_accepted: int
    num_preemptions: int
    seconds: float


class Adversary:
    """Drafts made from the plain answers: all right, all wrong, or in between."""

    name = free = STAND_IN
    costly = ""
    run = NO_RUN

    def __init__(self, how: str, answers: Answers, vocab_size: int) -> None:
        self.how, self.vocab_size, self.count = how, vocab_size, 0
        self.answers = {
            name if index == 0 else f"{name}\0{index}": answer.token_ids for (name, index), answer in answers.items()
        }

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        """Of tokens that are never the right ones, always, or every other time."""
        drafts = []
        for wish in wishes:
            start = wish.request.num_output_tokens
            known = self.answers.get(wish.request.request_id, [])[start : start + wish.num_drafts]
            if self.how == "all right":
                tokens = known
            elif self.how == "random":
                tokens = [self._any() for _ in range(wish.num_drafts)]
            else:
                tokens = [self._spoilt(token) for token in known]
            drafts.append(Draft(tuple(tokens), (0.5,) * len(tokens), self.name))
        return drafts

    def _any(self) -> int:
        self.count += 1
        return self.count * 7919 % self.vocab_size

    def _spoilt(self, token: int) -> int:
        self.count += 1
        wrong = self.how == "all wrong" or self.count * 2654435761 % 1000 < 250
        return (token + 1 + self.count % 5) % self.vocab_size if wrong else token

    def end(self, request: Request) -> None:
        """Nothing is kept."""

    def clear(self) -> None:
        """Nothing is kept."""


class Bench:
    """Runs cells, and remembers the plain answers."""

    def __init__(self, models: Models, drafters: Mapping[tuple[str, str], Path]) -> None:
        """models, drafters: see `Engines`."""
        self.engines = Engines(models, drafters)
        self._plain: dict[tuple[Any, ...], Plain] = {}

    def run(self, cell: Cell) -> Outcome:
        """Decodes with drafts and compares with plain decoding."""
        start = time.perf_counter()
        plain = self._plain_answers(cell)
        named = STAND_IN if cell.proposer in ADVERSARIES else cell.proposer
        loaded = self.engines.drafting(cell.model, cell.dtype, cell.serving, named)
        engine = loaded.engine
        if cell.proposer in ADVERSARIES:
            adversary = Adversary(cell.proposer, plain.answers, loaded.info.config.vocab_size)
            speculation = Speculation({STAND_IN: adversary}, STAND_IN, engine.speculator.controller)
            engine.speculate_by(Speculator(engine.scheduler, speculation, max_drafts=MAX_K, rule="match"))
        engine.speculator.clear()
        forget_cached(engine)
        before, preemptions = engine.speculator.total, engine.scheduler.num_preemptions
        drafted, accepted = before.drafted, before.accepted
        wish = SpeculationParams(
            proposer=named,
            num_speculative_tokens=cell.k,
            adaptive=cell.adaptive,
        )
        differences: list[str] = []
        for turn in range(2 if cell.serving in ("cached", "company") else 1):
            answers = serve(engine, plain.wishes, wish, cell.serving)
            differences += [f"turn {turn}: {line}" for line in compared(plain.answers, answers)]
        total = engine.speculator.total
        drafted, accepted = total.drafted - drafted, total.accepted - accepted
        differences += self._faults_at_rest(cell, engine, plain, drafted, accepted)
        return Outcome(
            differences,
            sum(len(answer.token_ids) for answer in answers.values()),
            drafted,
            accepted,
            engine.scheduler.num_preemptions - preemptions,
            time.perf_counter() - start,
        )

    def _faults_at_rest(self, cell: Cell, engine: Engine, plain: Plain, drafted: int, accepted: int) -> list[str]:
        """What must not be once all requests have ended."""
        faults = []
        if engine.pool.num_used:
            faults.append(f"{engine.pool.num_used} blocks are still in use")
        engine.scheduler.kv.check()
        faults += wrongly_published(engine, plain)
        if cell.proposer == "all wrong" and accepted:
            faults.append(f"{accepted} drafts that were all wrong were accepted")
        if cell.proposer == "all right" and cell.kind != "stop texts" and accepted != drafted:
            faults.append(f"only {accepted} of {drafted} drafts that were all right were accepted")
        return faults

    def _plain_answers(self, cell: Cell) -> Plain:
        key = (cell.model, cell.dtype, cell.temperature, cell.seed, cell.batch, cell.kind)
        if key not in self._plain:
            loaded = self.engines.plain(cell.model, cell.dtype)
            free: dict[str, list[int]] = {}
            if cell.kind in KINDS_OF_ANSWERS:
                first = wishes(cell.kind, cell.temperature, cell.seed, cell.batch, loaded.info.config, {})
                answers = serve(loaded.engine, first, None, "roomy")
                free = {name: answer.token_ids for (name, index), answer in answers.items() if index == 0}
            requests = wishes(cell.kind, cell.temperature, cell.seed, cell.batch, loaded.info.config, free)
            if len(self._plain) >= KEPT_ANSWERS:
                self._plain.pop(next(iter(self._plain)))
            answers = serve(loaded.engine, requests, None, "roomy")
            said = free if cell.kind == "stop texts" else {}
            self._plain[key] = Plain(requests, answers, said)
        return self._plain[key]


@dataclass
class Plain:
    """Wishes and what plain decoding answers to them. free: by request, what it says where no stop text ends it: an
    engine may have said more than was taken by the time that it is stopped."""

    wishes: list[Wish]
    answers: Answers
    free: dict[str, list[int]]


def serve(engine: Engine, requests: Sequence[Wish], speculation: SpeculationParams | None, serving: str) -> Answers:
    """All requests to their ends; speculation: None decodes plainly. serving: "chunks" has them come one by one,
    "company" has others come and go among them."""
    wish = speculation or SpeculationParams(enabled=False)
    answers: Answers = {(one.name, index): Answer() for one in requests for index in range(one.n)}
    by_name = {one.name: one for one in requests}
    waiting = list(requests)
    num_steps = 0
    while waiting or engine.has_requests():
        due = len(waiting) if serving in ("roomy", "tight", "cached") else 1 if num_steps % 2 == 0 else 0
        for one in waiting[:due]:
            fault = engine.add_request(one.name, one.prompt, one.sampling, n=one.n, speculation=wish)
            assert fault is None, fault
        del waiting[:due]
        if serving == "company":
            _company(engine, requests, wish, num_steps)
        if not engine.has_work():
            time.sleep(0.0005)  # a grammar is being compiled
        for row in engine.step():
            if (row.request_id, row.index) in answers:
                _take(engine, by_name[row.request_id], answers[row.request_id, row.index], row)
        if num_steps % 4 == 0:
            engine.scheduler.kv.check()
        num_steps += 1
        assert num_steps < 20_000, "the requests do not end"
    return answers


def _company(engine: Engine, requests: Sequence[Wish], wish: SpeculationParams, step: int) -> None:
    """Requests like the first ones that are aborted after some steps, and one that ends by itself."""
    if step % 3 == 0 and step < 24:
        like = requests[step % len(requests)]
        fault = engine.add_request(f"passing {step}", like.prompt, like.sampling, n=like.n, speculation=wish)
        assert fault is None, fault
    if step >= 4 and step % 3 == 1 and step < 30:
        engine.abort_request(f"passing {step - 4}")


def _take(engine: Engine, one: Wish, answer: Answer, row: RequestOutput) -> None:
    """Adds a row; ends the request where its stop text is complete, as the app does."""
    assert row.error is None, row.error
    if answer.finish_reason is not None:  # it was stopped within the rows of this very step
        return
    answer.token_ids += row.token_ids
    if row.token_ids and row.logprobs is not None:
        answer.logprobs += row.logprobs.logprobs
        answer.top += zip(row.logprobs.top_token_ids, row.logprobs.top_logprobs, strict=True)
    if row.finish_reason is not None:
        assert row.summary is not None
        answer.finish_reason, answer.num_output_tokens = row.finish_reason, row.summary.num_output_tokens
    cut = _end_of(one.stop_text, answer.token_ids)
    if cut is not None:
        ended = engine.abort_request(one.name, cut, index=row.index)
        assert len(ended) <= 1
        answer.finish_reason, answer.num_output_tokens = "stop text", cut
        assert all(last.summary is not None and last.summary.num_output_tokens == cut for last in ended)
        del answer.token_ids[cut:], answer.logprobs[cut:], answer.top[cut:]


def _end_of(stop: tuple[int, ...], token_ids: list[int]) -> int | None:
    """How many tokens there are up to the end of the first `stop`."""
    size = len(stop)
    ends = (end for end in range(size, len(token_ids) + 1) if tuple(token_ids[end - size : end]) == stop)
    return next(ends, None) if size else None


def compared(plain: Answers, drafted: Answers) -> list[str]:
    """Lines that say what differs."""
    lines = []
    for name, answer in plain.items():
        other = drafted[name]
        for what in ("token_ids", "finish_reason", "num_output_tokens", "logprobs", "top"):
            expected, found = getattr(answer, what), getattr(other, what)
            if expected != found:
                place = "" if not isinstance(expected, list) else f" from place {_first_difference(expected, found)} on"
                lines.append(f"{name}: {what} differ{place}: {expected!r:.200} became {found!r:.200}")
                break
    return lines


def _first_difference(one: list[Any], other: list[Any]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def wrongly_published(engine: Engine, plain: Plain) -> list[str]:
    """Blocks of the prefix cache that hold anything but what was said: prompts and answers of plain decoding."""
    hasher = engine.scheduler.kv._hasher
    assert isinstance(hasher, PrefixHasher)
    said: set[bytes] = set()
    for (name, _), answer in plain.answers.items():
        prompt = next(one.prompt for one in plain.wishes if one.name == name)
        hashes: list[bytes] = []
        hasher.extend(hashes, [*prompt, *plain.free.get(name, answer.token_ids)], "")
        said.update(hashes)
    found = [block for block in engine.pool.blocks if block.block_hash is not None]
    strange = [block.block_id for block in found if (block.block_hash or b"")[:DIGEST_BYTES] not in said]
    return [f"blocks {strange} are published and hold what nobody said"] if strange else []
