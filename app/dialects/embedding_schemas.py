"""The body of /v1/embeddings.

Owns its fields, and the list of inputs that its `input` means. Knows nothing of how embeddings are made. Invariant: an
input that leaves here is one text, or the ids of one, and not empty.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.dialects.openai_schemas import OpenAIBody, TokenId
from app.errors import ApiError
from app.schemas import Text

MAX_INPUTS = 2048  # of one call, as OpenAI has it

Input = str | list[int]


class EmbeddingBody(OpenAIBody):
    """One input or several, each a text or token ids."""

    input: Text | list[TokenId] | list[Text] | list[list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["last", "mean"] | None = None
    dimensions: int | None = None
    cache_salt: Annotated[Text, Field(min_length=1, max_length=1000)] | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)

    def checked(self) -> list[str]:
        if self.dimensions is not None:
            raise ApiError(
                400,
                "dimensions is not supported: only the vectors of a model that was trained for it keep their meaning "
                "when they are cut",
                param="dimensions",
                remedy="Leave it out",
                code="unsupported_parameter",
            )
        return super().checked()

    @property
    def inputs(self) -> dict[str, Input]:
        """Every input under the name that an error calls it by."""
        several = [] if isinstance(self.input, str) else [each for each in self.input if isinstance(each, str | list)]
        given: dict[str, Input] = {f"input.{index}": each for index, each in enumerate(several)}
        if not several:
            ids = [each for each in self.input if isinstance(each, int)]
            given = {"input": self.input if isinstance(self.input, str) else ids}
        if len(given) > MAX_INPUTS:
            detail = f"{len(given)} inputs in one call; at most {MAX_INPUTS} are taken"
            raise ApiError(400, detail, param="input", remedy="Send them in several calls", code="invalid_value")
        empty = next((name for name, each in given.items() if not each), None)
        if empty is not None:
            remedy = "Leave it out, or give it at least one token"
            raise ApiError(400, f"{empty} is empty", param=empty, remedy=remedy, code="empty_prompt")
        return given
