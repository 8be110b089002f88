"""An answer's text as the items of /v1/responses, and the events that tell of them.

Owns which delta belongs to which item, the items' fields and the order of their events. Knows nothing of responses or
engines. Invariant: an item is told of from its beginning to its end before the next one begins, its deltas joined are
what it holds, and neither depends on how the text was cut.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from app.dialects.content_tokens import ContentTokens
from app.parsers.answer import AnswerParser
from app.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from app.sample_text import TokenLogprob

Event = dict[str, Any]
ShowLogprobs = Callable[[Sequence[TokenLogprob]], list[dict[str, Any]]]


class OutputItem(ABC):
    """One item as it grows. `status`: "in_progress" until it is closed."""

    prefix: str
    delta_name: str

    def __init__(self, index: int, response_id: str) -> None:
        self.id = f"{self.prefix}_{response_id}_{index}"
        self.index = index
        self.status = "in_progress"
        self._texts: list[str] = []
        self._unsent: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The item, as far as it has come."""

    def opening(self) -> list[Event]:
        return [self._item_event("added")]

    def grow(self, text: str) -> None:
        self._texts.append(text)
        self._unsent.append(text)

    def news(self) -> list[Event]:
        """The event for what it has grown by since the last one."""
        delta, self._unsent = "".join(self._unsent), []
        return [self._event(f"{self.delta_name}.delta", delta=delta)] if delta else []

    def closing(self, *, cut: bool) -> list[Event]:
        """cut: the answer ended before it wanted to."""
        last = self.news()
        self.status = "incomplete" if cut else "completed"
        return [*last, *self._done(), self._item_event("done")]

    @abstractmethod
    def _done(self) -> list[Event]:
        """What is told of its text between the last delta and the item's end."""

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.index, **fields}

    def _item_event(self, kind: str) -> Event:
        return {"type": f"response.output_item.{kind}", "output_index": self.index, "item": self.fields()}


class PartItem(OutputItem):
    """An item whose text lies in its one part."""

    def __init__(self, index: int, response_id: str) -> None:
        super().__init__(index, response_id)
        self._has_part = False

    @abstractmethod
    def part(self) -> dict[str, Any]:
        """The part, as far as it has come."""

    def opening(self) -> list[Event]:
        first = super().opening()
        self._has_part = True  # which is told of after the item
        return [*first, self._event("content_part.added", part=self.part())]

    def parts(self) -> list[dict[str, Any]]:
        return [self.part()] if self._has_part else []

    def _done(self) -> list[Event]:
        told = {name: value for name, value in self.part().items() if name in ("text", "logprobs")}
        return [self._event(f"{self.delta_name}.done", **told), self._event("content_part.done", part=self.part())]

    def _event(self, kind: str, **fields: Any) -> Event:
        return super()._event(kind, content_index=0, **fields)


class Thoughts(PartItem):
    prefix, delta_name = "rs", "reasoning_text"

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}

    def fields(self) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "summary": [], "content": self.parts(), "status": self.status}


class Message(PartItem):
    prefix, delta_name = "msg", "output_text"

    def __init__(self, index: int, response_id: str) -> None:
        super().__init__(index, response_id)
        self._logprobs: list[dict[str, Any]] = []
        self._unsent_logprobs: list[dict[str, Any]] = []

    def add_logprobs(self, logprobs: list[dict[str, Any]]) -> None:
        self._logprobs += logprobs
        self._unsent_logprobs += logprobs

    def news(self) -> list[Event]:
        delta, self._unsent = "".join(self._unsent), []
        logprobs, self._unsent_logprobs = self._unsent_logprobs, []
        return [self._event("output_text.delta", delta=delta, logprobs=logprobs)] if delta or logprobs else []

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}

    def fields(self) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "status": self.status}
        return {**head, "content": self.parts()}


