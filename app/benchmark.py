"""The benchmark of a loaded engine: time to the first token, decoding at several batch sizes, prefill.

Owns what is asked and how the figures are made of the arrivals. Knows nothing of jobs. Definitions: `ttft_s` is from
handing a request over to its first token, one request at a time; `prefill_tokens_per_s` is the prompt's tokens over
that; `decode_tokens_per_s` counts the tokens of all requests of a batch between the moment when the last of them has
begun to decode and the moment when the first of them ends. Invariants: no prompt is in the prefix cache; a repeat that
others' requests ran beside is thrown away and made again; a figure is the median of its repeats, told with the lowest
and the highest. What drafts gain depends on the text: the prompts are made-up prose without repetitions, the answers
are drawn at TEMPERATURE with fixed seeds, the same with drafts and without.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.engine_client import EngineClient
from app.loaded_engine import Engine
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams
from engine.protocol import AddRequest

PRIORITY = 1000  # whoever else asks comes first
QUIET_LOOK_S = 0.1
MOST_DISTURBED = 10  # repeats thrown away before the benchmark gives up
TEMPERATURE = 0.7  # greedy text of a small model repeats itself, which flatters whoever drafts from it
SEED = 7
WHO = (
    "a fisherman",
    "the postmistress",
    "my neighbour",
    "a student",
    "the old captain",
    "a nurse",
    "the baker",
    "a guide",
)
DID = ("carried", "sold", "painted", "forgot", "measured", "borrowed", "described", "repaired", "hid", "counted")
WHAT = ("a lantern", "two maps", "the red boat", "a letter", "some copper wire", "a clock", "the last net", "a piano")
WHERE = ("near the harbour", "at dawn", "in the rain", "behind the mill", "before the feast", "on the hill", "in June")

Report = Callable[[str, int, int, str], None]  # (stage, done, total, message)


class BenchmarkError(Exception):
    """It could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class BenchmarkWish:
    """What to measure: see app.load_schemas.BenchmarkBody."""

    prompt_tokens: int = 128
    output_tokens: int = 64
    repeats: int = 3
    batches: tuple[int, ...] = (1, 4, 16)
    speculation: Literal["both", "on", "off"] = "both"
    wait_s: float = 120.0


@dataclass(slots=True)
class Arrivals:
    """When the tokens of one request came. drafted, accepted: of its drafts."""

    sent_s: float
    at: list[tuple[float, int]] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Repeat:
    """The figures of one repeat; a rate is None where too little came to have one."""

    ttft_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    drafted: int
    accepted: int


