"""The bodies of token inspection, sampling fields and grammar checks: /api/engines/{id}/inspect, /sampling, /grammar.

Owns their fields and ranges. Knows nothing of engines.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.dialects.openai_schemas import ChatCompletionBody, CompletionBody, TokenId
from app.schema_base import Incoming, Outgoing, Text
from engine.core.inspection import MAX_TOP

MAX_PLACES = 16
MAX_GRAMMAR = 200_000  # characters


def _kind(body: Any) -> str:
    return "chat" if isinstance(body, dict) and "messages" in body else "completion"


class InspectBody(Incoming):
    """An answer and the request it answers, to look at how some of its tokens were drawn.

    request: the body as it was sent to /v1/completions (one prompt) or /v1/chat/completions; with the answer's `seed`,
    or the draw is another one. answer_token_ids: `choices[].token_ids` of the answer (ask for them with
    `return_token_ids`). positions: which of them, from 0; their number itself is the place behind the last one.
    sample_index: which of `n` samples. top: how many tokens each list has.
    """

    request: Annotated[
        Annotated[ChatCompletionBody, Tag("chat")] | Annotated[CompletionBody, Tag("completion")],
        Discriminator(_kind),
    ]
    answer_token_ids: Annotated[list[TokenId], Field(max_length=2**18)]
    positions: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_PLACES)]
    sample_index: int = Field(default=0, ge=0, lt=128)
    top: int = Field(default=10, ge=1, le=MAX_TOP)


class Token(Outgoing):
    """A token by its id; text: its spelling, of one that is no text by itself its bytes (`bytes:\\xe2`)."""

    token_id: int
    text: str


class RankedToken(Token):
    """logprob: of the model's own distribution. final_logprob: of what was drawn from; null: it could not come."""

    logprob: float
    final_logprob: float | None


class MovedToken(Token):
    """before, after: its log probability among what stood before the step and behind it; null: it cannot come."""

    before: float
    after: float | None


class Stage(Outgoing):
    """One step of the chain (docs/sampling.md). asked: the request asks for it. num_left: tokens that can still come.
    num_removed, num_changed: what it did here. removed_probability: the share of the removed among what stood before.
    moved: the likeliest of those it removed or changed. logprob, rank: of the token looked at, among what is left."""

    name: str
    asked: bool
    num_left: int
    num_removed: int
    num_changed: int
    removed_probability: float
    moved: list[MovedToken]
    logprob: float | None
    rank: int | None


class Place(Outgoing):
    """One token of the answer. token: null for the place behind the last one; then drawn is what is looked at.

    drawn: what the request's seed draws here. logprob, rank, entropy (nats): in the model's own distribution.
    final_entropy: of the distribution that was drawn from.
    """

    position: int
    token: Token | None
    drawn: Token
    logprob: float
    rank: int
    entropy: float
    final_entropy: float
    top: list[RankedToken]
    stages: list[Stage]


class Inspected(Outgoing):
    """exactness: "bits": logits are those of the answer, bit for bit; "distribution": equal up to rounding. seeded:
    whether the request named a seed, so that `drawn` is what the answer's draw gave."""

    exactness: str
    exactness_reason: str
    seeded: bool
    places: list[Place]


class SamplingField(Outgoing):
    """value: what holds where a request does not say. source: "generation_config" (the model's own file), "catalogue",
    or "engine". minimum, maximum: what the engine takes."""

    name: str
    value: float | None
    source: Literal["generation_config", "catalogue", "engine"]
    minimum: float
    maximum: float


class SamplingFieldList(Outgoing):
    model_id: str
    max_model_len: int
    fields: list[SamplingField]


class GrammarBody(Incoming):
    """kind and text of a grammar: a JSON schema, a regular expression, an EBNF grammar, a JSON list of texts."""

    kind: Literal["json_schema", "regex", "ebnf", "choice"]
    text: Annotated[Text, Field(max_length=MAX_GRAMMAR)]


class GrammarVerdict(Outgoing):
    """usable: an answer can be held to it. Else message says why, and the place where it is known: line and column of
    the text from 1, or the path inside a schema."""

    usable: bool
    message: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None