class Call(OutputItem):
    """A call. It is complete if its arguments are, however the answer ended."""

    prefix, delta_name = "fc", "function_call_arguments"

    def __init__(self, index: int, response_id: str, call_id: str, name: str) -> None:
        super().__init__(index, response_id)
        self._call_id, self._name = call_id, name

    def fields(self) -> dict[str, Any]:
        called = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
        return {"id": self.id, "type": "function_call", **called, "status": self.status}

    def closing(self, *, cut: bool) -> list[Event]:  # noqa: ARG002 - see the class
        return super().closing(cut=not _is_object(self.text))

    def _done(self) -> list[Event]:
        return [self._event("function_call_arguments.done", name=self._name, arguments=self.text)]


class OutputItems:
    """The items of one answer. show: how log probabilities look; None: none are shown."""

    def __init__(self, parser: AnswerParser, response_id: str, show: ShowLogprobs | None = None) -> None:
        self._parser = parser
        self._response_id = response_id
        self._show = show
        self._tokens = ContentTokens()
        self._items: list[OutputItem] = []

    @property
    def has_thoughts(self) -> bool:
        return any(isinstance(item, Thoughts) for item in self._items)

    @property
    def has_answer(self) -> bool:
        """Whether anything but thoughts has begun."""
        return not all(isinstance(item, Thoughts) for item in self._items)

    def break_off(self) -> None:
        """The text goes on no more, and nobody is told."""
        if self._items and self._items[-1].status == "in_progress":
            self._items[-1].status = "incomplete"

    def output(self) -> list[dict[str, Any]]:
        return [item.fields() for item in self._items]

    def feed(self, text: str, tokens: Sequence[TokenLogprob] = ()) -> list[Event]:
        """The events of a piece of the text."""
        events: list[Event] = []
        if self._show is None:
            events += self._take(self._parser.feed(text))
        else:
            self._tokens.arrive(tokens)
            for char in text:  # one at a time, so that it is known what each token became
                self._tokens.pass_one(char)
                events += self._take(self._parser.feed(char))
        return events + (self._items[-1].news() if self._items else [])

    def finish(self, *, cut: bool) -> list[Event]:
        """The events of the text's end. cut: the answer ended before it wanted to."""
        self._tokens.pass_all()
        events = self._take(self._parser.finish())
        if self._items and isinstance(last := self._items[-1], Message):
            self._add_logprobs(last, self._tokens.of_end())
        if not self._items:
            events += self._begin(Message(0, self._response_id))
        return events + self._items[-1].closing(cut=cut)

    def _take(self, deltas: Iterable[Delta]) -> list[Event]:
        events: list[Event] = []
        for delta in deltas:
            fits = bool(self._items) and _continues(self._items[-1], delta)
            if not fits:
                events += self._begin(self._item_for(delta))
            item = self._items[-1]
            text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
            item.grow(text)
            if isinstance(item, Message):
                take = self._tokens.of_more_content if fits else self._tokens.of_new_content
                self._add_logprobs(item, take(text))
            else:
                self._tokens.drop()
        return events

    def _begin(self, item: OutputItem) -> list[Event]:
        """End the item that was open, open another."""
        closing = self._items[-1].closing(cut=False) if self._items else []
        self._items.append(item)
        return [*closing, *item.opening()]

    def _item_for(self, delta: Delta) -> OutputItem:
        index = len(self._items)
        if isinstance(delta, ToolCallDelta):
            assert delta.id is not None, "a call begins with its id"
            return Call(index, self._response_id, delta.id, delta.name or "")
        return (Message if isinstance(delta, ContentDelta) else Thoughts)(index, self._response_id)

    def _add_logprobs(self, message: Message, tokens: Sequence[TokenLogprob]) -> None:
        if self._show is not None and tokens:
            message.add_logprobs(self._show(tokens))


def _continues(item: OutputItem, delta: Delta) -> bool:
    if isinstance(delta, ToolCallDelta):
        return isinstance(item, Call) and delta.id is None
    return isinstance(item, Thoughts if isinstance(delta, ReasoningDelta) else Message)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
