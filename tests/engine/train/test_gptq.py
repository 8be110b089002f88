"""GPTQ for one matrix: what it must gain, and where it can gain nothing."""

from __future__ import annotations

import pytest
import torch

from engine.train.gptq import GptqOptions, gptq, inverse_factor
from engine.train.grid import round_to_nearest

SIZE = 32


def correlated_inputs(inputs: int, tokens: int = 600, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(inputs, inputs, generator=generator) / inputs**0.5 + torch.eye(inputs)
    scales = torch.logspace(-1, 1, inputs)[torch.randperm(inputs, generator=generator)]
    return torch.randn(tokens, inputs, generator=generator) @ mixing * scales


def error(found: torch.Tensor, weights: torch.Tensor, hessian: torch.Tensor) -> float:
    difference = (found - weights).double()
    return float(((difference @ hessian.double()) * difference).sum())


def matrix(outputs: int = 48, inputs: int = 160, seed: int = 1) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "order", [{"act_order": True}, {"static_groups": True}, {"static_groups": False}], ids=lambda order: str(order)
)
def test_its_error_under_the_hessian_is_far_below_rounding_to_nearest(
    bits: int, symmetric: bool, order: dict[str, bool]
) -> None:
    x, weights = correlated_inputs(160), matrix()
    hessian = x.T @ x
    options = GptqOptions(bits=bits, group_size=SIZE, symmetric=symmetric, **order)
    plain = round_to_nearest(weights, bits, SIZE, symmetric)
    found = gptq(weights, hessian, options)
    assert error(found.dequantised(), weights, hessian) < 0.7 * error(plain.dequantised(), weights, hessian)


@pytest.mark.parametrize("static_groups", [False, True])
def test_where_inputs_are_independent_it_is_rounding_to_nearest(static_groups: bool) -> None:
    weights, diagonal = matrix(), torch.rand(160, generator=torch.Generator().manual_seed(2)) + 0.1
    options = GptqOptions(group_size=SIZE, search=False, static_groups=static_groups)
    found = gptq(weights, torch.diag(diagonal), options)
    plain = round_to_nearest(weights, 4, SIZE)
    assert torch.equal(found.codes, plain.codes)
    assert torch.equal(found.scale, plain.scale)
    assert torch.equal(found.zero, plain.zero)


def test_the_first_group_is_fitted_to_its_own_weights_and_a_later_one_to_what_it_has_become() -> None:
    """Without act order and static groups, as the paper has it; a group may reach beyond its block of columns."""
    x = correlated_inputs(192)
    weights = matrix(inputs=192)
    found = gptq(weights, x.T @ x, GptqOptions(group_size=96, static_groups=False, search=False))
    plain = round_to_nearest(weights, 4, 96)
    assert torch.equal(found.scale[:, 0], plain.scale[:, 0])
    assert not torch.equal(found.scale[:, 1], plain.scale[:, 1])


def test_a_group_across_two_blocks_sees_the_errors_of_the_first() -> None:
    """Columns 96 to 191 are one group, and 128 is where the second block begins: the grid is that of a walk in one."""
    import engine.train.gptq as module

    x = correlated_inputs(192)
    weights, hessian = matrix(inputs=192), x.T @ x
    options = GptqOptions(group_size=96, static_groups=False, search=False)
    found = gptq(weights, hessian, options)
    width, module.BLOCK = module.BLOCK, 192
    try:
        whole = gptq(weights, hessian, options)
    finally:
        module.BLOCK = width
    assert torch.allclose(found.scale.float(), whole.scale.float(), rtol=2e-3)
    assert (found.codes != whole.codes).float().mean() < 0.01


def test_act_order_names_the_group_of_each_input() -> None:
    x, weights = correlated_inputs(160), matrix()
    hessian = x.T @ x
    found = gptq(weights, hessian, GptqOptions(group_size=SIZE, act_order=True))
    assert found.group_of is not None
    assert torch.bincount(found.group_of).tolist() == [SIZE] * (160 // SIZE)
    largest = hessian.diagonal().argsort(descending=True)[:SIZE]
    assert (found.group_of[largest] == 0).all()


def test_an_input_that_is_always_zero_disturbs_nothing() -> None:
    x, weights = correlated_inputs(160), matrix()
    x[:, 7] = 0
    found = gptq(weights, x.T @ x, GptqOptions(group_size=SIZE))
    assert torch.isfinite(found.dequantised()).all()
    assert error(found.dequantised(), weights, x.T @ x) < error(
        round_to_nearest(weights, 4, SIZE).dequantised(), weights, x.T @ x
    )


def test_fewer_tokens_than_inputs_are_enough() -> None:
    x, weights = correlated_inputs(160, tokens=20), matrix()
    found = gptq(weights, x.T @ x, GptqOptions(group_size=SIZE))
    assert torch.isfinite(found.dequantised()).all()


def test_the_factor_is_that_of_the_inverse() -> None:
    x = correlated_inputs(40).double()
    hessian = (x.T @ x).float()
    factor = inverse_factor(hessian, 0.01).double()
    damped = hessian.double() + torch.eye(40).double() * 0.01 * hessian.double().diagonal().mean()
    assert torch.allclose(factor.T @ factor @ damped, torch.eye(40).double(), atol=1e-4)


def test_a_hessian_with_infinities_is_refused() -> None:
    hessian = torch.eye(8)
    hessian[0, 0] = torch.inf
    with pytest.raises(ValueError, match="calibration inputs"):
        inverse_factor(hessian, 0.01)
