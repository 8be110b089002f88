"""What the fake engine says of a token that is inspected: figures that follow from ids and places alone.

The followed token's log probability is minus its place in the answer, counted from 1; its rank is that place. The
listed tokens are the ids from the followed one on, a nat apart. The grammar, where there is one, leaves 7 tokens; top_k
leaves as many as asked for.
"""

from __future__ import annotations

from engine.core.inspection import ChainStage, Inspection, MovedToken
from engine.protocol import AddRequest

STAGES = (
    "logit_bias", "bad_words", "repetition_penalty", "presence_frequency", "dry", "grammar", "allowed_token_ids",
    "min_tokens", "temperature", "top_k", "top_p", "typical_p", "min_p", "xtc",
)  # fmt: skip
VOCABULARY = 320


def fake_inspection(request: AddRequest, drawn: int) -> Inspection:
    """Of a request with `inspect`."""
    assert request.inspect is not None
    wish, sampling = request.inspect, request.sampling
    place = len(request.prompt_token_ids) - wish.num_prompt_tokens + 1
    followed = drawn if wish.token_id is None else wish.token_id
    listed = [(followed + number) % VOCABULARY for number in range(wish.top)]
    logprobs = [-float(place + number) for number in range(wish.top)]
    left, stages = VOCABULARY, []
    for name in STAGES:
        asked = (name == "top_k" and sampling.top_k > 0) or (name == "grammar" and sampling.guided is not None)
        now = min(left, (7 if name == "grammar" else sampling.top_k) if asked else left)
        moved = [MovedToken(listed[-1], logprobs[-1], None)] if now < left else []
        share = 0.25 if now < left else 0.0
        stages.append(ChainStage(name, asked, now, left - now, 0, share, moved, logprobs[0], place))
        left = now
    final: list[float | None] = [*logprobs[:-1], None]
    return Inspection(followed, drawn, logprobs[0], place, 1.5, 1.25, listed, logprobs, final, stages)
