"""What all bodies of the API are made of: text that can be encoded, and the two kinds of body.

Owns their strictness. Knows no body. Invariant: a body that comes in refuses what it does not know.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair at character {error.start}: this is not Unicode text") from None
    return text


# what a caller may send as text: JSON can spell halves of surrogate pairs, which neither UTF-8 nor a tokenizer knows
Text = Annotated[str, AfterValidator(encodable)]


class Incoming(BaseModel):
    """Base of every body that comes in."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Outgoing(BaseModel):
    """Base of every body that goes out."""

    model_config = ConfigDict(from_attributes=True)
