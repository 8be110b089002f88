"""Conversations as files: written for people (Markdown) and whole (JSON), and read back.

Owns both formats and what is accepted of others: a list of messages as OpenAI's API has them. Knows nothing of HTTP or
of the database. Invariants: what was exported as JSON comes back with every branch, text and figure; as Markdown with
every text of the branch that was shown. A file that cannot be read is refused with the place of the fault.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, ValidationError

from app.conversation_schemas import MAX_ATTACHMENTS, MAX_IMPORTED_MESSAGES, Attachment, Role, Sampling
from app.conversation_turns import path_to, title_of, with_attachments
from app.errors import ApiError
from app.schema_base import Incoming, Text
from db.rows import ConversationRow, MessageRow

FORMATS = {"json": "application/json", "md": "text/markdown; charset=utf-8"}
KIND = "pizarra.conversation"

_MARK = re.compile(r"<!-- pizarra:(title|system|user|assistant)(?: [^>]*)? -->")
_LOOKS_LIKE_A_MARK = re.compile(r"^(\\*)(<!-- pizarra:)", re.MULTILINE)
_ESCAPED_MARK = re.compile(r"^\\(\\*<!-- pizarra:)", re.MULTILINE)


class _Message(Incoming):
    """One of a file. `id` and `parent_id` mean something within the file alone."""

    id: Text
    parent_id: Text | None
    role: Role
    content: Text
    reasoning_content: Text = ""
    attachments: list[Attachment] | None = Field(default=None, max_length=MAX_ATTACHMENTS)
    state: Literal["complete", "interrupted", "failed", "streaming"] = "complete"
    finish_reason: Text | None = None
    error: Text | None = None
    model_id: Text | None = None
    request_id: Text | None = None
    stats: dict[str, Any] | None = None
    created_at: float = 0.0


class _File(Incoming):
    format: Literal["pizarra.conversation"]
    version: Literal[1]
    title: Text = Field(default="", max_length=200)
    folder: Text = Field(default="", max_length=100)
    system_prompt: Text = ""
    sampling: Sampling = Sampling()
    model_id: Text | None = None
    active_leaf_id: Text | None = None
    messages: list[_Message] = Field(default=[], max_length=MAX_IMPORTED_MESSAGES)


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file holds. `rows` makes it a conversation's own."""

    title: str = ""
    folder: str = ""
    system_prompt: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    model_id: str | None = None
    leaf: int | None = None  # which message is the last one shown; None: the last one
    messages: list[_Message] = field(default_factory=list)

    def rows(self, conversation_id: str) -> list[MessageRow]:
        """The messages under new ids, in the file's order."""
        ids = {message.id: uuid.uuid4().hex for message in self.messages}
        now = time.time()
        return [
            MessageRow(
                id=ids[each.id],
                conversation_id=conversation_id,
                parent_id=None if each.parent_id is None else ids[each.parent_id],
                role=each.role,
                content=each.content,
                state="interrupted" if each.state == "streaming" else each.state,
                created_at=each.created_at or now,
                finish_reason=each.finish_reason,
                error=each.error,
                model_id=each.model_id,
                request_id=each.request_id,
                stats=each.stats,
                reasoning_content=each.reasoning_content,
                attachments=[item.model_dump() for item in each.attachments] if each.attachments else None,
            )
            for each in self.messages
        ]

    def active_leaf_id(self, rows: Sequence[MessageRow]) -> str:
        """Of the rows made of it, the one that was shown last."""
        return rows[-1 if self.leaf is None else self.leaf].id


def exported(row: ConversationRow, messages: Sequence[MessageRow], form: str) -> str:
    """The text of a file."""
    return _as_json(row, messages) if form == "json" else _as_markdown(row, messages)


