"""What stands in for torch's matrix products inside a model of transformers.

Owns the replacement of linear layers by ones that call `kernels.ops`, whose rows do not depend on each other, and the
same for products that a model computes without a layer: routers and experts. Knows no family.
Invariant: weights are shared with the layers they came from, never copied, save the transposed ones of GPT-2's Conv1D.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kernels.ops import Ops

_TORCH_LINEAR = nn.functional.linear
_DTYPES = {torch.bfloat16, torch.float32, torch.float64}


def rows_linear(ops: Ops, x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    """x [..., K] @ weight [N, K]^T + bias [N] as out_dtype [..., N], by `ops.linear` over the rows of x."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    count, padding = len(rows), -len(rows) % ops.row_alignment
    if padding:
        rows = nn.functional.pad(rows, (0, 0, 0, padding))
    out = rows.new_empty(len(rows), len(weight), dtype=out_dtype)
    if count:
        ops.linear(out, rows, weight, bias)
    return out[:count].view(*x.shape[:-1], len(weight))


class OpsLinear(nn.Module):
    """In place of nn.Linear. out_dtype: of the result; that of the weight unless it is the output head."""

    def __init__(self, ops: Ops, weight: nn.Parameter, bias: nn.Parameter | None, out_dtype: torch.dtype) -> None:
        super().__init__()
        self.ops = ops
        self.out_dtype = out_dtype
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N]."""
        return rows_linear(self.ops, x, self.weight, self.bias, self.out_dtype)


class InterceptedLinear(TorchFunctionMode):
    """While active, torch's `linear` calls `ops.linear` wherever that can serve it. `count`: of the calls it served."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Torch's protocol for overriding functions."""
        kwargs = kwargs or {}
        if func is not _TORCH_LINEAR or not _fits(*args, **kwargs):
            return func(*args, **kwargs)
        self.count += 1
        return self._linear(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return rows_linear(self.ops, input, weight, bias, input.dtype)


def _fits(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `ops.linear` takes these as they are."""
    alike = input.dtype == weight.dtype and input.dtype in _DTYPES and (bias is None or bias.dtype == input.dtype)
    return alike and weight.dim() == 2 and weight.is_contiguous() and (bias is None or bias.is_contiguous())


def replace_linears(model: Any, ops: Ops, dtype: torch.dtype, logits_dtype: torch.dtype) -> None:
    """Puts an `OpsLinear` in the place of every nn.Linear and Conv1D (GPT-2's, of transformers) of the model's dtype.

    Layers that derive from nn.Linear do something of their own and stay. The output head gives `logits_dtype`.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if type(module) not in (nn.Linear, Conv1D) or module.weight.dtype != dtype:
            continue
        weight = module.weight
        if type(module) is not nn.Linear:
            weight = nn.Parameter(weight.t().contiguous(), requires_grad=False)
        made = OpsLinear(ops, weight, module.bias, logits_dtype if module is head else dtype)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, made)
        del module.weight
