"""The chain behind a token, as an engine tells it, against fp32 arithmetic of its own in plain Python."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from engine.core.inspection import Inspection, InspectionWish
from engine.core.sampling_params import Guided, SamplingParams
from engine.engine import Engine
from engine.sample.inspection import ADJUSTMENT_NAMES, FILTERS_OFF
from engine.sample.processors import ADJUSTMENTS
from kernels.noise import Stream, uniform
from tests.engine.stepping import load, prompt_logits, rows_until_done
from tests.engine.tiny_checkpoint import EOS_TOKEN_ID, tiny_llama_checkpoint

PROMPT = [5, 9, 17, 9, 17, 40, 9, 17]
ANSWER_LENGTH = 6
SEED = 11
ALONE: dict[str, dict[str, Any]] = {
    "logit_bias": {"logit_bias": {3: 4.0, 9: -2.5}},
    "bad_words": {"bad_words": ((9, 17, 40), (60,))},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "presence_frequency": {"presence_penalty": 0.7, "frequency_penalty": -0.4},
    "dry": {"dry_multiplier": 1.2, "dry_allowed_length": 2, "dry_sequence_breakers": (40,)},
    "allowed_token_ids": {"allowed_token_ids": tuple(range(3, 120))},
    "min_tokens": {"min_tokens": 4},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 25},
    "top_p": {"top_p": 0.5},
    "typical_p": {"typical_p": 0.4},
    "min_p": {"min_p": 0.3},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.004},
}
TOGETHER = {name: value for fields in ALONE.values() for name, value in fields.items()} | {"top_k": 60, "top_p": 0.9}
GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.3, "logit_bias": {3: 4.0}}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tiny_llama_checkpoint(tmp_path_factory.mktemp("inspected") / "model")
    return load(path, dtype="float32", max_num_seqs=32, max_model_len=256)


def answered(engine: Engine, sampling: SamplingParams) -> list[int]:
    assert engine.add_request("answer", list(PROMPT), sampling) is None
    rows = rows_until_done(engine)
    assert all(row.error is None for row in rows), rows
    return [token for row in rows for token in row.token_ids]


def inspected(engine: Engine, sampling: SamplingParams, before: list[int], wish: InspectionWish) -> Inspection:
    assert engine.add_request("look", [*PROMPT, *before], sampling, inspect=wish) is None
    [row] = rows_until_done(engine)
    assert row.error is None, row.error
    assert row.inspection is not None
    assert row.token_ids == [row.inspection.drawn_token_id]
    return row.inspection


def logprobs_of(scores: list[float]) -> list[float]:
    most = max(scores)
    total = most + math.log(sum(math.exp(score - most) for score in scores))
    return [score - total for score in scores]


def expected_stages(logits: list[float], p: SamplingParams, answer: list[int]) -> Iterator[tuple[str, list[float]]]:
    """The scores behind each step, by the definitions in docs/sampling.md; tokens one by one."""
    text, out, everyone = [*PROMPT, *answer], list(logits), range(len(logits))
    for token, bias in p.logit_bias.items():
        out[token] += bias
    yield "logit_bias", list(out)
    for word in p.bad_words:
        if tuple(text[len(text) - len(word) + 1 :]) == word[:-1]:
            out[word[-1]] = -math.inf
    yield "bad_words", list(out)
    for token in set(text):
        out[token] = out[token] / p.repetition_penalty if out[token] > 0 else out[token] * p.repetition_penalty
    yield "repetition_penalty", list(out)
    for token in set(answer):
        out[token] -= p.presence_penalty + p.frequency_penalty * answer.count(token)
    yield "presence_frequency", list(out)
    for token in set(text) - set(p.dry_sequence_breakers):
        length = max(_repeated(text, at, set(p.dry_sequence_breakers)) for at, each in enumerate(text) if each == token)
        if p.dry_multiplier and length >= p.dry_allowed_length:
            out[token] -= p.dry_multiplier * p.dry_base ** (length - p.dry_allowed_length)
    yield "dry", list(out)
    yield "grammar", list(out)
    if p.allowed_token_ids:
        out = [score if token in p.allowed_token_ids else -math.inf for token, score in enumerate(out)]
    yield "allowed_token_ids", list(out)
    if len(answer) < p.min_tokens:
        out[EOS_TOKEN_ID] = -math.inf
    yield "min_tokens", list(out)
    out = [score / p.temperature for score in out]
    yield "temperature", list(out)

    def keep(left: set[int]) -> list[float]:
        return [out[token] if token in left else -math.inf for token in everyone]

    by_score = sorted(everyone, key=lambda token: -out[token])
    out = keep(set(by_score[: p.top_k])) if p.top_k else out
    yield "top_k", list(out)
    out = keep(smallest_set(out, by_score, p.top_p)) if p.top_p < 1 else out
    yield "top_p", list(out)
    if p.typical_p < 1:
        known = logprobs_of(out)
        surprise = -sum(math.exp(each) * each for each in known if each > -math.inf)
        out = keep(smallest_set(out, sorted(everyone, key=lambda token: abs(-known[token] - surprise)), p.typical_p))
    yield "typical_p", list(out)
    if p.min_p:
        out = keep({token for token in everyone if out[token] >= max(out) + math.log(p.min_p)})
    yield "min_p", list(out)
    if uniform(SEED, len(text), 0, Stream.XTC) < p.xtc_probability:
        known = logprobs_of(out)
        likely = sorted((t for t in everyone if math.exp(known[t]) >= p.xtc_threshold), key=lambda t: out[t])
        out = keep(set(everyone) - set(likely[1:]))
    yield "xtc", list(out)


def smallest_set(scores: list[float], order: list[int], share: float) -> set[int]:
    """The first tokens of the order that together hold the share."""
    chance, mass, kept = [math.exp(each) for each in logprobs_of(scores)], 0.0, set[int]()
    for token in order:
        kept.add(token)
        mass += chance[token]
        if mass >= share:
            break
    return kept


def _repeated(text: list[int], at: int, breakers: set[int]) -> int:
    """How long an ending of the text stands before the place `at`."""
    length = 0
    while length < at and text[at - 1 - length] == text[-1 - length] and text[-1 - length] not in breakers:
        length += 1
    return length


def compare(found: Inspection, logits: list[float], p: SamplingParams, answer: list[int]) -> None:
    """Every figure of an inspection with the arithmetic above. Tokens at the very edge of a filter aside, counts are
    equal; the tiny model has no ties."""
    own = logprobs_of(logits)
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    assert found.top_token_ids == order[: len(found.top_token_ids)]
    assert found.top_logprobs == pytest.approx([own[token] for token in found.top_token_ids], abs=1e-4)
    assert found.rank == 1 + order.index(found.token_id)
    assert found.logprob == pytest.approx(own[found.token_id], abs=1e-4)
    assert found.entropy == pytest.approx(-sum(math.exp(each) * each for each in own), abs=1e-4)
    before = logits
    stages = {stage.name: stage for stage in found.stages}
    for name, after in expected_stages(logits, p, answer):
        stage, could, can = stages[name], [x > -math.inf for x in before], [x > -math.inf for x in after]
        removed = [token for token, was in enumerate(could) if was and not can[token]]
        changed = [t for t, is_ in enumerate(can) if is_ and abs(before[t] - after[t]) > 1e-6]
        assert (stage.num_left, stage.num_removed, stage.num_changed) == (sum(can), len(removed), len(changed)), name
        was, now = logprobs_of(before), logprobs_of(after)
        assert stage.removed_probability == pytest.approx(sum(math.exp(was[t]) for t in removed), abs=1e-4), name
        assert {moved.token_id for moved in stage.moved} <= {*removed, *changed}, name
        assert len(stage.moved) == min(len(removed) + len(changed), len(found.top_token_ids)), name
        for moved in stage.moved:
            assert moved.before == pytest.approx(was[moved.token_id], abs=1e-4), name
            assert (moved.after is None) == (moved.token_id in removed), name
            assert moved.after is None or moved.after == pytest.approx(now[moved.token_id], abs=1e-4), name
        assert (stage.logprob is None) == (not can[found.token_id]), name
        assert stage.logprob is None or stage.logprob == pytest.approx(now[found.token_id], abs=1e-4), name
        before = after
    final = logprobs_of(before)
    for token, value in zip(found.top_token_ids, found.top_final_logprobs, strict=True):
        assert (value is None) == (final[token] == -math.inf)
        assert value is None or value == pytest.approx(final[token], abs=1e-4)


CASES = {**ALONE, "together": TOGETHER}


@pytest.mark.parametrize("name", CASES)
def test_each_step_alone_and_all_together_are_told_as_they_are(loaded: Any, name: str) -> None:
    sampling = SamplingParams(max_tokens=ANSWER_LENGTH, seed=SEED, ignore_eos=name != "min_tokens", **CASES[name])
    answer = answered(loaded.engine, sampling)
    did_something = False
    for place in range(len(answer)):
        before = answer[:place]
        logits = prompt_logits(loaded.runner, [*PROMPT, *before])[-1].tolist()
        found = inspected(loaded.engine, sampling, before, InspectionWish(len(PROMPT), 0, answer[place], 12))
        assert found.drawn_token_id == answer[place], "the same seed draws the same token"
        compare(found, logits, sampling, before)
        stages = {stage.name: stage for stage in found.stages}
        asked = {stage.name for stage in found.stages if stage.asked}
        assert asked == (set(ALONE) if name == "together" else {name})
        did_something |= any(stages[each].moved for each in asked)
    assert did_something, "a step that never does anything tests nothing"


def test_a_greedy_row_keeps_one_token(loaded: Any) -> None:
    sampling = SamplingParams(max_tokens=3, **GREEDY)
    answer = answered(loaded.engine, sampling)
    found = inspected(loaded.engine, sampling, answer[:2], InspectionWish(len(PROMPT)))
    assert found.token_id == found.drawn_token_id == answer[2]
    assert found.stages[-1].name == "temperature"
    assert found.stages[-1].num_left == 1
    assert found.final_entropy == 0.0


def test_a_grammar_is_followed_to_the_place(loaded: Any) -> None:
    sampling = SamplingParams(max_tokens=20, seed=SEED, guided=Guided("regex", "[0-9]{3}-[a-c]{2}"))
    answer = answered(loaded.engine, sampling)
    left = []
    for place in range(len(answer)):
        found = inspected(loaded.engine, sampling, answer[:place], InspectionWish(len(PROMPT), 0, answer[place]))
        assert found.drawn_token_id == answer[place]
        [grammar] = [stage for stage in found.stages if stage.name == "grammar"]
        assert grammar.asked
        assert grammar.num_left + grammar.num_removed == found.stages[0].num_left
        left.append(grammar.num_left)
    assert left[-1] == 1, "behind the whole text only the end token is left"
    assert 1 < left[0] < 300
    wrong = [answer[-1], *answer[1:3]]
    assert loaded.engine.add_request("astray", [*PROMPT, *wrong], sampling, inspect=InspectionWish(len(PROMPT))) is None
    [row] = rows_until_done(loaded.engine)
    assert row.error == "guided: token 0 of the answer is not one that the grammar allows there"


def test_one_of_several_samples_has_its_own_noise(loaded: Any) -> None:
    engine, sampling = loaded.engine, SamplingParams(max_tokens=4, seed=SEED, temperature=2.0, ignore_eos=True)
    assert engine.add_request("several", list(PROMPT), sampling, n=3) is None
    rows = rows_until_done(engine)
    answers = [[token for row in rows if row.index == index for token in row.token_ids] for index in range(3)]
    assert len({tuple(each) for each in answers}) == 3
    for index, answer in enumerate(answers):
        found = inspected(engine, sampling, answer[:3], InspectionWish(len(PROMPT), index))
        assert found.drawn_token_id == answer[3]


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (InspectionWish(0), "0 prompt tokens"),
        (InspectionWish(99), "99 prompt tokens of 8"),
        (InspectionWish(8, top=0), "top=0"),
        (InspectionWish(8, token_id=100_000), "token id 100000 lies outside"),
    ],
)
def test_what_cannot_be_inspected_is_refused(loaded: Any, wish: InspectionWish, said: str) -> None:
    refused = loaded.engine.add_request("bad", list(PROMPT), SamplingParams(), inspect=wish)
    assert refused is not None
    assert said in (refused.error or "")


def test_every_step_of_the_chain_has_a_name() -> None:
    assert [processor.__name__ for processor in ADJUSTMENTS] == list(ADJUSTMENT_NAMES)
    assert all(getattr(SamplingParams(), field) == off for field, off in FILTERS_OFF.items())