class Benchmark:
    """One run on one engine."""

    def __init__(self, engine: Engine, wish: BenchmarkWish, report: Report) -> None:
        self._engine = engine
        self._client: EngineClient = engine.supervisor.client
        self._wish = wish
        self._report = report
        self._disturbed = 0
        self._prompts: dict[int, list[int]] = {}

    async def run(self) -> dict[str, Any]:
        """The figures. Raises EngineGone, BenchmarkError."""
        wish = self._wish
        batches, skipped = self._batches()
        proposer = self._engine.ready.speculation
        modes = self._modes()
        total, done = len(batches) * len(modes) * wish.repeats, 0
        rows: list[dict[str, Any]] = []
        self._report("warm_up", 0, total, "")
        await self._repeat(batches[0], modes[0])
        for drafts in modes:
            for batch in batches:
                repeats = []
                for _ in range(wish.repeats):
                    self._report("measuring", done, total, f"× {batch} {proposer if drafts else ''}".strip())
                    repeats.append(await self._repeat(batch, drafts))
                    done += 1
                rows += figures(batch, drafts, repeats)
        return {
            "rows": rows,
            "skipped": skipped,
            "disturbed": self._disturbed,
            "prompt_tokens": wish.prompt_tokens,
            "output_tokens": wish.output_tokens,
            "repeats": wish.repeats,
            "proposer": proposer,
            "engine_id": self._engine.supervisor.run_id,
        }

    def _modes(self) -> list[bool]:
        """Without drafts, and with them as the engine drafts for whoever asks for nothing else."""
        drafts = bool(self._engine.ready.proposers) and self._engine.speculation.enabled
        wanted = {"both": [False, True], "on": [True], "off": [False]}[self._wish.speculation]
        if not drafts and wanted == [True]:
            raise BenchmarkError("this engine does not speculate: measure it without")
        return wanted if drafts else [False]

    def _batches(self) -> tuple[list[int], list[dict[str, Any]]]:
        """The batch sizes that the engine runs at once, and why it does not run the others."""
        ready, wish = self._engine.ready, self._wish
        length = wish.prompt_tokens + wish.output_tokens
        most = self._engine.supervisor.options.max_num_seqs
        room = ready.num_kv_blocks // -(-length // ready.block_size)
        fit = [batch for batch in wish.batches if batch <= min(most, room)]
        skipped = [
            {
                "batch": batch,
                "reason": f"max_num_seqs is {most}" if batch > most else f"the KV cache holds {room} such requests",
            }
            for batch in wish.batches
            if batch not in fit
        ]
        if not fit:
            raise BenchmarkError(f"no batch size can be measured: {skipped[0]['reason']}")
        return fit, skipped

    async def _repeat(self, batch: int, drafts: bool) -> Repeat:
        """One undisturbed repeat."""
        while True:
            await self._quiet()
            before = self._client.num_submitted
            try:
                async with asyncio.TaskGroup() as tasks:
                    asked = [tasks.create_task(self._ask(number, drafts)) for number in range(batch)]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
            if self._client.num_submitted == before + batch:
                return repeat_of([task.result() for task in asked], self._wish.prompt_tokens)
            self._disturbed += 1
            if self._disturbed > MOST_DISTURBED:
                raise BenchmarkError(f"others' requests came in between {self._disturbed} times; try when it is quiet")

    async def _quiet(self) -> None:
        """Wait until nobody else is served. Raises BenchmarkError."""
        deadline = time.monotonic() + self._wish.wait_s
        while running := self._client.num_running:
            if time.monotonic() >= deadline:
                raise BenchmarkError(f"{running} requests of others still run after {self._wish.wait_s:.0f} s")
            self._report("quiet", 0, 0, f"{running}")
            await asyncio.sleep(QUIET_LOOK_S)

    def _prompt(self, number: int) -> list[int]:
        """Prose that does not repeat itself, another one for each request of a batch."""
        if number not in self._prompts:
            text, want = random.Random(number), self._wish.prompt_tokens
            token_ids: list[int] = []
            while len(token_ids) < want:
                who, did, what, where = (text.choice(words) for words in (WHO, DID, WHAT, WHERE))
                token_ids += self._engine.vocab.encode(f"{who} {did} {what} {where}, {text.randint(2, 999)} days ago. ")
            self._prompts[number] = token_ids[:want]
        return self._prompts[number]

    async def _ask(self, number: int, drafts: bool) -> Arrivals:
        request = AddRequest(
            uuid.uuid4().hex,
            self._prompt(number),
            SamplingParams(
                temperature=TEMPERATURE, seed=SEED + number, max_tokens=self._wish.output_tokens, ignore_eos=True
            ),
            priority=PRIORITY,
            cache_salt=uuid.uuid4().hex,
            speculation=SpeculationParams(learn=False) if drafts else SpeculationParams(enabled=False),
        )
        arrivals = Arrivals(time.perf_counter())
        stream = self._client.submit(request)
        try:
            while not stream.finished:
                row = await stream.next()
                if row.finish_reason == "error":
                    raise BenchmarkError(row.error or "the engine gave no reason")
                if row.token_ids:
                    arrivals.at.append((time.perf_counter(), len(row.token_ids)))
                if row.summary is not None:
                    arrivals.drafted, arrivals.accepted = row.summary.drafted, row.summary.accepted
        finally:
            if not stream.finished:
                self._client.abort(request.request_id)
        if not arrivals.at:
            raise BenchmarkError("the engine answered without a token")
        return arrivals


def repeat_of(asked: Sequence[Arrivals], prompt_tokens: int) -> Repeat:
    """The figures of requests that ran at once."""
    ttft_s = statistics.median(each.at[0][0] - each.sent_s for each in asked)
    since, until = max(each.at[0][0] for each in asked), min(each.at[-1][0] for each in asked)
    tokens = sum(count for each in asked for at, count in each.at if since < at <= until)
    return Repeat(
        ttft_s=ttft_s,
        prefill_tokens_per_s=len(asked) * prompt_tokens / max(each.at[0][0] - each.sent_s for each in asked),
        decode_tokens_per_s=tokens / (until - since) if tokens and until > since else None,
        drafted=sum(each.drafted for each in asked),
        accepted=sum(each.accepted for each in asked),
    )


def figures(batch: int, drafts: bool, repeats: Sequence[Repeat]) -> list[dict[str, Any]]:
    """The rows of one batch size: decoding always, the first token and the prefill for one request without drafts."""
    names = ["decode_tokens_per_s"] + (["ttft_s", "prefill_tokens_per_s"] if batch == 1 and not drafts else [])
    drafted, accepted = sum(each.drafted for each in repeats), sum(each.accepted for each in repeats)
    rows = []
    for name in names:
        values = sorted(value for each in repeats if (value := getattr(each, name)) is not None)
        rows.append(
            {
                "name": name,
                "batch": batch,
                "drafts": drafts,
                "median": statistics.median(values) if values else None,
                "low": values[0] if values else None,
                "high": values[-1] if values else None,
                "n": len(values),
                "acceptance": accepted / drafted if drafted else None,
            }
        )
    return rows
