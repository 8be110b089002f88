"""Speculation in an engine, with proposers that know, half know, or do not know what comes: the text stays, the
counters are true, blocks come back, and switches do what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.core.outputs import RequestSummary
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import Draft, SpeculationParams
from engine.engine import Engine
from engine.spec.base import NO_RUN, DraftWish
from tests.engine.spec.stand_ins import AlwaysAll, Oracle, speculate
from tests.engine.stepping import load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

VOCABULARY = 320
PROMPTS = {f"r{n}": [(7 * n + 3 * i) % 300 + 5 for i in range(4 + 9 * n)] for n in range(4)}
FULL = SpeculationParams(adaptive=False)


@dataclass
class Answers:
    tokens: dict[str, list[int]]
    summaries: dict[str, RequestSummary]


def run(engine: Engine, sampling: SamplingParams, wish: SpeculationParams, *, trace: bool = False) -> Answers:
    """All prompts at once, each with a seed of its own."""
    found = Answers({name: [] for name in PROMPTS}, {})
    for seed, (name, prompt) in enumerate(PROMPTS.items()):
        assert engine.add_request(name, prompt, replace(sampling, seed=seed), speculation=wish, trace=trace) is None
    for row in rows_until_done(engine):
        assert row.error is None, row.error
        found.tokens[row.request_id] += row.token_ids
        if row.summary is not None:
            found.summaries[row.request_id] = row.summary
    assert engine.pool.num_used == 0
    return found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tiny_llama_checkpoint(tmp_path_factory.mktemp("speculator") / "tiny")
    return load(path, dtype="float32", max_num_seqs=4, num_speculative_tokens=15, speculation="suffix").engine


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "sampled"])
def plain(request: pytest.FixtureRequest, engine: Engine) -> tuple[SamplingParams, Answers]:
    sampling = SamplingParams(temperature=request.param, max_tokens=30, ignore_eos=True, presence_penalty=0.3)
    return sampling, run(engine, sampling, SpeculationParams(enabled=False))


@pytest.mark.parametrize("wrong", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("k", [1, 4, 15])
def test_the_text_and_the_counters(wrong: float, k: int, engine: Engine, plain: tuple[SamplingParams, Answers]) -> None:
    sampling, expected = plain
    oracle = Oracle(expected.tokens, VOCABULARY, wrong)
    speculate(engine, oracle, AlwaysAll(), k=k)
    steps = engine.counters.steps_total
    found = run(engine, sampling, FULL)
    assert found.tokens == expected.tokens
    total, summaries = engine.speculator.total, found.summaries.values()
    assert total.drafts == sum(one.drafts for one in summaries)
    assert total.drafted == sum(one.drafted for one in summaries) == sum(total.drafted_per_position)
    assert total.accepted == sum(one.accepted for one in summaries) == sum(total.accepted_per_position)
    assert total.accepted + total.drafts + 4 == sum(map(len, found.tokens.values())) - undrafted(summaries)
    assert sorted(oracle.ended) == sorted(PROMPTS)
    if wrong == 0.0:
        assert total.accepted == total.drafted
        assert engine.counters.steps_total - steps <= 2 + 30 / (1 + k) + 1
    (stats,) = engine.stats().proposers
    assert (stats.name, stats.drafted_total, stats.accepted_total) == ("ngram", total.drafted, total.accepted)
    assert engine.stats().drafted_per_position_total == total.drafted_per_position


def undrafted(summaries: Iterable[RequestSummary]) -> int:
    """Tokens of steps that had no room for a draft: the last one of a request, where it came alone."""
    return sum(one.num_output_tokens - 1 - one.drafts - one.accepted for one in summaries)


def test_a_request_takes_no_more_than_it_asks_for(engine: Engine, plain: tuple[SamplingParams, Answers]) -> None:
    sampling, expected = plain
    speculate(engine, Oracle(expected.tokens, VOCABULARY), AlwaysAll(), k=8)
    two = run(engine, sampling, replace(FULL, num_speculative_tokens=2))
    assert {len(one.accepted_per_position) for one in two.summaries.values()} == {2}
    none = run(engine, sampling, SpeculationParams(enabled=False))
    assert {one.drafts for one in none.summaries.values()} == {0}
    assert two.tokens == none.tokens == expected.tokens


def test_it_can_be_switched_while_requests_run(engine: Engine, plain: tuple[SamplingParams, Answers]) -> None:
    sampling, expected = plain
    speculate(engine, Oracle(expected.tokens, VOCABULARY), AlwaysAll(), k=8)
    engine.speculator.configure(False, None, None)
    assert not engine.stats().speculation_enabled
    assert {one.drafts for one in run(engine, sampling, FULL).summaries.values()} == {0}
    engine.speculator.configure(True, 3, None)
    assert max(len(one.drafted_per_position) for one in run(engine, sampling, FULL).summaries.values()) == 3
    engine.speculator.configure(None, 99, "rejection")
    assert engine.speculator.max_drafts == 8  # what the engine was loaded for
    assert engine.speculator.settle(SpeculationParams(), guided=False).rule == "rejection"


def test_an_unknown_proposer_is_refused_by_name(engine: Engine) -> None:
    speculate(engine, Oracle({}, VOCABULARY), AlwaysAll(), k=2)
    row = engine.add_request("x", [5, 6], SamplingParams(), speculation=SpeculationParams(proposer="medusa"))
    assert row is not None
    assert row.error is not None
    assert "medusa" in row.error
    assert "ngram" in row.error


def test_traces_tell_every_step(engine: Engine, plain: tuple[SamplingParams, Answers]) -> None:
    sampling, expected = plain
    speculate(engine, Oracle(expected.tokens, VOCABULARY, wrong=0.3), AlwaysAll(), k=4)
    found = run(engine, sampling, FULL, trace=True)
    traces = engine.speculator.take_traces()
    assert engine.speculator.take_traces() == []
    for name, tokens in found.tokens.items():
        steps = [one for one in traces if one.request_id == name]
        assert [token for one in steps for token in one.token_ids] == tokens
        mine = [one for one in steps if one.draft_token_ids]
        assert len(mine) < len(steps), "the prompt's own step is a plain one"
        assert len(mine) == found.summaries[name].drafts
        assert sum(one.num_accepted for one in mine) == found.summaries[name].accepted
        for one in mine:
            first = one.position - len(PROMPTS[name])
            assert one.token_ids == tokens[first : first + len(one.token_ids)]
            assert one.draft_token_ids[: one.num_accepted] == one.token_ids[:-1]
            assert len(one.p) == len(one.q) == len(one.draft_token_ids)
            assert all(0.0 <= chance <= 1.0 for chance in one.p)
            assert one.verify_ms > 0
    assert {one.num_requests for one in traces} >= {4}


def test_what_lies_behind_an_answers_end_is_counted_nowhere(
    engine: Engine, plain: tuple[SamplingParams, Answers]
) -> None:
    sampling, expected = plain
    ends = [tokens[12] for tokens in expected.tokens.values()]
    oracle = Oracle(expected.tokens, VOCABULARY)
    speculate(engine, oracle, AlwaysAll(), k=8)
    before = engine.stats()
    found = run(engine, replace(sampling, stop_token_ids=tuple(ends)), FULL, trace=True)
    after = engine.stats()
    assert all(found.tokens[name] == tokens[: len(found.tokens[name])] for name, tokens in expected.tokens.items())
    assert all(len(tokens) <= 13 for tokens in found.tokens.values())
    emitted = sum(map(len, found.tokens.values()))
    assert after.generation_tokens_total - before.generation_tokens_total == emitted
    summaries = found.summaries.values()
    assert after.accepted_total == sum(one.accepted for one in summaries)
    traces = engine.speculator.take_traces()
    assert sum(len(one.token_ids) for one in traces) == emitted
    assert sum(one.num_accepted for one in traces) == after.accepted_total
    (stats,) = after.proposers
    assert stats.accepted_total == after.accepted_total
    assert stats.drafted_total > stats.accepted_total  # some lay behind


def test_a_proposers_time_is_its_own_whether_or_not_anything_came_of_it(
    engine: Engine, plain: tuple[SamplingParams, Answers]
) -> None:
    sampling, expected = plain
    speculate(engine, Oracle(expected.tokens, VOCABULARY, wrong=0.5), AlwaysAll(), k=4)
    run(engine, sampling, FULL)
    total, (stats,) = engine.speculator.total, engine.stats().proposers
    assert 0.0 < stats.draft_s_total <= total.draft_s
    assert stats.verify_s_total == pytest.approx(total.verify_s)
    speculate(engine, Silent(), AlwaysAll(), k=4)
    run(engine, sampling, FULL)
    (stats,) = engine.stats().proposers
    assert (stats.drafts_total, stats.verify_s_total) == (0, 0.0)
    assert stats.draft_s_total > 0.0


def test_an_engine_for_many_sequences_drafts_for_few(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    many = load(path, dtype="float32", max_num_seqs=256, max_num_batched_tokens=256, speculation="suffix").engine
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    expected = run(many, sampling, SpeculationParams(enabled=False)).tokens
    speculate(many, Oracle(expected, VOCABULARY), AlwaysAll(), k=4)
    assert run(many, sampling, FULL).tokens == expected
    assert many.speculator.total.accepted == many.speculator.total.drafted > 40


def test_small_pools_and_aborts_leave_nothing_behind(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path / "tiny")
    sampling = SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True)
    roomy = load(path, dtype="float32", max_num_seqs=4, speculation="suffix").engine
    expected = run(roomy, sampling, SpeculationParams(enabled=False)).tokens
    block_bytes = roomy.executor.caches[0].keys[0].nbytes * 2 * len(roomy.executor.caches)  # type: ignore[attr-defined]
    size: dict[str, Any] = {"kv_cache_memory_bytes": 13 * block_bytes, "max_model_len": 128}
    tight = load(path, dtype="float32", max_num_seqs=4, speculation="suffix", **size).engine
    speculate(tight, Oracle(expected, VOCABULARY, wrong=0.2), AlwaysAll(), k=6)
    assert run(tight, sampling, FULL).tokens == expected
    assert tight.scheduler.num_preemptions > 0
    for name, prompt in PROMPTS.items():
        tight.add_request(name, prompt, sampling, speculation=FULL)
    for _ in range(6):
        tight.step()
    for name in PROMPTS:
        tight.abort_request(name)
        tight.scheduler.kv.check()
    assert tight.pool.num_used == 0


class Greedy:
    """A proposer that hands out more than it was asked for."""

    name, costly, free, run = "ngram", "", "ngram", NO_RUN

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        return [Draft((1,) * (wish.num_drafts + 5), (0.9,) * (wish.num_drafts + 5), "ngram") for wish in wishes]

    def end(self, request: object) -> None: ...

    def clear(self) -> None: ...


class Silent(Greedy):
    """One that looks for drafts and finds none."""

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        return [Draft()] * len(wishes)


def test_too_long_a_draft_is_cut(engine: Engine, plain: tuple[SamplingParams, Answers]) -> None:
    sampling, expected = plain
    speculate(engine, Greedy(), AlwaysAll(), k=3)
    found = run(engine, sampling, FULL)
    assert found.tokens == expected.tokens
    assert max(len(one.drafted_per_position) for one in found.summaries.values()) == 3
