"""Which tokens an answer's content is made of, where thoughts and calls stand beside it.

Owns the way from characters back to tokens. Knows nothing of parsers but that they hold back what may become a mark.
Invariant: content's tokens are told in their order and once; those of marks and of what is no content are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from app.sample_text import TokenLogprob

MARK_ENDS = frozenset(">]})")  # thoughts and calls end in one of these, or in white space behind it


@dataclass(slots=True)
class _Passed:
    """A token whose text has begun, and as much of it as has passed."""

    token: TokenLogprob
    text: str = ""


class ContentTokens:
    """Follows one answer: its tokens arrive, its characters pass, and then some of them turn out to be content."""

    def __init__(self) -> None:
        self._coming: deque[TokenLogprob] = deque()
        self._undecided: deque[_Passed] = deque()
        self._num_passed = 0
        self._num_ahead = 0  # characters of the last token taken that are not out yet

    def arrive(self, tokens: Iterable[TokenLogprob]) -> None:
        """Tokens in their order, each no later than its first character."""
        self._coming.extend(tokens)

    def pass_one(self, char: str) -> None:
        """The text's next character."""
        while self._coming and self._coming[0].offset <= self._num_passed:
            self._undecided.append(_Passed(self._coming.popleft()))
        if self._undecided:
            self._undecided[-1].text += char
        self._num_passed += 1

    def pass_all(self) -> None:
        """The text has ended: what is still coming has none."""
        self._undecided.extend(map(_Passed, self._coming))
        self._coming.clear()

    def of_new_content(self, text: str) -> list[TokenLogprob]:
        """Content has begun with this text: before it were marks; what is behind it stays undecided."""
        start = self._start_of(text)
        return self._taken(start, start + len(text))

    def of_more_content(self, text: str) -> list[TokenLogprob]:
        """Content has gone on with this text; what is behind it stays undecided."""
        return self._taken(0, len(text) - self._num_ahead)

    def of_end(self) -> list[TokenLogprob]:
        """The answer has ended with content: all that is left."""
        return self._taken(0, sum(len(passed.text) for passed in self._undecided) + 1)

    def drop(self) -> None:
        """It was no content."""
        self._undecided.clear()

    def _taken(self, start: int, end: int) -> list[TokenLogprob]:
        """The tokens of these characters of the undecided text, which is decided up to there."""
        tokens: list[TokenLogprob] = []
        place = 0
        character: list[TokenLogprob] = []  # tokens up to one with text: the others are first bytes of its character
        while self._undecided and place < end:
            passed = self._undecided.popleft()
            character.append(passed.token)
            place += len(passed.text)
            if passed.text or not self._undecided:
                tokens += character if place > start else []
                character = []
        self._num_ahead = max(0, place - end)
        return tokens

    def _start_of(self, text: str) -> int:
        """Where in the undecided text this begins: at its start or behind a mark, the last such place."""
        undecided = "".join(passed.text for passed in self._undecided)
        start = undecided.rfind(text)
        while start > 0 and not (undecided[start - 1] in MARK_ENDS or undecided[start - 1].isspace()):
            start = undecided.rfind(text, 0, start + len(text) - 1)
        return max(start, 0)
