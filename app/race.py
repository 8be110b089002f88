"""A race: the same answer with drafts and without, one run after the other, and what came of it.

Owns the order of the runs and the verdict on the tokens. Knows nothing of jobs, HTTP or how one run is made.
Invariants: the two ways take turns in who goes first; runs that were disturbed are run again, and counted; a difference
is called a near tie only where the engine's own margins say so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.jobs import JobError
from app.loaded_engine import Engine
from app.race_run import Others, Run, quiet, run
from app.race_statistics import speedup, spread
from app.selftest import NEAR_TIE
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams

PLAIN, DRAFTS = "plain", "speculative"
MOST_DISTURBED = 10  # runs that are run again
MAX_RESULT_BYTES = 200_000  # of a job's row: beyond, the replay is left out
STAGES = {PLAIN: "race_plain", DRAFTS: "race_speculative"}

Report = Callable[[str, int, int, str], None]  # (stage, done, total, message)


@dataclass(frozen=True, slots=True)
class RaceWish:
    """What is to be run. sampling has a seed. wish: of the runs with drafts; rule: what verifies them."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    wish: SpeculationParams
    proposer: str
    rule: str
    repeats: int
    warm_up: int


class Race:
    """One race from its first warm-up to its result."""

    def __init__(self, engine: Engine, wish: RaceWish, others: Others, report: Report) -> None:
        self._engine = engine
        self._wish = wish
        self._others = others
        self._report = report
        self._done = 0
        self._total = 2 * (wish.warm_up + wish.repeats)
        self._disturbed = 0
        self._waited = False
        self._ways = {PLAIN: SpeculationParams(enabled=False), DRAFTS: wish.wish}

    async def result(self) -> dict[str, Any]:
        """Runs it all. Raises EngineGone, JobError."""
        first = {PLAIN: [], DRAFTS: []}  # type: dict[str, list[Run]]
        timed = {PLAIN: [], DRAFTS: []}  # type: dict[str, list[Run]]
        margins = replace(self._wish.sampling, logprobs=2)
        for number in range(self._wish.warm_up):
            for way in (PLAIN, DRAFTS):
                first[way].append(await self._run(way, self._wish.sampling if number else margins, "race_warm_up"))
        for number in range(self._wish.repeats):
            for way in (PLAIN, DRAFTS) if number % 2 == 0 else (DRAFTS, PLAIN):
                timed[way].append(await self._run(way, self._wish.sampling, STAGES[way]))
        self._report("race_result", self._total, self._total, "")
        return self._capped(self._judged(first, timed))

    async def _run(self, way: str, sampling: SamplingParams, stage: str) -> Run:
        def waiting(count: int) -> None:
            self._waited = True
            self._report("race_waiting", self._done, self._total, str(count))

        while True:
            await quiet(self._others, waiting)
            self._report(stage, self._done, self._total, "")
            found = await run(self._engine, self._others, self._wish.prompt_token_ids, sampling, self._ways[way])
            if found.alone:
                self._done += 1
                return found
            self._disturbed += 1
            if self._disturbed > MOST_DISTURBED:
                raise JobError(f"{self._disturbed} runs were disturbed by other requests: a race needs quiet")

    def _judged(self, first: dict[str, list[Run]], timed: dict[str, list[Run]]) -> dict[str, Any]:
        seconds = {way: [each.decode_s / each.decoded for each in runs] for way, runs in timed.items()}
        return {
            "engine_run_id": self._engine.supervisor.run_id,
            "model_id": self._engine.model_id,
            "exactness": self._engine.ready.exactness,
            "exactness_reason": self._engine.ready.exactness_reason,
            "proposer": self._wish.proposer,
            "rule": self._wish.rule,
            "num_speculative_tokens": self._wish.wish.num_speculative_tokens or None,
            "num_prompt_tokens": len(self._wish.prompt_token_ids),
            "max_tokens": self._wish.sampling.max_tokens,
            "temperature": self._wish.sampling.temperature,
            "seed": self._wish.sampling.seed,
            "repeats": self._wish.repeats,
            "warm_up": self._wish.warm_up,
            "disturbed": self._disturbed,
            "waited": self._waited,
            "identity": self._identity(first, timed),
            "speedup": asdict(speedup(seconds[PLAIN], seconds[DRAFTS])),
            "ways": {way: _figures(runs, seconds[way]) for way, runs in timed.items()},
            "runs": _rows(timed),
            "replay": {way: _replay(_middle(runs)) for way, runs in timed.items()},
        }

    def _identity(self, first: dict[str, list[Run]], timed: dict[str, list[Run]]) -> dict[str, Any]:
        """Whether all runs with drafts have the tokens of the plain ones, and where the first difference is if not."""
        plain, drafts = [*first[PLAIN], *timed[PLAIN]], [*first[DRAFTS], *timed[DRAFTS]]
        reference = plain[0].token_ids
        places = [place for each in drafts if (place := _differs(reference, each.token_ids)) is not None]
        unstable = any(_differs(reference, each.token_ids) is not None for each in plain)
        told = {"compared": len(drafts), "different": len(places), "plain_repeats_differ": unstable}
        if not places:
            return {"verdict": "identical", **told, "first_difference": None}
        place = min(places)
        other = next(each for each in drafts if _differs(reference, each.token_ids) == place)
        margins = [_margin(first[way][0], reference, place) for way in (PLAIN, DRAFTS)]
        found = {
            "position": place,
            "plain": self._token(reference, place),
            "speculative": self._token(other.token_ids, place),
            "plain_margin": margins[0],
            "speculative_margin": margins[1],
            "near_tie": all(each is None or each <= NEAR_TIE for each in margins) and margins != [None, None],
            "after": self._engine.vocab.decode(reference[:place])[-80:],
        }
        return {"verdict": self._verdict(bool(found["near_tie"])), **told, "first_difference": found}

    def _verdict(self, near_tie: bool) -> str:
        """Of a difference. An engine that promises bits has broken its promise, however near the tie."""
        sampled = self._wish.sampling.temperature > 0
        if sampled and self._wish.rule == "rejection":
            return "may_differ"
        if self._engine.ready.exactness == "bits":
            return "mismatch"
        if sampled:
            return "may_differ"
        return "near_tie" if near_tie else "mismatch"

    def _token(self, token_ids: Sequence[int], place: int) -> dict[str, Any] | None:
        if place >= len(token_ids):
            return None
        return {
            "id": token_ids[place],
            "text": self._engine.vocab.decode([token_ids[place]], skip_special_tokens=False),
        }

    @staticmethod
    def _capped(result: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(result)) > MAX_RESULT_BYTES:
            return {**result, "replay": None}
        return result


