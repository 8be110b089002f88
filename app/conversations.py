"""Conversations whose answers the server owns: a browser may go and come back, the answer goes on.

Owns the running answers, their text so far (thoughts apart from what is said), and the path from a message to its
prompt. Knows nothing of HTTP or of how rows are stored. Invariants: text that was sent is in `messages_of` at once and
on disk within SAVE_INTERVAL_S; an answer ends as "complete", "interrupted" or "failed", whatever happens to the engine
or the server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from app.conversation_schemas import Count, CountBody
from app.conversation_turns import Turns, answering, asking, fenced, for_template, path_to, title_of
from app.dialects.answer_plan import thoughts_plan
from app.dialects.sampling import sampling_params
from app.engines import Engine, Engines
from app.errors import ApiError
from app.generation import Generation, Generations, RequestOptions, room_for_output
from app.live import LiveHub
from app.parsers.answer import AnswerParser
from app.parsers.base import Delta, ReasoningDelta, ToolCallDelta
from app.request_bodies import GivenTexts
from app.text import ChatTemplateError
from app.writes import unwatched
from db.errors import StoreError
from db.rows import ConversationRow, MessageChanges, MessageRow
from db.store import Store

log = logging.getLogger(__name__)

SAVE_INTERVAL_S = 0.5
STATS = (
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "ttft_s",
    "tokens_per_s",
    "e2e_s",
    "seed",
    "drafts",
    "drafted",
    "accepted",
)  # of a request, as its answer keeps them


@dataclass(slots=True)
class Answer:
    """An answer being made. thought_from, thought_to: when thoughts began and ended, by the monotonic clock."""

    message: MessageRow
    generation: Generation
    parser: AnswerParser
    thought_from: float | None = None
    thought_to: float | None = None
    task: asyncio.Task[None] | None = None
    save_timer: asyncio.TimerHandle | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Started:
    conversation: ConversationRow
    user_message: MessageRow | None
    assistant_message: MessageRow


class ConversationService:
    """Starts, follows and stops answers."""

    def __init__(self, store: Store, hub: LiveHub, engines: Engines, generations: Generations) -> None:
        self._store = store
        self._hub = hub
        self._engines = engines
        self._generations = generations
        self._answers: dict[str, Answer] = {}
        self._starting: set[str] = set()

    def row(self, conversation_id: str) -> ConversationRow:
        row = self._store.get_conversation(conversation_id)
        if row is None:
            raise ApiError(404, f"there is no conversation {conversation_id!r}", param="id")
        return row

    def messages_of(self, conversation_id: str) -> list[MessageRow]:
        """The whole tree, oldest first, with the text that a running answer has now."""
        answer = self._answers.get(conversation_id)
        rows = self._store.list_messages(conversation_id)
        if answer is None:
            return rows
        return [answer.message if row.id == answer.message.id else row for row in rows]

    def live_seq(self, conversation_id: str) -> int:
        """The number of the newest live message that `messages_of`, called in the same breath, already contains."""
        return self._hub.position(_topic(conversation_id))

    async def start(
        self,
        conversation_id: str,
        *,
        version: int,
        content: str | None,
        parent_id: str | None,
        model_id: str | None,
        attachments: Sequence[Mapping[str, str]] = (),
    ) -> Started:
        """Append the user's message, if there is one, and begin the answer, or go on with the one at `parent_id`."""
        if conversation_id in self._answers or conversation_id in self._starting:
            raise ApiError(409, "an answer is being written already", remedy="Stop it first", code="generating")
        self._starting.add(conversation_id)
        try:
            row = self.row(conversation_id)
            engine = self._engine(model_id, row.model_id)
            path = path_to(self._store.list_messages(conversation_id), parent_id)
            user = None
            if content is not None:
                user = _message(conversation_id, parent_id, "user", content, attachments=list(map(dict, attachments)))
            turns = answering(path) if user is None else asking(path, user)
            generation, parser = await self._generation(engine, row, turns)
            answer = _answer(turns, engine.model_id, generation.id)
            new = [message for message in (user, answer) if message is not None]
            if not row.title and user is not None:
                titled = self._store.patch_conversation(conversation_id, version, {"title": title_of(user.content)})
                version = (await asyncio.wrap_future(titled)).version
            saved = await asyncio.wrap_future(self._store.append_messages(conversation_id, new, version))
            self._follow(Answer(answer, generation, parser), saved, new)
            return Started(saved, user, answer)
        finally:
            self._starting.discard(conversation_id)

    def stop(self, conversation_id: str) -> None:
        """End the running answer with the text it has; harmless when there is none."""
        self.row(conversation_id)
        if (answer := self._answers.get(conversation_id)) is not None:
            answer.generation.cancel()

    async def delete(self, conversation_id: str) -> None:
        self.row(conversation_id)
        if (answer := self._answers.get(conversation_id)) is not None and answer.task is not None:
            answer.task.cancel()
            await asyncio.wait([answer.task])
            self._answers.pop(conversation_id, None)  # a task that was cancelled before it began did not do it
        await asyncio.wrap_future(self._store.delete_conversation(conversation_id))

    async def shutdown(self, patience_s: float) -> None:
        """Let running answers finish for a while, then keep what they have."""
        tasks = [answer.task for answer in self._answers.values() if answer.task is not None]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=patience_s)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    # ---- before an answer -------------------------------------------------------------------------------------------

    def _engine(self, asked: str | None, usual: str | None) -> Engine:
        """The engine asked for; else the conversation's own model where it is loaded; else the default."""
        loaded = self._engines.loaded_ids()
        choice = asked or (usual if usual in loaded else None)
        try:
            return self._engines.serving(choice)
        except ApiError as error:
            # here, unlike on /v1, the operator sits at the button that loads a model: a conflict, not an outage
            raise ApiError(409, error.detail, param="model_id", remedy=error.remedy, code=error.code) from error

    async def count(self, body: CountBody) -> Count:
        """How large the prompt would be, and what it leaves for the answer."""
        row = None if body.conversation_id is None else self.row(body.conversation_id)
        engine = self._engine(body.model_id, row.model_id if row is not None else None)
        path: list[MessageRow] = []
        if row is not None:
            leaf = body.parent_id if "parent_id" in body.model_fields_set else row.active_leaf_id
            path = path_to(self._store.list_messages(row.id), leaf)
        attachments = [each.model_dump() for each in body.attachments]
        question = _message("", None, "user", body.content, attachments=attachments)
        system = body.system_prompt if body.system_prompt is not None else row.system_prompt if row is not None else ""
        if path and path[-1].role == "user":  # it is being written anew
            path = path[:-1]
        prompt = await self._encode(engine, system, Turns([*path, question], question.id))
        texts = [fenced(each["name"], each["text"]) for each in attachments]
        each_tokens = await asyncio.to_thread(lambda: [len(engine.vocab.encode(text)) for text in texts])
        longest = engine.ready.max_model_len
        return Count(
            model_id=engine.model_id,
            num_tokens=len(prompt),
            attachment_tokens=each_tokens,
            max_model_len=longest,
            room=max(0, longest - len(prompt)),
        )

    async def _encode(self, engine: Engine, system_prompt: str, turns: Turns) -> list[int]:
        if engine.chat is None:
            raise ApiError(
                409, engine.chat_error, remedy="Use the Playground, or load an instruct model", param="model_id"
            )
        begun = turns.continues is not None
        try:
            messages = for_template(system_prompt, turns)
            return await asyncio.to_thread(
                engine.chat.encode, messages, add_generation_prompt=not begun, continue_final_message=begun
            )
        except ChatTemplateError as error:
            raise ApiError(400, str(error), param="content") from error

    async def _generation(self, engine: Engine, row: ConversationRow, turns: Turns) -> tuple[Generation, AnswerParser]:
        prompt = await self._encode(engine, row.system_prompt, turns)
        wishes = dict(row.sampling)
        trace = bool(wishes.pop("trace", False))
        # an answer may be shorter than asked where the context ends: it says "length" then, and the chat can go on
        limit = room_for_output(engine, len(prompt), wishes.pop("max_tokens", None), clip=True)
        sampling = sampling_params(engine.sampling_defaults, max_tokens=limit, **wishes)
        plan = thoughts_plan(engine, prompt, begun=turns.continues is not None)
        given = GivenTexts(messages=lambda: for_template(row.system_prompt, turns))
        options = RequestOptions(shown_specials=plan.shown_specials, given=given, trace=trace)
        generation = self._generations.prepare(engine, prompt, sampling, options=options, source="conversation")
        return generation, plan.parser()

    # ---- the answer -------------------------------------------------------------------------------------------------

    def _follow(self, answer: Answer, row: ConversationRow, new: Sequence[MessageRow]) -> None:
        conversation_id = row.id
        self._answers[conversation_id] = answer
        for message in new:
            self._tell(conversation_id, "message.created", message=dataclasses.asdict(message))
        self.tell_summary(row)
        answer.task = asyncio.create_task(self._run(conversation_id, answer))

    async def _run(self, conversation_id: str, answer: Answer) -> None:
        changes: MessageChanges
        try:
            async with aclosing(answer.generation.deltas()) as deltas:
                async for text in deltas:
                    self._extend(conversation_id, answer, answer.parser.feed(text))
            stopped = answer.generation.row.finish_reason == "abort"
            changes = {"state": "interrupted" if stopped else "complete"}
        except ApiError as error:
            changes = {"state": "failed", "error": error.detail}
        except asyncio.CancelledError:
            changes = {"state": "interrupted", "error": "the server ended while this was being written"}
        except Exception as error:
            log.exception("the answer in conversation %s failed", conversation_id)
            changes = {"state": "failed", "error": f"an error inside the server: {type(error).__name__}"}
        await self._finish(conversation_id, answer, changes)

    def _extend(self, conversation_id: str, answer: Answer, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            assert not isinstance(delta, ToolCallDelta), "no tools are on offer in a conversation"
            message = answer.message
            now = time.monotonic()
            if isinstance(delta, ReasoningDelta):
                kind, before = "message.reasoning_delta", message.reasoning_content
                answer.message = dataclasses.replace(message, reasoning_content=before + delta.text)
                answer.thought_from = answer.thought_from or now
            else:
                kind, before = "message.delta", message.content
                answer.message = dataclasses.replace(message, content=before + delta.text)
                answer.thought_to = answer.thought_to or now
            self._tell(conversation_id, kind, message_id=message.id, offset=len(before), text=delta.text)
            if answer.save_timer is None:
                loop = asyncio.get_running_loop()
                answer.save_timer = loop.call_later(SAVE_INTERVAL_S, self._save, answer)

    def _save(self, answer: Answer) -> None:
        answer.save_timer = None
        message = answer.message
        changes: MessageChanges = {"content": message.content, "reasoning_content": message.reasoning_content}
        unwatched(self._store.update_message(message.id, changes))

    async def _finish(self, conversation_id: str, answer: Answer, changes: MessageChanges) -> None:
        self._extend(conversation_id, answer, answer.parser.finish())
        if answer.save_timer is not None:
            answer.save_timer.cancel()
        row = answer.generation.row
        changes["content"] = answer.message.content
        changes["reasoning_content"] = answer.message.reasoning_content
        changes["finish_reason"] = row.finish_reason
        own = {"reasoning_s": _thought_s(answer)} | (answer.message.stats or {})
        changes["stats"] = {name: getattr(row, name) for name in STATS} | own
        answer.message = dataclasses.replace(answer.message, **changes)
        try:
            await asyncio.wrap_future(self._store.update_message(answer.message.id, changes))
        except StoreError:
            log.exception("the answer %s could not be saved", answer.message.id)
        self._answers.pop(conversation_id, None)
        self._tell(conversation_id, "message.done", message=dataclasses.asdict(answer.message))
        summary = self._store.get_conversation(conversation_id)
        if summary is not None:
            self.tell_summary(summary)

    def tell_summary(self, row: ConversationRow) -> None:
        self._tell(row.id, "conversation.updated", conversation=dataclasses.asdict(row))

    def _tell(self, conversation_id: str, kind: str, **data: Any) -> None:
        self._hub.publish(_topic(conversation_id), {"type": kind, **data})


def _topic(conversation_id: str) -> str:
    return f"conversation:{conversation_id}"


def _message(
    conversation_id: str,
    parent_id: str | None,
    role: str,
    content: str,
    *,
    state: str = "complete",
    model_id: str | None = None,
    request_id: str | None = None,
    attachments: list[dict[str, str]] | None = None,
) -> MessageRow:
    return MessageRow(
        id=uuid.uuid4().hex,
        conversation_id=conversation_id,
        parent_id=parent_id,
        role=role,
        content=content,
        state=state,
        created_at=time.time(),
        model_id=model_id,
        request_id=request_id,
        attachments=attachments or None,
    )


def _answer(turns: Turns, model_id: str, request_id: str) -> MessageRow:
    """The answer as it begins: empty, or with all of the one that it goes on with."""
    before = turns.continues
    conversation_id = turns.path[-1].conversation_id
    empty = _message(
        conversation_id, turns.asked_id, "assistant", "", state="streaming", model_id=model_id, request_id=request_id
    )
    if before is None:
        return empty
    return dataclasses.replace(
        empty,
        content=before.content,
        reasoning_content=before.reasoning_content,
        stats={"continues": before.id},
    )


def _thought_s(answer: Answer) -> float | None:
    """How long it thought, as far as it got; None where it did not."""
    if answer.thought_from is None:
        return None
    return (answer.thought_to or time.monotonic()) - answer.thought_from
