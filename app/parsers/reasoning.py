"""Thoughts before an answer: `<think>...</think>` and its kin.

Owns the cut between thoughts and the answer. Knows nothing of what the answer holds. Invariant: thoughts come first or
not at all; a mark inside the answer is the answer's text. White space at the edges of the thoughts is dropped.
"""

from __future__ import annotations

from typing import Any

from app.parsers.base import ContentDelta, Parser, ReasoningDelta, Script


class ReasoningParser(Parser):
    """Thoughts between two marks. opened: the prompt has written the first mark."""

    begin = "<think>"
    end = "</think>"

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        super().__init__()

    @classmethod
    def opened_by(cls, prompt: str) -> bool:
        """Whether a prompt ends in the first mark."""
        return prompt.rstrip().endswith(cls.begin)

    @classmethod
    def left_open_by(cls, answer: str) -> bool:
        """Whether the beginning of an answer ends within its thoughts."""
        return cls.begin in answer and cls.end not in answer[answer.rindex(cls.begin) :]

    @classmethod
    def thought_format(cls, *, opened: bool) -> dict[str, Any]:
        """xgrammar's structural tag for the thoughts, which may be left out where the prompt has not begun them."""
        thoughts = {"type": "any_text", "excludes": [cls.end]}
        content = {"type": "tag", "begin": "" if opened else cls.begin, "content": thoughts, "end": f"{cls.end}\n\n"}
        return content if opened else {"type": "optional", "content": content}

    def _script(self) -> Script[None]:
        before = yield from self._spaces()
        if not self._opened:
            seen = yield from self._mark(self.begin)
            if seen != self.begin:
                self._emit(ContentDelta(before + seen))
                yield from self._answer()
                return
            yield from self._spaces()
        yield from self._thoughts()
        yield from self._spaces()
        yield from self._answer()

    def _thoughts(self) -> Script[None]:
        """Up to the second mark, which is taken, or the end."""
        held = space = ""
        while (yield from self._reader.peek()) is not None:
            held += yield from self._reader.take()
            if held == self.end:
                return
            while not self.end.startswith(held):
                if held[0].isspace():
                    space += held[0]
                else:
                    self._emit(ReasoningDelta(space + held[0]))
                    space = ""
                held = held[1:]
        if held:
            self._emit(ReasoningDelta(space + held))

    def _answer(self) -> Script[None]:
        while (yield from self._reader.peek()) is not None:
            self._emit(ContentDelta((yield from self._reader.take())))

    def _mark(self, mark: str) -> Script[str]:
        """As much of a mark as comes next."""
        seen = ""
        while seen != mark and (yield from self._reader.peek()) == mark[len(seen)]:
            seen += yield from self._reader.take()
        return seen

    def _spaces(self) -> Script[str]:
        spaces = ""
        while (char := (yield from self._reader.peek())) is not None and char.isspace():
            spaces += yield from self._reader.take()
        return spaces


class MistralReasoning(ReasoningParser):
    begin = "[THINK]"
    end = "[/THINK]"


class CommandReasoning(ReasoningParser):
    begin = "<|START_THINKING|>"
    end = "<|END_THINKING|>"


class SeedReasoning(ReasoningParser):
    begin = "<seed:think>"
    end = "</seed:think>"
