"""From a conversation's tree to the messages of a prompt.

Owns the walk up the tree, the rules of who may follow whom, the form that attached texts take, and the title of a
conversation that was given none. Knows nothing of engines, of rows being written, or of HTTP. Invariant: what was
attached is in the prompt word for word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import ApiError
from db.rows import MessageRow

TITLE_LENGTH = 60

_BACKTICKS = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class Turns:
    """What is to be answered. path: the messages that the prompt has, the last one a question, or with `continues` the
    answer that is gone on with; asked_id: the question that the new answer belongs under."""

    path: list[MessageRow]
    asked_id: str
    continues: MessageRow | None = None


def path_to(messages: Sequence[MessageRow], leaf_id: str | None) -> list[MessageRow]:
    """From the root to `leaf_id`. Raises ApiError where there is no such message."""
    by_id = {message.id: message for message in messages}
    if leaf_id is not None and leaf_id not in by_id:
        raise ApiError(404, f"message {leaf_id!r} is not in this conversation", param="parent_id")
    path: list[MessageRow] = []
    while leaf_id is not None:
        path.append(by_id[leaf_id])
        leaf_id = by_id[leaf_id].parent_id
    return path[::-1]


def asking(path: list[MessageRow], question: MessageRow) -> Turns:
    """A new question at the end of a path."""
    if path and path[-1].role == "user":
        raise ApiError(400, "a user message cannot follow another", param="parent_id")
    return Turns([*path, question], question.id)


def answering(path: list[MessageRow]) -> Turns:
    """Another answer to the question at the end of a path, or more of the answer there."""
    if not path:
        raise ApiError(
            400,
            "without content, parent_id must name the question to answer, or the answer to go on with",
            param="parent_id",
        )
    last = path[-1]
    if last.role == "user":
        return Turns(path, last.id)
    if not last.content:
        detail = "this answer has no text to go on from"
        raise ApiError(400, detail, param="parent_id", remedy="Ask the question again")
    if last.parent_id is None:
        raise ApiError(400, "an answer without a question cannot be gone on with", param="parent_id")
    return Turns(path, last.parent_id, continues=last)


def for_template(system_prompt: str, turns: Turns) -> list[dict[str, str]]:
    """The messages as a chat template takes them."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    last = [] if turns.continues is None else [{"role": "assistant", "content": turns.continues.content}]
    before = turns.path if turns.continues is None else turns.path[:-1]
    return [*system, *map(_turn, before), *last]


def _turn(message: MessageRow) -> dict[str, str]:
    """Thoughts the template gets to know, and most leave those of earlier turns out."""
    thoughts = {"reasoning_content": message.reasoning_content} if message.reasoning_content else {}
    return {"role": message.role, "content": with_attachments(message.content, message.attachments), **thoughts}


def with_attachments(content: str, attachments: Sequence[Mapping[str, Any]] | None) -> str:
    """A question behind the texts that belong to it."""
    if not attachments:
        return content
    return "\n\n".join([*(fenced(each["name"], each["text"]) for each in attachments), content])


def fenced(name: str, text: str) -> str:
    """A text under its name, in a fence that is longer than any within it."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{name}:\n{fence}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"


def title_of(question: str) -> str:
    """What a conversation is called that begins with this and has no title."""
    line = " ".join(question.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"
