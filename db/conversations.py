"""Conversations and their messages, as statements on a connection that the caller opened.

Owns the tree of messages and the version check. Knows nothing of threads, HTTP or generation.
Invariants: messages are only appended, and only an answer being made is written to again; every change that a client
asks for raises the version by one, and a change based on an older version is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Select, delete, exists, func, insert, or_, select, update

from db.errors import NotFound, StaleVersion
from db.rows import ConversationChanges, ConversationRow, MessageChanges, MessageRow
from db.tables import conversations, messages

_MESSAGE_COLUMNS = [column for column in messages.c if column.name != "seq"]


def _summaries() -> Select[Any]:
    of_this = messages.c.conversation_id == conversations.c.id
    num_messages = select(func.count()).where(of_this).scalar_subquery()
    generating = exists().where(of_this, messages.c.state == "streaming")
    return select(conversations, num_messages.label("num_messages"), generating.label("generating"))


def get(connection: Connection, conversation_id: str) -> ConversationRow | None:
    """One conversation."""
    found = connection.execute(_summaries().where(conversations.c.id == conversation_id)).mappings().one_or_none()
    return ConversationRow(**found) if found else None


def _existing(connection: Connection, conversation_id: str) -> ConversationRow:
    found = get(connection, conversation_id)
    if found is None:
        raise NotFound(f"conversation {conversation_id} does not exist (or was deleted)")
    return found


def search(connection: Connection, query: str, limit: int) -> list[ConversationRow]:
    """Last changed first; `query`, if any, must occur in the title or in a message."""
    statement = _summaries().order_by(conversations.c.updated_at.desc(), conversations.c.id).limit(limit)
    if query:
        said = exists().where(
            messages.c.conversation_id == conversations.c.id, messages.c.content.icontains(query, autoescape=True)
        )
        statement = statement.where(or_(conversations.c.title.icontains(query, autoescape=True), said))
    return [ConversationRow(**found) for found in connection.execute(statement).mappings()]


def create(connection: Connection, conversation_id: str, values: Mapping[str, Any], now: float) -> ConversationRow:
    """A new conversation at version 1."""
    connection.execute(
        insert(conversations).values(id=conversation_id, version=1, created_at=now, updated_at=now, **values)
    )
    return _existing(connection, conversation_id)


def _raise_version(
    connection: Connection, conversation_id: str, expected: int | None, changes: Mapping[str, Any], now: float
) -> None:
    current = _existing(connection, conversation_id).version
    if expected is not None and expected != current:
        raise StaleVersion(conversation_id, expected, current)
    connection.execute(
        update(conversations)
        .where(conversations.c.id == conversation_id)
        .values(version=current + 1, updated_at=now, **changes)
    )


def patch(
    connection: Connection, conversation_id: str, version: int, changes: ConversationChanges, now: float
) -> ConversationRow:
    """Apply a client's changes."""
    _raise_version(connection, conversation_id, version, changes, now)
    leaf = changes.get("active_leaf_id")
    if leaf is not None:
        _require_message(connection, conversation_id, leaf)
    return _existing(connection, conversation_id)


def delete_conversation(connection: Connection, conversation_id: str) -> bool:
    """Remove a conversation; its messages go with it."""
    return connection.execute(delete(conversations).where(conversations.c.id == conversation_id)).rowcount == 1


def append(
    connection: Connection, conversation_id: str, rows: Sequence[MessageRow], version: int | None, now: float
) -> ConversationRow:
    """Add messages below existing ones or at the root; the last becomes the active leaf."""
    _raise_version(connection, conversation_id, version, {"active_leaf_id": rows[-1].id}, now)
    for row in rows:
        if row.parent_id is not None:
            _require_message(connection, conversation_id, row.parent_id)
        connection.execute(insert(messages).values({**asdict(row), "conversation_id": conversation_id}))
    return _existing(connection, conversation_id)


def _require_message(connection: Connection, conversation_id: str, message_id: str) -> None:
    message = get_message(connection, message_id)
    if message is None or message.conversation_id != conversation_id:
        raise NotFound(f"message {message_id} does not exist in conversation {conversation_id}")


def update_message(connection: Connection, message_id: str, changes: MessageChanges, now: float) -> MessageRow:
    """Write to an answer being made."""
    connection.execute(update(messages).where(messages.c.id == message_id).values(**changes))
    message = get_message(connection, message_id)
    if message is None:
        raise NotFound(f"message {message_id} does not exist (or its conversation was deleted)")
    connection.execute(
        update(conversations).where(conversations.c.id == message.conversation_id).values(updated_at=now)
    )
    return message


def get_message(connection: Connection, message_id: str) -> MessageRow | None:
    """One message."""
    found = connection.execute(select(*_MESSAGE_COLUMNS).where(messages.c.id == message_id)).mappings().one_or_none()
    return MessageRow(**found) if found else None


def list_messages(connection: Connection, conversation_id: str) -> list[MessageRow]:
    """All messages of the tree in the order they were appended."""
    statement = select(*_MESSAGE_COLUMNS).where(messages.c.conversation_id == conversation_id).order_by(messages.c.seq)
    return [MessageRow(**found) for found in connection.execute(statement).mappings()]
