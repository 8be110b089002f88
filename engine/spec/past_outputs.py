"""Answers of requests that have ended, for drafts of those to come.

Owns the token budget: over all salts together the oldest answers go first; a token takes some 260 bytes. Answers of one
cache salt are seen by requests of that salt alone. Holds output tokens only, never a prompt. Knows nothing of drafts;
never imports torch.
Invariant: `num_tokens <= max_tokens`; a salt with no answer left has no index.
"""

from __future__ import annotations

from collections import deque

from engine.spec.contexts import ContextIndex


class PastOutputs:
    """One context index a salt, and the order in which the answers came."""

    def __init__(self, lengths: tuple[int, ...], max_tokens: int) -> None:
        """lengths: of contexts, ascending. max_tokens: kept in all; 0: none. ValueError when negative."""
        if max_tokens < 0:
            raise ValueError(f"max_tokens={max_tokens}: give the tokens of past answers to keep, 0 for none")
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._lengths = lengths
        self._indexes: dict[str, ContextIndex] = {}
        self._order: deque[tuple[str, int]] = deque()  # salt and length of each answer, oldest first

    def __len__(self) -> int:
        return len(self._order)

    def add(self, salt: str, output: list[int]) -> None:
        """Keeps an answer, of one that exceeds the budget its last tokens. Too short ones teach nothing."""
        output = output[max(0, len(output) - self.max_tokens) :]
        if len(output) <= self._lengths[0]:
            return
        while self.num_tokens + len(output) > self.max_tokens:
            self._drop_oldest()
        if salt not in self._indexes:
            self._indexes[salt] = ContextIndex(self._lengths, [])
        self._indexes[salt].append(output)
        self._order.append((salt, len(output)))
        self.num_tokens += len(output)

    def of(self, salt: str) -> ContextIndex | None:
        """The index of a salt's answers, None where there are none."""
        return self._indexes.get(salt)

    def clear(self) -> None:
        """Forgets everything."""
        self._indexes.clear()
        self._order.clear()
        self.num_tokens = 0

    def _drop_oldest(self) -> None:
        salt, length = self._order.popleft()
        index = self._indexes[salt]
        index.drop_oldest(length)
        self.num_tokens -= length
        if not index.tokens:
            del self._indexes[salt]