def _as_json(row: ConversationRow, messages: Sequence[MessageRow]) -> str:
    names = tuple(_Message.model_fields)
    document = {
        "format": KIND,
        "version": 1,
        **{name: getattr(row, name) for name in ("title", "folder", "system_prompt", "sampling", "model_id")},
        "active_leaf_id": row.active_leaf_id,
        "messages": [{name: getattr(message, name) for name in names} for message in messages],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _as_markdown(row: ConversationRow, messages: Sequence[MessageRow]) -> str:
    parts = [f"<!-- pizarra:title -->\n# {row.title or 'Chat'}"]
    if row.system_prompt:
        parts.append(f"<!-- pizarra:system -->\n{_escaped(row.system_prompt)}")
    for message in path_to(messages, row.active_leaf_id):
        who = f" {message.model_id}" if message.model_id and re.fullmatch(r"[\w.-]+", message.model_id) else ""
        text = with_attachments(message.content, message.attachments)
        parts.append(f"<!-- pizarra:{message.role}{who} -->\n{_escaped(text)}")
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return _LOOKS_LIKE_A_MARK.sub(r"\\\1\2", text)


def imported(text: str) -> Imported:
    """What a file's text holds. Raises ApiError, saying what is wrong with it."""
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _refused(f"the file is not usable JSON: {error}") from error
        return _from_json(document)
    return _from_markdown(text)


def _refused(detail: str) -> ApiError:
    remedy = "Give a chat that was exported as JSON or Markdown, or a JSON list of messages with role and content"
    return ApiError(400, detail, param="text", remedy=remedy, code="bad_file")


def _from_json(document: Any) -> Imported:
    if isinstance(document, dict) and document.get("format") == KIND:
        try:
            return _checked(_File.model_validate(document))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise _refused(f"the file is no such conversation: {where}: {first['msg']}") from error
    turns = document.get("messages") if isinstance(document, dict) else document
    if not isinstance(turns, list):
        raise _refused("the file holds neither an exported chat nor a list of messages")
    found = []
    for place, turn in enumerate(turns):
        if not isinstance(turn, dict) or not isinstance(turn.get("content"), str):
            raise _refused(f"messages.{place}: needs a role, and a content that is a text")
        found.append((turn.get("role"), turn["content"], None))
    return _linear("", found)


def _checked(document: _File) -> Imported:
    """Every parent stands before its child, and questions and answers take turns."""
    known: dict[str, _Message] = {}
    for number, message in enumerate(document.messages):
        where = f"messages.{number}"
        if message.id in known:
            raise _refused(f"{where}.id: {message.id!r} is there twice")
        parent = None
        if message.parent_id is not None:
            parent = known.get(message.parent_id)
            if parent is None:
                raise _refused(f"{where}.parent_id: no message before it has the id {message.parent_id!r}")
        if message.role == (parent.role if parent is not None else "assistant"):
            raise _refused(f"{where}.role: {message.role!r} cannot stand there; questions and answers take turns")
        known[message.id] = message
    places = {message.id: number for number, message in enumerate(document.messages)}
    return Imported(
        document.title,
        document.folder,
        document.system_prompt,
        document.sampling.model_dump(exclude_none=True),
        document.model_id,
        places.get(document.active_leaf_id or ""),
        document.messages,
    )


def _from_markdown(text: str) -> Imported:
    """The marks of an export divide the text."""
    marks = [mark for mark in _MARK.finditer(text) if _is_alone(text, mark)]
    if not marks:
        raise _refused("the file has none of the marks that an exported chat has, such as <!-- pizarra:user -->")
    title, turns = "", []
    for number, mark in enumerate(marks):
        end = marks[number + 1].start() if number + 1 < len(marks) else len(text)
        body = text[mark.end() : end].removeprefix("\n")
        body = body.removesuffix("\n\n") if number + 1 < len(marks) else body.removesuffix("\n")
        if mark[1] == "title":
            title = body.removeprefix("# ").strip()
        else:
            model = mark[0].removesuffix(" -->").partition(" ")[2].partition(" ")[2] or None
            turns.append((mark[1], _ESCAPED_MARK.sub(r"\1", body), model))
    return _linear(title[:200], turns)


def _is_alone(text: str, mark: re.Match[str]) -> bool:
    """Whether it has its line for itself."""
    start, end = mark.span()
    return (start == 0 or text[start - 1] == "\n") and (end == len(text) or text[end] == "\n")


def _linear(title: str, turns: Sequence[tuple[Any, str, str | None]]) -> Imported:
    """Turns one after the other, behind a system prompt if there is one."""
    system = ""
    messages: list[_Message] = []
    if len(turns) > MAX_IMPORTED_MESSAGES + 1:
        raise _refused(f"the file holds {len(turns)} messages, and no more than {MAX_IMPORTED_MESSAGES} are taken")
    for place, (role, content, model) in enumerate(turns):
        if role in ("system", "developer") and place == 0:
            system = content
            continue
        wanted: Role = "user" if len(messages) % 2 == 0 else "assistant"
        if role != wanted:
            raise _refused(f"messages.{place}: has the role {role!r} where {wanted!r} must stand")
        parent = messages[-1].id if messages else None
        messages.append(_Message(id=str(place), parent_id=parent, role=wanted, content=content, model_id=model))
    if not messages:
        raise _refused("the file holds no messages")
    model_id = next((each.model_id for each in reversed(messages) if each.model_id), None)
    title = title or title_of(messages[0].content)
    return Imported(title=title, system_prompt=system, model_id=model_id, messages=messages)
