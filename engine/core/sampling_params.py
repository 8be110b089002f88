"""How a request wants its tokens drawn. Plain frozen data with its own range checks.

Invariant: a `SamplingParams` that exists is valid; every bad value raises `SamplingError` naming the field. Whether
token ids lie inside a model's vocabulary only an engine can tell: `token_id_fault` asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

GREEDY_TEMPERATURE = 1e-5  # below this a request is greedy (design, section 6)
MAX_LOGPROBS = 20
GUIDED_KINDS = ("json", "json_schema", "regex", "ebnf", "choice", "structural_tag")
LOGPROBS_MODES = ("raw", "processed")


class SamplingError(ValueError):
    """A sampling field out of range. `param` is the field's name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Guided:
    """The language that an answer must belong to.

    kind: "json" (any object; `text` is unused), "json_schema" (a schema), "regex", "ebnf" (a grammar with a rule
    `root`), "choice" (a JSON list of strings), or "structural_tag" (xgrammar's: literal text around JSON under
    schemas).
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in GUIDED_KINDS:
            raise SamplingError("guided", f"guided kind {self.kind!r}: known are {', '.join(GUIDED_KINDS)}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Temperature, penalties, filters, seed, stop conditions and wishes about the output of one request.

    temperature: 0 is greedy. top_k: 0 is off. top_p, typical_p, min_p: shares of probability. seed: unsigned 64-bit,
    None lets the engine pick one (it is returned). stop_token_ids end the answer and are not part of it; ignore_eos
    keeps going past the model's own end tokens, min_tokens keeps either from coming too soon. allowed_token_ids: no
    other token can come, not even an end token; empty: all can. logit_bias is added by token id; bad_words are token id
    sequences that must not appear. repetition_penalty divides, counting prompt and output; presence_penalty and
    frequency_penalty subtract, counting the output. dry_*: see `engine.sample.penalties`, xtc_*: see
    `engine.sample.filters`. logprobs: how many alternatives to report with each output token, 0 for the token alone,
    None for nothing; prompt_logprobs the same for the prompt, always the model's own; logprobs_mode of the output's:
    "raw", the model's own, or "processed", those that were drawn from.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[int, ...] = ()
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: str = "raw"
    guided: Guided | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # a NaN fails this too
                raise SamplingError(name, f"{name}={value}: must lie between {low} and {high}")
        for name in ("top_p", "typical_p", "dry_base"):
            if not getattr(self, name) > 0.0:
                raise SamplingError(name, f"{name}={getattr(self, name)}: must lie above 0")
        if self.min_tokens > self.max_tokens:
            raise SamplingError(
                "min_tokens", f"min_tokens={self.min_tokens}: must be at most max_tokens={self.max_tokens}"
            )
        if not all(-100.0 <= bias <= 100.0 for bias in self.logit_bias.values()):
            raise SamplingError("logit_bias", "logit_bias: every bias must lie between -100 and 100")
        if not all(self.bad_words):
            raise SamplingError("bad_words", "bad_words: every word needs at least one token id")
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise SamplingError(
                "logprobs_mode", f"logprobs_mode={self.logprobs_mode!r}: known are {', '.join(LOGPROBS_MODES)}"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def needs_token_ids(self) -> bool:
        """Whether a draw depends on the tokens before it, other than through the model."""
        return bool(self.bad_words) or (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.dry_multiplier != 0.0
        )

    def token_id_fault(self, vocab_size: int) -> SamplingError | None:
        """What is wrong when a field names a token that the vocabulary does not have."""
        for name, token_id in self._named_token_ids():
            if not 0 <= token_id < vocab_size:
                return SamplingError(
                    name, f"{name}: token id {token_id} lies outside the vocabulary of {vocab_size} tokens"
                )
        return None

    def _named_token_ids(self) -> Iterator[tuple[str, int]]:
        yield from (("stop_token_ids", token_id) for token_id in self.stop_token_ids)
        yield from (("allowed_token_ids", token_id) for token_id in self.allowed_token_ids)
        yield from (("logit_bias", token_id) for token_id in self.logit_bias)
        yield from (("bad_words", token_id) for word in self.bad_words for token_id in word)
        yield from (("dry_sequence_breakers", token_id) for token_id in self.dry_sequence_breakers)


RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 10.0),
    "top_k": (0, 1 << 31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "max_tokens": (1, 1 << 31),
    "min_tokens": (0, 1 << 31),
    "seed": (0, (1 << 64) - 1),
    "repetition_penalty": (0.01, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (0.0, 100.0),
    "dry_allowed_length": (1, 1 << 31),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
