"""The engine's half of `make soak`: a long mixed life of one engine process at the end of its pipe.

Sends some thousands of requests of every kind to a tiny random model over the real pipe, more at once than its pool
holds, and ends many of them early. Afterwards every sample must have ended exactly once and as it should, no block may
be in use, no request left, the books must balance (the engine proves them whenever it is idle, and dies if they do
not), and the process must have stopped growing.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.memory_watch import MemoryWatch
from engine.core.sampling_params import Guided, SamplingParams
from engine.protocol import (
    AbortRequest,
    AddRequest,
    Drain,
    EngineReady,
    EngineStats,
    RequestOutput,
    RequestsProgress,
    SpeculationCosts,
    StepOutputs,
)
from tests.engine.spawned import PATIENCE_S, Spawned
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

VOCAB_SIZE, MAX_MODEL_LEN = 320, 256
POOL_BLOCKS, BLOCK_BYTES = 40, 16 * 2 * 2 * 2 * 16 * 2
CODED_BLOCK_BYTES = 16 * 2 * 2 * 2 * (16 + 4)  # where keys and values are codes with scales
OPTIONS: dict[str, Any] = {
    "kv_cache_memory_bytes": POOL_BLOCKS * BLOCK_BYTES,
    "max_model_len": MAX_MODEL_LEN,
    "num_threads": 1,
}
IN_FLIGHT = 40
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
GRAMMARS = (
    Guided("json_schema", json.dumps(SCHEMA)),
    Guided("regex", "[a-z]{1,12}( [0-9]+)*"),
    Guided("choice", '["yes", "no", "perhaps"]'),
    Guided("json"),
)
BAD: tuple[tuple[list[int], dict[str, Any], int], ...] = (
    ([], {}, 1),
    ([VOCAB_SIZE], {}, 2),
    ([5] * MAX_MODEL_LEN, {}, 1),
    ([5], {"logit_bias": {VOCAB_SIZE: 1.0}}, 1),
    ([5], {"guided": Guided("regex", "a(b")}, 3),
    ([5], {"bad_words": tuple((token,) for token in range(VOCAB_SIZE))}, 2),
    ([5], {}, 0),
)


@dataclass(slots=True)
class Sent:
    """What was asked for, and which samples have ended how."""

    message: AddRequest
    is_bad: bool
    aborted: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    num_tokens: Counter[int] = field(default_factory=Counter)

    @property
    def samples(self) -> range:
        return range(max(1, self.message.n))

    @property
    def is_over(self) -> bool:
        return len(self.ends) == len(self.samples)


class Soak:
    """Keeps a number of requests in flight and books what becomes of them."""

    def __init__(self, engine: Spawned, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.flying: dict[str, Sent] = {}
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []
        self.stats: EngineStats | None = None
        self.num_sent = 0

    def send(self) -> None:
        """One more request; now and then its end at once."""
        request_id = f"r{self.num_sent}"
        self.num_sent += 1
        is_bad = self.random.random() < 0.1
        sent = Sent(self._bad(request_id) if is_bad else self._good(request_id), is_bad)
        self.flying[request_id] = sent
        self.engine.send(sent.message)
        if self.random.random() < 0.05:
            self.abort(sent)

    def abort(self, sent: Sent) -> None:
        """Ends a request, or one of its samples."""
        only = self.random.choice([None, None, *sent.samples])
        sent.aborted |= set(sent.samples) if only is None else {only}
        self.engine.send(AbortRequest(sent.message.request_id, self.random.choice([None, 0]), only))

    def receive(self) -> None:
        """Takes one message in; now and then ends one of those that run."""
        message = self.engine.receive()
        if isinstance(message, EngineStats):
            self.stats = message
        elif isinstance(message, StepOutputs):
            for row in message.rows:
                self._take(row)
            if self.flying and self.random.random() < 0.03:
                self.abort(self.random.choice(list(self.flying.values())))
        elif not isinstance(message, RequestsProgress | SpeculationCosts):
            raise RuntimeError(f"the engine said {message}")

    def _take(self, row: RequestOutput) -> None:
        sent = self.flying.get(row.request_id)
        if sent is None or row.index in sent.ends:
            self.faults.append(f"{row.request_id} sample {row.index}: a row after its end")
            return
        sent.num_tokens[row.index] += len(row.token_ids)
        if row.finish_reason is None:
            return
        sent.ends[row.index] = row.finish_reason
        self.ends[row.finish_reason] += 1
        self._judge(sent, row)
        if sent.is_over:
            del self.flying[row.request_id]

    def _judge(self, sent: Sent, row: RequestOutput) -> None:
        """Whether a sample ended as it may."""
        where = f"{row.request_id} sample {row.index}"
        if sent.is_bad:
            if row.finish_reason != "error" and row.index not in sent.aborted:
                self.faults.append(f"{where}: a bad request ended with {row.finish_reason}")
        elif row.finish_reason == "error":
            self.faults.append(f"{where}: {row.error}")
        elif row.finish_reason == "abort" and row.index not in sent.aborted:
            self.faults.append(f"{where}: nobody aborted it")
        elif row.finish_reason == "length" and sent.num_tokens[row.index] != sent.message.sampling.max_tokens:
            self.faults.append(f"{where}: {sent.num_tokens[row.index]} tokens are not its length")

    def _bad(self, request_id: str) -> AddRequest:
        prompt, fields, n = self.random.choice(BAD)
        return AddRequest(request_id, prompt, SamplingParams(**fields), n=n)

    def _good(self, request_id: str) -> AddRequest:
        """A request of a random kind; a third of the prompts begin alike."""
        pick = self.random
        prompt = [pick.randrange(3, VOCAB_SIZE) for _ in range(pick.randint(1, 60))]
        if pick.random() < 0.33:
            prompt = [5 + index for index in range(48)] + prompt
        fields: dict[str, Any] = {
            "temperature": pick.choice([0.0, 0.7, 1.0]),
            "max_tokens": pick.randint(1, 60),
            "seed": pick.choice([None, pick.randrange(1 << 64)]),
            "ignore_eos": pick.random() < 0.5,
        }
        match pick.randrange(8):
            case 0:
                fields |= {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.2}
            case 1:
                fields |= {"dry_multiplier": 0.8, "bad_words": ((7,), (8, 9)), "logit_bias": {2: 3.0}}
            case 2:
                fields |= {"typical_p": 0.9, "xtc_probability": 0.5, "min_p": 0.02, "top_p": 0.9, "top_k": 50}
            case 3:
                fields |= {"logprobs": 3, "prompt_logprobs": pick.choice([None, 1])}
            case 4 | 5:
                fields |= {"guided": pick.choice(GRAMMARS)}
        return AddRequest(
            request_id,
            prompt,
            SamplingParams(**fields),
            priority=pick.choice([0, 0, 0, 1]),
            cache_salt=pick.choice(["", "", "x"]),
            n=pick.choice([1, 1, 1, 2, 4]),
        )


def soak(num_requests: int, seed: int, **options: Any) -> list[str]:
    """Runs it, with `options` for the load over the usual ones; prints a line now and then. Returns what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Spawned(
            tiny_llama_checkpoint(Path(folder), max_position_embeddings=MAX_MODEL_LEN), **(OPTIONS | options)
        )
        try:
            return _run(Soak(engine, seed), num_requests)
        finally:
            engine.process.kill()
            engine.process.wait()


