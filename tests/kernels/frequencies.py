"""Whether counted tokens follow a law: chi-square with pooled bins, Holm's correction, a bound on total variation.

Owns the arithmetic alone. The bound is Weissman's (HP Labs, HPL-2003-97): for N draws over V values the L1 distance of
the counted shares to their law exceeds e with a probability of at most (2^V - 2) exp(-N e^2 / 2). So a sampler whose
counts lie within the radius r of a law lies, with the confidence asked for, within r more of it: TV <= counted TV + r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

FEWEST = 5.0  # that a bin is expected to hold; bins of fewer are pooled


def chi_square_p(counts: Tensor, law: Tensor) -> float:
    """The probability of counts this far from `law` or farther. A count where the law has none is impossible: 0.

    counts [.., V], law [.., V] fp64: several rows are several independent experiments, each with its own total.
    """
    statistic, degrees = 0.0, 0
    for counted, share in zip(
        counts.double().reshape(-1, counts.shape[-1]), law.reshape(-1, law.shape[-1]), strict=True
    ):
        if float(counted[share == 0].sum()) > 0:
            return 0.0
        expected = share * counted.sum()
        rare = (expected < FEWEST) & (share > 0)
        pooled = torch.stack([counted[rare].sum(), expected[rare].sum()])
        bins = torch.cat([torch.stack([counted, expected])[:, expected >= FEWEST], pooled.unsqueeze(1)], 1)
        bins = bins[:, bins[1] >= FEWEST]
        if bins.shape[1] < 2:
            continue
        statistic += float(((bins[0] - bins[1]).square() / bins[1]).sum())
        degrees += bins.shape[1] - 1
    return (
        1.0
        if degrees == 0
        else float(
            torch.special.gammaincc(
                torch.tensor(degrees / 2.0, dtype=torch.float64), torch.tensor(statistic / 2, dtype=torch.float64)
            )
        )
    )


def two_sample_p(first: Tensor, second: Tensor) -> float:
    """The probability that two lots of counts [V] of one law differ this much or more."""
    counts = torch.stack([first, second]).double()
    share = counts.sum(1, keepdim=True) / counts.sum()
    expected = share * counts.sum(0)
    rare = expected.amin(0) < FEWEST
    bins = torch.cat([counts[:, ~rare], counts[:, rare].sum(1, keepdim=True)], 1)
    expected = torch.cat([expected[:, ~rare], expected[:, rare].sum(1, keepdim=True)], 1)
    held = expected.amin(0) >= FEWEST
    statistic = ((bins - expected).square() / expected)[:, held].sum()
    degrees = torch.tensor((int(held.sum()) - 1) / 2.0, dtype=torch.float64)
    return 1.0 if degrees <= 0 else float(torch.special.gammaincc(degrees, statistic / 2))


def holm(p_values: Mapping[str, float], level: float) -> list[str]:
    """The hypotheses that are refused so that any true one is with a probability of at most `level`."""
    refused = []
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if p_values[name] > level / (len(p_values) - rank):
            break
        refused.append(name)
    return refused


def total_variation(counts: Tensor, law: Tensor) -> float:
    """Half the L1 distance of counted shares to a law [V]."""
    return float((counts.double() / counts.sum() - law).abs().sum()) / 2


def radius(values: int, number: int, confidence: float = 0.999) -> float:
    """What the total variation of `number` draws over `values` values to their law does not exceed."""
    return math.sqrt(2 * (values * math.log(2) - math.log(1 - confidence)) / number) / 2
