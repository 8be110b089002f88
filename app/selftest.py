"""The self-test: does speculation on this machine, with this pair of model and drafter, change what the model says?

Owns what is asked and how the answers are judged. Sends ordinary requests to the engine, under a cache salt of its own
and behind everybody else's; knows nothing of jobs or records. Three parts:

- greedy_parity: at temperature 0 the token ids with drafts equal those without, for several k.
- seed_parity: the same at temperature 1 under the rule "match", for the same seeds.
- distribution: at temperature 1, under "match" and "rejection", the first tokens of many samples have the distribution
  that plain decoding has (chi-square test, and a bound on the total variation).

An engine that promises bits fails by one other token. One that promises the distribution (`EngineReady.exactness`) may
differ where its two best tokens are NEAR_TIE apart or less, and, at temperature 1, anywhere: such differences are
"reported", and the third part decides. A part in which nothing was drafted proves nothing: "inconclusive".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.loaded_engine import Engine
from app.selftest_asking import Answer, Asker, Prompt, together
from app.selftest_statistics import compare
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams

NUM_TOKENS = 48  # of an answer whose ids are compared
SEEDS = (1, 2)
NEAR_TIE = 0.125  # nats between the two best tokens: a rounding of bfloat16 logits near 16
COMPARED_TOKENS = 3  # first, second, third
SAMPLED_TOKENS = 5  # so that up to three of them are drafted: the last one never is
ALPHA = 1e-4  # of one test; there are 12, so that a sound pair fails about once in 800 self-tests
PLAIN = SpeculationParams(enabled=False)

Report = Callable[[str, int, int], None]  # (part, done, total)


@dataclass(frozen=True, slots=True)
class SelfTestWish:
    """proposer: whom to test. num_samples: of each distribution."""

    proposer: str
    num_samples: int = 512


async def run_selftest(engine: Engine, asker: Asker, wish: SelfTestWish, report: Report) -> list[dict[str, Any]]:
    """The parts, each with its name, state and figures. Raises EngineGone, AskError."""
    prompts = await asker.prompts(NUM_TOKENS)
    most = engine.speculation.num_speculative_tokens
    depths = sorted({1, min(4, most), most})
    return [
        await _greedy_parity(engine, asker, wish, prompts, depths, report),
        await _seed_parity(engine, asker, wish, prompts, depths[1:] or depths, report),
        await _distribution(asker, wish, prompts, min(4, most), report),
    ]


def overall(parts: Iterable[dict[str, Any]]) -> str:
    """The state of a self-test whose parts ended so."""
    states = {part["state"] for part in parts}
    if "failed" in states:
        return "failed"
    return "inconclusive" if "inconclusive" in states else "passed"


# ---- the same ids ---------------------------------------------------------------------------------------------------


async def _greedy_parity(
    engine: Engine, asker: Asker, wish: SelfTestWish, prompts: Sequence[Prompt], depths: Sequence[int], report: Report
) -> dict[str, Any]:
    report("greedy_parity", 0, 1 + len(depths))
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    plain = await _all(asker, prompts, sampling, PLAIN)
    found = _Parity(engine, judged_by_margin=True)
    for done, depth in enumerate(depths, 1):
        report("greedy_parity", done, 1 + len(depths))
        drafted = await _all(asker, prompts, sampling, _speculation(wish, depth, "match"))
        found.take(prompts, plain, drafted, {"num_speculative_tokens": depth})
    return {"name": "greedy_parity", **found.figures(), "num_speculative_tokens": list(depths)}


async def _seed_parity(
    engine: Engine, asker: Asker, wish: SelfTestWish, prompts: Sequence[Prompt], depths: Sequence[int], report: Report
) -> dict[str, Any]:
    found = _Parity(engine, judged_by_margin=False)
    total = len(SEEDS) * (1 + len(depths))
    for turn, seed in enumerate(SEEDS):
        done = turn * (1 + len(depths))
        report("seed_parity", done, total)
        sampling = SamplingParams(temperature=1.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2, seed=seed)
        plain = await _all(asker, prompts, sampling, PLAIN)
        for number, depth in enumerate(depths, 1):
            report("seed_parity", done + number, total)
            drafted = await _all(asker, prompts, sampling, _speculation(wish, depth, "match"))
            found.take(prompts, plain, drafted, {"num_speculative_tokens": depth, "seed": seed})
    return {"name": "seed_parity", **found.figures(), "num_speculative_tokens": list(depths), "seeds": list(SEEDS)}


class _Parity:
    """What came of comparing answers token by token. judged_by_margin: a near tie excuses a difference, where the
    engine promises no bits; else any difference is excused there."""

    def __init__(self, engine: Engine, *, judged_by_margin: bool) -> None:
        self._vocab = engine.vocab
        self._promises_bits = engine.ready.exactness == "bits"
        self._judged_by_margin = judged_by_margin
        self._drafted = self._accepted = self._compared = 0
        self._differences: list[dict[str, Any]] = []

    def take(
        self, prompts: Sequence[Prompt], plain: Sequence[Answer], drafted: Sequence[Answer], under: dict[str, Any]
    ) -> None:
        for prompt, one, other in zip(prompts, plain, drafted, strict=True):
            self._compared += 1
            self._drafted += other.drafted
            self._accepted += other.accepted
            if one.token_ids != other.token_ids:
                self._differences.append({"prompt": prompt.name, **under, **self._difference(one, other)})

    def _difference(self, one: Answer, other: Answer) -> dict[str, Any]:
        pairs = zip(one.token_ids, other.token_ids, strict=False)
        shorter = min(len(one.token_ids), len(other.token_ids))
        place = next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), shorter)

        def token(answer: Answer) -> dict[str, Any] | None:
            if place >= len(answer.token_ids):
                return None
            token_id = answer.token_ids[place]
            return {"id": token_id, "text": self._vocab.decode([token_id], skip_special_tokens=False)}

        margin = one.margins[place] if place < len(one.margins) else None
        before = self._vocab.decode(one.token_ids[:place])
        return {"position": place, "plain": token(one), "speculative": token(other), "margin": margin, "after": before}

    def figures(self) -> dict[str, Any]:
        self._differences.sort(key=lambda difference: int(difference["position"]))
        return {
            "state": self._state(),
            "compared": self._compared,
            "different": len(self._differences),
            "drafted": self._drafted,
            "accepted": self._accepted,
            "first_difference": self._differences[0] if self._differences else None,
        }

    def _state(self) -> str:
        if not self._drafted:
            return "inconclusive"
        if not self._differences:
            return "passed"
        if self._promises_bits:
            return "failed"
        margins = [difference["margin"] for difference in self._differences]
        excused = not self._judged_by_margin or all(margin is not None and margin <= NEAR_TIE for margin in margins)
        return "reported" if excused else "failed"


# ---- the same distribution ------------------------------------------------------------------------------------------


async def _distribution(
    asker: Asker, wish: SelfTestWish, prompts: Sequence[Prompt], depth: int, report: Report
) -> dict[str, Any]:
    sampling = SamplingParams(temperature=1.0, max_tokens=SAMPLED_TOKENS, ignore_eos=True)
    tests: list[dict[str, Any]] = []
    drafted = accepted = 0
    sampled = [prompt for prompt in prompts if prompt.for_samples]
    total = 3 * len(sampled)
    for number, prompt in enumerate(sampled):
        report("distribution", 3 * number, total)
        plain = await asker.samples(prompt, sampling, PLAIN, wish.num_samples, arm=0)
        for arm, rule in ((1, "match"), (2, "rejection")):
            report("distribution", 3 * number + arm, total)
            found = await asker.samples(prompt, sampling, _speculation(wish, depth, rule), wish.num_samples, arm=arm)
            drafted_here = sum(answer.drafted for answer in found)
            drafted, accepted = drafted + drafted_here, accepted + sum(answer.accepted for answer in found)
            for place in range(COMPARED_TOKENS):
                compared = compare(_tokens(plain, place), _tokens(found, place), ALPHA)
                verdict = "passed" if compared.agrees(ALPHA) else "failed"
                what = {"rule": rule, "prompt": prompt.name, "token": place + 1, "drafted": drafted_here}
                tests.append({**what, "state": verdict, **asdict(compared)})
    state = "failed" if any(test["state"] == "failed" for test in tests) else "passed"
    if not all(test["drafted"] for test in tests):
        state = "failed" if state == "failed" else "inconclusive"
    figures = {"drafted": drafted, "accepted": accepted, "alpha": ALPHA, "num_samples": wish.num_samples}
    return {"name": "distribution", "state": state, **figures, "num_speculative_tokens": depth, "tests": tests}


def _tokens(answers: Sequence[Answer], place: int) -> list[int]:
    return [answer.token_ids[place] for answer in answers]


def _speculation(wish: SelfTestWish, depth: int, rule: str) -> SpeculationParams:
    """As many drafts as there may be: what a controller spares is not tried. Nobody learns from these answers, which
    would take the place of people's."""
    return SpeculationParams(True, wish.proposer, depth, rule, adaptive=False, learn=False)


async def _all(
    asker: Asker, prompts: Sequence[Prompt], sampling: SamplingParams, speculation: SpeculationParams
) -> list[Answer]:
    """One answer to each prompt, all at once."""
    return await together([asker.one(prompt, sampling, speculation) for prompt in prompts])