def _run(run: Soak, num_requests: int) -> list[str]:
    run.engine.until(EngineReady)
    run.engine.send(AddRequest("warm", [5], SamplingParams(max_tokens=1, guided=GRAMMARS[0])))
    list(run.engine.rows("warm"))  # the library behind grammars is loaded now, and is no growth
    memory, start = MemoryWatch({"engine": run.engine.process.pid}, num_requests), time.monotonic()
    while run.num_sent < num_requests or run.flying:
        if run.num_sent < num_requests and len(run.flying) < IN_FLIGHT:
            run.send()
            memory.take(run.num_sent / num_requests)
            if run.num_sent % max(1, num_requests // 10) == 0:
                print(f"{run.num_sent} sent, {dict(run.ends)}, {time.monotonic() - start:.0f} s", flush=True)
        else:
            run.receive()
    faults = [*run.faults, *_faults_at_rest(run), *memory.faults()]
    run.engine.send(Drain())
    if run.engine.process.wait(PATIENCE_S) != 0:
        faults.append("the engine did not leave in peace")
    return faults


def _faults_at_rest(run: Soak) -> list[str]:
    """What an idle engine must not show."""
    stats = run.engine.until(EngineStats)
    stats = run.engine.until(EngineStats)  # the first may have been on its way before the last request ended
    left = (stats.kv_blocks_used, stats.num_requests_running, stats.num_requests_waiting)
    print(f"{stats.steps_total} steps, {stats.preemptions_total} preemptions")
    print(f"{stats.prefix_cache_hits_total} of {stats.prefix_cache_queries_total} tokens from the cache")
    faults = []
    if left != (0, 0, 0):
        faults.append(f"blocks used, requests running and waiting at rest: {left}")
    if stats.preemptions_total == 0:
        faults.append("nothing was preempted: the soak did not press hard enough")
    return faults
