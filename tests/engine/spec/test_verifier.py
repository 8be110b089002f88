"""The verifier on rows of logits: both rules, faults within a run, log probabilities, probabilities for traces."""

from __future__ import annotations

import math

import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.step import ScheduledRequest
from engine.sample.row import SamplingRow
from engine.sample.sampler import Sampler
from engine.sample.verifier import DraftScores, Verified, Verifier, no_scores
from kernels.registry import load_ops

OPS = load_ops(["cpu_ops"], torch.float32, torch.device("cpu"), num_threads=2)[0]
VOCABULARY = 12


def share(name: str, drafts: tuple[int, ...], sampling: SamplingParams, rule: str = "match") -> ScheduledRequest:
    return ScheduledRequest(
        name, False, (1, *drafts), 10, ((),), True, sampling, 5, 4, num_drafts=len(drafts), rule=rule, trace=True
    )


def rows_of(shares: list[ScheduledRequest]) -> list[SamplingRow]:
    return [SamplingRow(one.sampling, one.seed, 11 + index) for one in shares for index in range(1 + one.num_drafts)]


def verify(logits: torch.Tensor, shares: list[ScheduledRequest], scores: DraftScores = no_scores) -> Verified:
    return Verifier(OPS, Sampler(OPS, logits), scores).verify(logits, shares, rows_of(shares))


def peaked(*tokens: int) -> torch.Tensor:
    logits = torch.zeros(len(tokens), VOCABULARY)
    logits[torch.arange(len(tokens)), torch.tensor(tokens)] = 9.0
    return logits


GREEDY = SamplingParams(temperature=0.0, logprobs=2)


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_greedy_drafts_are_accepted_while_they_are_the_best_token(rule: str) -> None:
    shares = [
        share("whole", (3, 4), GREEDY, rule),
        share("half", (6, 1, 8), GREEDY, rule),
        share("plain", (), GREEDY, rule),
        share("none", (2,), GREEDY, rule),
    ]
    verified = verify(peaked(3, 4, 5, 6, 7, 8, 9, 0, 1, 3), shares)
    assert verified.token_ids == {"whole": (3, 4, 5), "half": (6, 7), "plain": (0,), "none": (1,)}
    assert verified.num_accepted == {"whole": 2, "half": 1, "none": 0}
    assert {name: len(one.logprobs) for name, one in verified.logprobs.items()} == {
        name: len(tokens) for name, tokens in verified.token_ids.items()
    }
    assert [ids[0] for ids in verified.logprobs["half"].top_token_ids] == [6, 7]
    chance = 1 / (1 + (VOCABULARY - 1) * math.exp(-9.0))
    assert verified.draft_probabilities["whole"] == pytest.approx([chance, chance], rel=1e-5)
    assert verified.draft_probabilities["half"][1] == pytest.approx(chance * math.exp(-9.0), rel=1e-4)


def test_sampled_rows_draw_what_they_would_draw_alone() -> None:
    logits = torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(0))
    sampling = SamplingParams(temperature=0.8, top_p=0.95)
    alone = [
        verify(logits[row : row + 1], [share("a", (), sampling)]).token_ids["a"][0]
        if row == 0
        else Verifier(OPS, Sampler(OPS, logits))
        .verify(logits[row : row + 1], [share("a", (), sampling)], [SamplingRow(sampling, 5, 11 + row)])
        .token_ids["a"][0]
        for row in range(5)
    ]
    right = verify(logits, [share("a", tuple(alone[:4]), sampling)])
    assert right.token_ids["a"] == tuple(alone)
    wrong = verify(logits, [share("a", (alone[0], (alone[1] + 1) % VOCABULARY, 0, 0), sampling)])
    assert wrong.token_ids["a"] == tuple(alone[:2])


@pytest.mark.parametrize(("rule", "temperature"), [("match", 0.0), ("match", 1.0), ("rejection", 1.0)])
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_row_without_a_token_spoils_none_before_it(rule: str, temperature: float, broken: int) -> None:
    logits = peaked(3, 4, 5)
    logits[logits == 0.0] = -60.0  # so that a draw has no choice
    logits[broken, 2] = math.nan
    verified = verify(logits, [share("a", (3, 4), SamplingParams(temperature=temperature), rule)])
    if broken == 0:
        assert "nan" in verified.faults["a"]
        assert verified.token_ids == {}
    else:
        assert verified.faults == {}
        assert verified.token_ids["a"] == (3, 4, 5)[:broken]
        assert verified.num_accepted["a"] == broken - 1


def test_rejection_takes_certain_drafts_and_replaces_impossible_ones() -> None:
    logits = torch.full((3, VOCABULARY), -60.0)
    logits[0, 3] = logits[1, 5] = logits[2, 6] = 0.0
    certain = verify(logits, [share("a", (3, 5), SamplingParams(), "rejection")])
    assert (certain.token_ids["a"], certain.num_accepted["a"]) == ((3, 5, 6), 2)
    impossible = verify(logits, [share("a", (3, 4), SamplingParams(), "rejection")])
    assert (impossible.token_ids["a"], impossible.num_accepted["a"]) == ((3, 5), 1)


def test_rejection_uses_what_the_drafts_were_drawn_from() -> None:
    """p is even on two tokens, q certain of one: taken half of the time; by its own scores q = p: always."""
    logits = torch.full((2, VOCABULARY), -math.inf)
    logits[:, 3] = logits[:, 4] = 0.0

    def shares_taken(scores: DraftScores) -> int:
        taken = 0
        for seed in range(200):
            one = ScheduledRequest(
                "a", False, (1, 3), 10, ((),), True, SamplingParams(), seed, 4, num_drafts=1, rule="rejection"
            )
            rows = [SamplingRow(one.sampling, seed, 11), SamplingRow(one.sampling, seed, 12)]
            taken += Verifier(OPS, Sampler(OPS, logits), scores).verify(logits, [one], rows).num_accepted["a"]
        return taken

    assert 60 < shares_taken(no_scores) < 140
    assert shares_taken(lambda _: logits[:1]) == 200


def test_mixed_rules_in_one_step_do_not_touch_each_other() -> None:
    logits = torch.randn(9, VOCABULARY, generator=torch.Generator().manual_seed(1))
    sampling = SamplingParams(temperature=1.0, logprobs=0)
    shares = [
        share(name, (1, 2), sampling, rule) for name, rule in (("a", "match"), ("b", "rejection"), ("c", "match"))
    ]
    together = verify(logits, shares)
    for index, one in enumerate(shares):
        alone = verify(logits[3 * index : 3 * index + 3], [one])
        assert alone.token_ids[one.request_id] == together.token_ids[one.request_id]
        assert alone.logprobs[one.request_id] == together.logprobs[one.request_id]
