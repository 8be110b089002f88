"""Transformers as the oracle: the same weights, and in fp64 truly fp64.

transformers' Llama rounds to fp32 inside RMSNorm whatever the model's dtype, so its double logits carry fp32 errors.
`double_logits` lifts exactly that; the rotary angles stay fp32 on both sides, as the checkpoints were trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from transformers.models.llama import modeling_llama


def logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """[len(prompt), V] in the model's dtype."""
    with torch.inference_mode():
        result: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return result


def double_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """The logits of a float64 model with norms in fp64."""
    with _double_norms():
        return logits(model, prompt)


@contextlib.contextmanager
def _double_norms() -> Iterator[None]:
    def forward(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.square().mean(-1, keepdim=True)
        return norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon))

    with mock.patch.object(modeling_llama.LlamaRMSNorm, "forward", forward):
        yield
