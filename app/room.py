"""Whether a prompt would fit into an engine's KV cache now: the question, the engine's answer, and the verdict.

Owns the questions that are open and what the figures mean. Knows nothing of HTTP bodies. Invariant: every question is
answered, or refused in ANSWER_S.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from app.errors import ApiError
from app.loaded_engine import Engine
from engine.protocol import AskRoom, Room, RoomAnswer

ANSWER_S = 5.0


class RoomQuestions:
    """Asks engines. Used from the event loop only."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[Room]] = {}

    async def ask(
        self, engine: Engine, token_ids: Sequence[int] | None, num_tokens: int, max_tokens: int, cache_salt: str
    ) -> dict[str, Any]:
        """The engine's figures for a prompt, with the verdict. Raises ApiError."""
        longest = engine.ready.max_model_len
        question = AskRoom(
            uuid.uuid4().hex,
            num_tokens,
            min(num_tokens + max_tokens, max(longest, num_tokens)),
            None if token_ids is None else list(token_ids),
            cache_salt,
        )
        answer: asyncio.Future[Room] = asyncio.get_running_loop().create_future()
        self._open[question.ask_id] = answer
        try:
            engine.supervisor.client.send(question)
            room = await asyncio.wait_for(answer, ANSWER_S)
        except TimeoutError:
            detail = f"the engine of {engine.model_id} gave no answer in {ANSWER_S:.0f} s"
            remedy = "A long step may be on: try again"
            raise ApiError(503, detail, remedy=remedy, code="engine_busy", retry_after_s=1) from None
        finally:
            self._open.pop(question.ask_id, None)
        return judged(room, max_model_len=longest, block_size=engine.ready.block_size)

    def answer(self, message: RoomAnswer) -> None:
        """An engine has answered."""
        asked = self._open.get(message.ask_id)
        if asked is not None and not asked.done():
            asked.set_result(message.room)


def judged(room: Room, *, max_model_len: int, block_size: int) -> dict[str, Any]:
    """The figures with a verdict and its reasons.

    "yes": it would start at once and have room to its last token. "prompt_only": it would start, but its answer may
    have to wait for blocks. "not_now": it would wait. "never": it is larger than the engine.
    """
    free = max(0, room.blocks_available - room.blocks_reserved)
    needed = max(0, room.blocks_in_all - room.blocks_shared)
    needed_for_prompt = max(0, room.blocks_for_prompt - room.blocks_shared)
    reasons: list[str] = []
    if room.num_tokens >= max_model_len:
        reasons.append("context")
    if room.blocks_for_prompt > room.blocks_total:
        reasons.append("pool")
    verdict = "never" if reasons else "yes"
    if not reasons:
        reasons += ["sequences"] if room.num_running >= room.max_num_seqs else []
        reasons += ["queue"] if room.num_waiting else []
        reasons += ["blocks"] if needed_for_prompt > free else []
        verdict = "not_now" if reasons else "yes"
    if verdict == "yes" and needed > free:
        verdict, reasons = "prompt_only", ["blocks_for_answer"]
    figures = {name: getattr(room, name) for name in Room.__dataclass_fields__}
    return {
        **figures,
        "fits": verdict,
        "reasons": reasons,
        "blocks_needed": needed,
        "blocks_needed_for_prompt": needed_for_prompt,
        "blocks_free": free,
        "block_size": block_size,
        "max_model_len": max_model_len,
    }
