"""The bench drives real engines on a tiny model: the same tokens in all ways, drafts counted, a difference seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import speculation_engine
from bench.speculation import SAME, _again, _round, begun
from bench.speculation_engine import BenchEngine, Work, another_way, load
from bench.speculation_results import PLAIN, WARM, Arm, Case, Measured
from bench.speculation_sets import EncodedPrompt, Prompt
from engine.config import LoadOptions
from engine.core.speculation import SpeculationParams
from tests.bench.gains import gains
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

TOKENS = 40
OWN = {"ways": {"proposers": "None"}, "code": "c0de"}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> list[BenchEngine]:
    """Plain decoding, and a proposer that foresees what comes again."""
    model = tiny_llama_checkpoint(tmp_path_factory.mktemp("tiny"))

    options = LoadOptions(kv_cache_memory_bytes=1 << 20, max_model_len=96, num_threads=1)
    suffix = load("suffix", model, options, SpeculationParams(adaptive=False))
    return [another_way(PLAIN, suffix.loaded, options, "off"), suffix]


def work(count: int, temperature: float) -> Work:
    prompts = [EncodedPrompt(Prompt(str(first), "text"), tuple([5 + first, 9, 11] * 8)) for first in range(count)]
    return Work(prompts, list(range(count)), TOKENS, temperature)


def case(engines: list[BenchEngine], temperature: float) -> Measured:
    return Measured(Case("tiny", 2, temperature), arms={one.name: Arm() for one in engines})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounds_compare_every_answer_and_count_drafts(engines: list[BenchEngine], temperature: float) -> None:
    found, groups = case(engines, temperature), [work(2, temperature), work(1, temperature)]
    for number in range(3):
        _round(found, engines, groups, number)
    assert {name: arm.differs for name, arm in found.arms.items()} == {PLAIN: 0, "suffix": 0}
    assert all(len(arm.seconds) == 2 and len(arm.seconds[0]) == 2 for arm in found.arms.values())
    assert found.gain("suffix") is not None
    plain, drafted = found.arms[PLAIN].counts, found.arms["suffix"].counts
    assert plain.tokens == drafted.tokens == sum(found.tokens)
    assert plain.answers == drafted.answers == 3
    assert plain.drafts == 0
    assert drafted.drafted >= drafted.drafts > 0
    assert sum(drafted.drafted_at) == drafted.drafted
    assert sum(drafted.accepted_at) == drafted.accepted
    assert drafted.steps <= plain.steps
    assert drafted.draft_s > 0
    assert 0 < drafted.verify_steps <= drafted.steps
    assert not any(one.engine.has_requests() for one in engines)


def test_greedy_text_that_repeats_itself_is_foreseen(engines: list[BenchEngine]) -> None:
    found = case(engines, 0.0)
    _round(found, engines, [work(1, 0.0)], 1)
    plain, drafted = found.arms[PLAIN].counts, found.arms["suffix"].counts
    assert drafted.accepted > 0
    assert drafted.steps < plain.steps


def test_a_difference_is_counted(engines: list[BenchEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    found = case(engines, 1.0)
    spoilt = engines[1].answer

    def other_seed(asked: Work, *, keep: bool = False) -> speculation_engine.Answered:
        return spoilt(Work(asked.prompts, [seed + 1 for seed in asked.seeds], TOKENS, 1.0), keep=keep)

    monkeypatch.setattr(engines[1], "answer", other_seed)
    _round(found, engines, [work(2, 1.0)], 1)
    assert found.arms["suffix"].differs == 2
    assert found.gain("suffix") is None


def test_past_outputs_are_dropped_unless_the_run_is_warm(
    engines: list[BenchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared: list[str] = []
    speculator = engines[1].speculator
    monkeypatch.setattr(speculator, "clear", lambda: cleared.append("cleared"))
    found, groups = case(engines, 0.0), [work(1, 0.0), work(2, 0.0)]
    _round(found, engines, groups, 1)
    assert len(cleared) == len(groups)
    _again(found, engines[1:], groups)
    assert len(cleared) == len(groups) + 1
    assert found.arms["suffix" + WARM].differs == 0
    assert len(found.arms["suffix" + WARM].seconds) == 1


def test_a_refused_prompt_ends_the_run(engines: list[BenchEngine]) -> None:
    too_long = Work([EncodedPrompt(Prompt("long", ""), tuple([1] * 200))], [0], 8, 0.0)
    with pytest.raises(RuntimeError, match="off: the prompt has 200 tokens"):
        engines[0].answer(too_long)


def test_a_run_goes_on_with_what_it_has_found(tmp_path: Path) -> None:
    file, facts = tmp_path / "gains.json", gains().facts | OWN
    assert begun(facts, file).measured == []
    earlier = gains()
    earlier.facts |= OWN
    earlier.save(file)
    found = begun(facts | {"date": "later"}, file)
    assert found.measured == earlier.measured
    assert found.facts == earlier.facts | {"stretches": 2}


@pytest.mark.parametrize("fact", SAME)
def test_a_run_does_not_go_on_with_another_one(fact: str, tmp_path: Path) -> None:
    file, facts = tmp_path / "gains.json", gains().facts | OWN
    earlier = gains()
    earlier.facts |= OWN
    earlier.save(file)
    with pytest.raises(SystemExit, match=rf"gains.json is of another run: {fact} .* then, 'other' now"):
        begun(facts | {fact: "other"}, file)
