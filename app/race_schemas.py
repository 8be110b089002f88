"""The body that starts a race.

Owns its fields, types and ranges. Knows nothing of how a race is run.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.schema_base import Incoming, Text

MAX_TOKENS = 512  # of one answer: the result keeps when each of its tokens came


class RaceMessage(Incoming):
    """One message of a chat."""

    role: Annotated[Text, Field(pattern="^(system|user|assistant)$")]
    content: Annotated[Text, Field(max_length=200_000)]


class RaceBody(Incoming):
    """The same answer, plain and with drafts, one after the other.

    prompt, or messages: what is answered. seed: of every run; absent: one is picked. proposer: who drafts; absent: the
    engine's own choice. num_speculative_tokens: at most so many drafts a step. repeats: timed runs of each way.
    warm_up: untimed runs of each way before; the first of them records by how much each token was ahead of the next.
    """

    prompt: Annotated[Text, Field(min_length=1, max_length=200_000)] | None = None
    messages: Annotated[list[RaceMessage], Field(min_length=1, max_length=100)] | None = None
    max_tokens: int = Field(default=128, ge=2, le=MAX_TOKENS)
    temperature: float = Field(default=0.0, ge=0, le=10)
    seed: int | None = Field(default=None, ge=0, lt=2**53)
    proposer: Text | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=15)
    repeats: int = Field(default=5, ge=1, le=20)
    warm_up: int = Field(default=1, ge=1, le=5)
