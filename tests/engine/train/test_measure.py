"""Perplexity and divergence on rows of tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.config import ModelConfig
from engine.train import measure
from engine.train.forward import logits
from engine.train.measure import Side, compare, recovered

CONFIG = ModelConfig("llama", 8, 8, 1, 1, 1, 8, 11, 32, 1e-5, 10000.0)


def sides() -> tuple[Side, Side, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    base = Side(torch.randn(3, 7, 8, generator=generator), torch.ones(8), torch.randn(11, 8, generator=generator))
    other = replace(base, x=base.x + 0.3 * torch.randn(3, 7, 8, generator=generator))
    return base, other, torch.randint(0, 11, (3, 7), generator=generator)


def test_the_figures_are_those_of_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_LOGITS_AT_ONCE", 44)  # four rows of eleven at a time
    base, other, token_ids = sides()
    first, second = compare([base, other], token_ids, CONFIG)
    p, q = (logits(side.x[:, :-1], side.norm, side.head, CONFIG).log_softmax(-1) for side in (base, other))
    chances = q.gather(2, token_ids[:, 1:, None])
    assert second.log_perplexity == pytest.approx(-float(chances.mean()), rel=1e-5)
    assert second.divergence == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-4)
    assert first.divergence == 0


def test_a_model_that_knows_nothing_has_the_vocabularys_perplexity() -> None:
    base, _, token_ids = sides()
    blank = replace(base, head=torch.zeros(11, 8))
    assert compare([blank], token_ids, CONFIG)[0].log_perplexity == pytest.approx(math.log(11))


def test_shares() -> None:
    assert recovered(1.0, 2.0, 1.25) == 0.75
    assert recovered(1.0, 2.0, 2.5) == -0.5
    assert recovered(1.0, 1.0, 1.0) is None
