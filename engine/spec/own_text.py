"""The context indexes of the running requests' own texts, kept up with them at a bounded cost a step.

Owns when a text is indexed: about SLICE tokens in one turn over all requests (1 to 4 milliseconds), so that a long
prompt stalls nobody; until it is done, what is indexed already serves. Knows nothing of drafts; never imports torch.
Invariant: an index is of this very request's tokens, of at most one and a half times MAX_TOKENS of them, and gone when
the request ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request
from engine.spec.contexts import ContextIndex

SLICE = 2048  # tokens indexed in one turn, prompts that are new to us
LEAST_SLICE = 64  # tokens of each request, whatever the others need: what a few steps emit
MAX_TOKENS = 32768  # of one text, its last ones


class OwnTexts:
    """One index a request that was ever advanced and has not ended."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        """lengths: of the contexts that are looked up, ascending."""
        self._lengths = lengths
        self._indexes: dict[str, ContextIndex] = {}

    def __len__(self) -> int:
        return len(self._indexes)

    def advance(self, requests: Sequence[Request]) -> None:
        """Indexes what these have that is new."""
        left = SLICE
        for request in requests:
            left -= self._current(request).extend(max(left, LEAST_SLICE))

    def of(self, request: Request) -> ContextIndex:
        """The index of a request that was advanced."""
        return self._indexes[request.request_id]

    def end(self, request: Request) -> bool:
        """Forgets a request; whether it was known."""
        return self._indexes.pop(request.request_id, None) is not None

    def _current(self, request: Request) -> ContextIndex:
        """Its index: a new one at first, where an id came back with another text, and where the text outgrew it."""
        index, tokens = self._indexes.get(request.request_id), request.token_ids
        if index is None or index.tokens is not tokens or index.num_indexed - index.first > MAX_TOKENS * 3 // 2:
            index = ContextIndex(self._lengths, tokens, max(0, len(tokens) - MAX_TOKENS))
            self._indexes[request.request_id] = index
        return index
