"""Transformers as the oracle: the same weights, and in fp64 truly fp64.

transformers rounds to fp32 inside RMSNorm, in eager attention's softmax and in routers, whatever the model's dtype, so
its double logits carry fp32 errors. `double_logits` lifts exactly that; the rotary angles stay fp32 on both sides, as
the checkpoints were trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


def logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """[len(prompt), V] in the model's dtype."""
    with torch.inference_mode():
        result: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return result


def double_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """The logits of a float64 model with norms and softmax in fp64."""
    with _double_norms(model), double_softmax():
        return logits(model, prompt)


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """What transformers' own generate continues `prompt` with; no token ends it."""
    model.generation_config.eos_token_id = None
    mask = torch.ones(1, len(prompt), dtype=torch.int64)
    with torch.inference_mode():
        ids = model.generate(torch.tensor([prompt]), attention_mask=mask, max_new_tokens=num_tokens, do_sample=False)
    found: list[int] = ids[0, len(prompt) :].tolist()
    return found


@contextlib.contextmanager
def _double_norms(model: Any) -> Iterator[None]:
    """Every RMSNorm class of the model computes in its input's dtype."""

    def forward(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        scale = 1 + norm.weight if "Gemma" in type(norm).__name__ else norm.weight
        return scale * (hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps))

    classes = {type(module) for module in model.modules() if type(module).__name__.endswith("RMSNorm")}
    with contextlib.ExitStack() as stack:
        for found in classes:
            stack.enter_context(mock.patch.object(found, "forward", forward))
        yield


@contextlib.contextmanager
def double_softmax() -> Iterator[None]:
    """softmax keeps its input's dtype, even where fp32 is asked for, and `float()` leaves fp64 alone."""
    softmax, to_float = torch.nn.functional.softmax, torch.Tensor.float

    def kept(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return softmax(x, dim=dim, dtype=x.dtype if x.dtype == torch.float64 else dtype)

    def float_unless_double(x: torch.Tensor) -> torch.Tensor:
        return x if x.dtype == torch.float64 else to_float(x)

    with (
        mock.patch.object(torch.nn.functional, "softmax", kept),
        mock.patch.object(torch.Tensor, "float", float_unless_double),
    ):
        yield
