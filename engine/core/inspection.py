"""One place of an answer under the glass: what is asked about it, and what the chain of the draw did there.

Plain frozen data, encodable by msgspec, no torch. Who fills it in, `engine.sample.inspection` does, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_TOP = 100


@dataclass(frozen=True, slots=True)
class InspectionWish:
    """Asks for the chain behind one token of an answer.

    num_prompt_tokens: how many of the request's tokens are its prompt; the others are the answer before the place.
    sample_index: which of several samples the answer was. token_id: the token to follow through the chain; None: the
    one that is drawn. top: how many tokens are listed.
    """

    num_prompt_tokens: int
    sample_index: int = 0
    token_id: int | None = None
    top: int = 10

    def fault(self, num_tokens: int, vocab_size: int, *, alone: bool) -> str | None:
        """Why a request of that many tokens cannot be inspected so, or None. alone: it is one sample, and draws."""
        if not alone:
            return "inspect: goes with neither n above 1 nor pooling; sample_index names one of several samples"
        if not 0 < self.num_prompt_tokens <= num_tokens:
            return f"inspect: {self.num_prompt_tokens} prompt tokens of {num_tokens}: the answer follows the prompt"
        if not 1 <= self.top <= MAX_TOP:
            return f"inspect: top={self.top}: must lie between 1 and {MAX_TOP}"
        if self.token_id is not None and not 0 <= self.token_id < vocab_size:
            return f"inspect: token id {self.token_id} lies outside the vocabulary of {vocab_size} tokens"
        return None


@dataclass(frozen=True, slots=True)
class MovedToken:
    """A token that a stage changed or removed: its log probability among what stood before, and behind it."""

    token_id: int
    before: float
    after: float | None  # None: it cannot come any more


@dataclass(frozen=True, slots=True)
class ChainStage:
    """What one step of the chain did to the scores.

    asked: whether the request asks for it. num_left: tokens that can still come behind it. num_removed, num_changed:
    tokens that could come before it, and cannot now, or have another score. removed_probability: the share of the
    former among what stood before. moved: the likeliest of both. logprob, rank: of the token that is followed, among
    what is left; None where it is not.
    """

    name: str
    asked: bool
    num_left: int
    num_removed: int = 0
    num_changed: int = 0
    removed_probability: float = 0.0
    moved: list[MovedToken] = field(default_factory=list)
    logprob: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """The chain behind one token, in the order of the draw.

    token_id: the one that was followed; drawn_token_id: the one that the request's own seed draws. logprob, rank,
    entropy (nats), top_*: of the model's own distribution, the softmax of its logits in fp32, before any stage; ties go
    to the lowest id. final_entropy: of what the token is drawn from; top_final_logprobs: of top_token_ids in there,
    None where a token cannot come. stages: every step of the chain, whether asked for or not.
    """

    token_id: int
    drawn_token_id: int
    logprob: float
    rank: int
    entropy: float
    final_entropy: float
    top_token_ids: list[int]
    top_logprobs: list[float]
    top_final_logprobs: list[float | None]
    stages: list[ChainStage]
