"""How a request wants its tokens drawn. Plain frozen data with its own range checks.

Invariant: a `SamplingParams` that exists is valid; every bad value raises `SamplingError` naming the field.
"""

from __future__ import annotations

from dataclasses import dataclass

GREEDY_TEMPERATURE = 1e-5  # below this a request is greedy (design, section 6)


class SamplingError(ValueError):
    """A sampling field out of range. `param` is the field's name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Temperature, filters, seed and stop conditions of one request.

    temperature: 0 is greedy. top_k: 0 is off. top_p, min_p: shares of probability. seed: unsigned 64-bit, None lets the
    engine pick one (it is returned). stop_token_ids end the answer and are not part of it; ignore_eos keeps going past
    the model's own end tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _between("temperature", self.temperature, 0.0, 10.0)
        _between("top_k", self.top_k, 0, 1 << 31)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("max_tokens", self.max_tokens, 1, 1 << 31)
        if not 0.0 < self.top_p <= 1.0:
            raise SamplingError("top_p", f"top_p={self.top_p}: must lie in (0, 1]")
        if self.seed is not None:
            _between("seed", self.seed, 0, (1 << 64) - 1)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # a NaN fails this too
        raise SamplingError(name, f"{name}={value}: must lie between {low} and {high}")
