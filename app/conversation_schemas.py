"""Bodies of the calls under /api/conversations and /api/presets.

Owns their names, types and ranges. Knows nothing of what is done with them. Invariant: as in app.schemas, what comes in
is strict and closed.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from app.schema_base import Incoming, Outgoing, Text

MAX_ATTACHMENTS = 20
MAX_IMPORTED_MESSAGES = 20_000

Role = Literal["user", "assistant"]
MessageState = Literal["complete", "streaming", "interrupted", "failed"]


class Sampling(Incoming):
    """How answers of a conversation are drawn; an absent field takes the model server's default.

    trace: keep each answer's steps for the chalkboard, see GET /api/requests/{id}/trace.
    """

    temperature: float | None = Field(default=None, ge=0, le=10)
    top_k: int | None = Field(default=None, ge=0, le=2**31)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31)
    trace: bool | None = None


class Attachment(Incoming):
    """A text that belongs to a question. The prompt has it before the question, fenced, under its name."""

    name: Text = Field(min_length=1, max_length=200)
    text: Text = Field(min_length=1)


class ConversationBody(Incoming):
    title: Text = Field(default="", max_length=200)
    system_prompt: Text = ""
    model_id: Text | None = None
    sampling: Sampling = Sampling()
    folder: Text = Field(default="", max_length=100)


class ConversationPatch(Incoming):
    """`folder`: the name of one, "" for none; a folder is there as long as a conversation is in it."""

    version: int
    title: Text = Field(default="", max_length=200)
    system_prompt: Text = ""
    sampling: Sampling = Sampling()
    model_id: Text | None = None
    active_leaf_id: Text | None = None
    folder: Text = Field(default="", max_length=100)


class GenerateBody(Incoming):
    """`content` starts a new turn under `parent_id` (absent: the active leaf). Null answers the question `parent_id`,
    or goes on with the answer `parent_id`: a new version that begins with its text."""

    version: int
    content: Text | None = Field(default=None, min_length=1)
    attachments: list[Attachment] = Field(default=[], max_length=MAX_ATTACHMENTS)
    parent_id: str | None = None
    model_id: str | None = None


class CountBody(Incoming):
    """What would be sent: `content` under `parent_id` (absent: the active leaf) of a conversation, or of a new one."""

    conversation_id: Text | None = None
    parent_id: Text | None = None
    content: Text = ""
    attachments: list[Attachment] = Field(default=[], max_length=MAX_ATTACHMENTS)
    system_prompt: Text | None = None
    model_id: Text | None = None


class Count(Outgoing):
    """`num_tokens`: of the whole prompt; `attachment_tokens`: of each text alone; `room`: for the answer, in tokens."""

    model_id: str
    num_tokens: int
    attachment_tokens: list[int]
    max_model_len: int
    room: int


class Message(Outgoing):
    """`stats`: figures of the request behind an answer; `continues` among them is the answer that it goes on with."""

    id: str
    conversation_id: str
    parent_id: str | None
    role: Role
    content: str
    reasoning_content: str
    attachments: list[dict[str, Any]] | None
    state: MessageState
    finish_reason: str | None
    error: str | None
    model_id: str | None
    request_id: str | None
    stats: dict[str, Any] | None
    created_at: float


class ConversationSummary(Outgoing):
    id: str
    title: str
    folder: str
    model_id: str | None
    version: int
    created_at: float
    updated_at: float
    num_messages: int
    generating: bool


class Conversation(ConversationSummary):
    """`live_seq`: the newest message of the topic `conversation:{id}` that is in here; its `since` for the rest."""

    live_seq: int
    system_prompt: str
    sampling: dict[str, Any]
    active_leaf_id: str | None
    messages: list[Message]


class Conversations(Outgoing):
    conversations: list[ConversationSummary]


class Generated(Outgoing):
    conversation: ConversationSummary
    user_message: Message | None
    assistant_message: Message


class ImportBody(Incoming):
    """`text`: the contents of a file that was exported, or a list of messages as OpenAI's API has them."""

    text: Text = Field(min_length=1)
    folder: Text = Field(default="", max_length=100)


class PresetBody(Incoming):
    name: Text = Field(min_length=1, max_length=100)
    system_prompt: Text = ""
    sampling: Sampling = Sampling()


class Preset(Outgoing):
    """`built_in`: comes with Pizarra and stays as it is."""

    id: str
    name: str
    system_prompt: str
    sampling: dict[str, Any]
    built_in: bool


class Presets(Outgoing):
    presets: list[Preset]