def _differs(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where they differ; None where they are equal."""
    if list(one) == list(other):
        return None
    pairs = zip(one, other, strict=False)
    shorter = min(len(one), len(other))
    return next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), shorter)


def _margin(found: Run, reference: Sequence[int], place: int) -> float | None:
    """By how much the likeliest token was ahead behind the reference's tokens; None where the run went another way."""
    if found.token_ids[:place] != list(reference[:place]) or place >= len(found.margins):
        return None
    return round(found.margins[place], 6)


def _middle(runs: Sequence[Run]) -> Run:
    """The run of the median speed, the slower one of two."""
    ordered = sorted(runs, key=lambda each: each.decode_s / each.decoded)
    return ordered[len(ordered) // 2]


def _figures(runs: Sequence[Run], seconds: Sequence[float]) -> dict[str, Any]:
    summaries = [each.summary for each in runs if each.summary is not None]
    drafts, drafted = sum(each.drafts for each in summaries), sum(each.drafted for each in summaries)
    accepted = sum(each.accepted for each in summaries)
    return {
        "tokens_per_s": spread([1 / each for each in seconds]),
        "ttft_s": spread([each.ttft_s for each in runs]),
        "decode_s": spread([each.decode_s for each in runs]),
        "num_tokens": statistics.median_high([len(each.token_ids) for each in runs]),
        "drafts": drafts,
        "drafted": drafted,
        "accepted": accepted,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
    }


def _rows(timed: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """Every timed run, in the order of the rounds."""
    return [
        {
            "round": number,
            "way": way,
            "num_tokens": len(each.token_ids),
            "ttft_s": round(each.ttft_s, 6),
            "decode_s": round(each.decode_s, 6),
            "tokens_per_s": each.decoded / each.decode_s,
        }
        for number in range(len(timed[PLAIN]))
        for way, each in ((PLAIN, timed[PLAIN][number]), (DRAFTS, timed[DRAFTS][number]))
    ]


def _replay(found: Run) -> dict[str, Any]:
    """times: [milliseconds since the run was sent, tokens, text] of each row; the first row is the first token's."""
    return {
        "times": [[round(at * 1e3, 1), count, text] for at, count, text in found.times],
        "finish_reason": found.finish_reason,
    }
