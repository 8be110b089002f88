"""/api/conversations: chats that the server keeps and whose answers it writes."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import uuid
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from app import conversation_schemas as schemas
from app.conversation_files import FORMATS, exported, imported
from app.services import Services, services
from db.rows import ConversationChanges, ConversationRow

router = APIRouter(prefix="/api/conversations", tags=["conversations"])


@router.get("")
async def list_conversations(
    q: Annotated[str, Query(max_length=1000)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    parts: Services = Depends(services),
) -> schemas.Conversations:
    rows = await asyncio.to_thread(parts.store.list_conversations, q, limit)
    return schemas.Conversations(conversations=[_summary(row) for row in rows])


@router.post("", status_code=201)
async def create(
    body: schemas.ConversationBody | None = None, parts: Services = Depends(services)
) -> schemas.Conversation:
    body = body or schemas.ConversationBody()
    created = parts.store.create_conversation(
        uuid.uuid4().hex,
        title=body.title,
        system_prompt=body.system_prompt,
        model_id=body.model_id,
        sampling=body.sampling.model_dump(exclude_none=True),
        folder=body.folder.strip(),
    )
    return _whole((await asyncio.wrap_future(created)).id, parts)


@router.post("/count")
async def count(body: schemas.CountBody, parts: Services = Depends(services)) -> schemas.Count:
    """How many tokens a message would make of the prompt, and how many are left for its answer."""
    return await parts.conversations.count(body)


@router.post("/import", status_code=201)
async def import_conversation(body: schemas.ImportBody, parts: Services = Depends(services)) -> schemas.Conversation:
    """A conversation from a file that was exported, or from a list of messages. Every part of it gets a new id."""
    found = await asyncio.to_thread(imported, body.text)
    created = parts.store.create_conversation(
        uuid.uuid4().hex,
        title=found.title,
        system_prompt=found.system_prompt,
        model_id=found.model_id,
        sampling=found.sampling,
        folder=body.folder.strip() or found.folder,
    )
    row = await asyncio.wrap_future(created)
    rows = found.rows(row.id)
    if rows:
        row = await asyncio.wrap_future(parts.store.append_messages(row.id, rows))
        if found.active_leaf_id(rows) != rows[-1].id:
            changes = ConversationChanges(active_leaf_id=found.active_leaf_id(rows))
            row = await asyncio.wrap_future(parts.store.patch_conversation(row.id, row.version, changes))
    return _whole(row.id, parts)


@router.get("/{conversation_id}/export")
async def export(
    conversation_id: str, format: Literal["json", "md"] = "json", parts: Services = Depends(services)
) -> Response:
    """The conversation as a file: all of it as JSON, or the branch that is shown as Markdown. Both can be imported."""
    row = parts.conversations.row(conversation_id)
    text = exported(row, parts.conversations.messages_of(conversation_id), format)
    name = re.sub(r"[^\w.-]+", "-", row.title).strip("-.")[:60] or "chat"
    ascii_name = name.encode("ascii", "ignore").decode() or "chat"
    disposition = f"attachment; filename=\"{ascii_name}.{format}\"; filename*=UTF-8''{quote(name)}.{format}"
    return Response(text, media_type=FORMATS[format], headers={"Content-Disposition": disposition})


@router.get("/{conversation_id}")
async def get(conversation_id: str, parts: Services = Depends(services)) -> schemas.Conversation:
    return _whole(conversation_id, parts)


@router.patch("/{conversation_id}")
async def patch(
    conversation_id: str, body: schemas.ConversationPatch, parts: Services = Depends(services)
) -> schemas.Conversation:
    changes = ConversationChanges()
    for name in body.model_fields_set - {"version", "sampling"}:
        changes[name] = getattr(body, name)  # type: ignore[literal-required]
    if "sampling" in body.model_fields_set:
        changes["sampling"] = body.sampling.model_dump(exclude_none=True)
    row = await asyncio.wrap_future(parts.store.patch_conversation(conversation_id, body.version, changes))
    parts.conversations.tell_summary(row)
    return _whole(conversation_id, parts)


@router.delete("/{conversation_id}", status_code=204)
async def delete(conversation_id: str, parts: Services = Depends(services)) -> Response:
    await parts.conversations.delete(conversation_id)
    return Response(status_code=204)


@router.post("/{conversation_id}/generate", status_code=202)
async def generate(
    conversation_id: str, body: schemas.GenerateBody, parts: Services = Depends(services)
) -> schemas.Generated:
    parent_id = body.parent_id
    if "parent_id" not in body.model_fields_set:
        parent_id = parts.conversations.row(conversation_id).active_leaf_id
    started = await parts.conversations.start(
        conversation_id,
        version=body.version,
        content=body.content,
        parent_id=parent_id,
        model_id=body.model_id,
        attachments=[each.model_dump() for each in body.attachments],
    )
    return schemas.Generated(
        conversation=_summary(started.conversation),
        user_message=schemas.Message.model_validate(started.user_message) if started.user_message else None,
        assistant_message=schemas.Message.model_validate(started.assistant_message),
    )


@router.post("/{conversation_id}/stop", status_code=202)
async def stop(conversation_id: str, parts: Services = Depends(services)) -> dict[str, str]:
    parts.conversations.stop(conversation_id)
    return {"conversation_id": conversation_id}


def _summary(row: ConversationRow) -> schemas.ConversationSummary:
    return schemas.ConversationSummary.model_validate(row)


def _whole(conversation_id: str, parts: Services) -> schemas.Conversation:
    """The conversation as it is now. Nothing is awaited in here, so that row, messages and live_seq agree."""
    row = parts.conversations.row(conversation_id)
    messages = [dataclasses.asdict(message) for message in parts.conversations.messages_of(row.id)]
    live_seq = parts.conversations.live_seq(row.id)
    return schemas.Conversation.model_validate({**dataclasses.asdict(row), "messages": messages, "live_seq": live_seq})
