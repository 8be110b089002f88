"""/api/engines/{id}/blocks and /fit: what lies in which KV block, now or earlier, and whether a prompt would fit."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from app import block_view
from app.block_history import KEEP_S
from app.block_schemas import BlockHistoryView, BlockMapView, FitBody, PromptFit
from app.block_state import BlockState
from app.dialects.openai_schemas import TokenizeBody
from app.dialects.prepared import chat_prompt
from app.engines import Engine
from app.errors import ApiError
from app.services import Services, services

router = APIRouter(prefix="/api/engines", tags=["blocks"])


@router.get("/{engine_id}/blocks")
async def blocks(
    engine_id: str,
    block: Annotated[int | None, Query(ge=1)] = None,
    owner: Annotated[int | None, Query(ge=0)] = None,
    at: float | None = None,
    parts: Services = Depends(services),
) -> BlockMapView:
    """All blocks; or one `block`, or one `owner` with its tables. Now, or `at` a time of the last ten minutes.

    The live topic `blocks:{id}` sends the same view once, and then changes, twice a second.
    """
    engine = parts.engines.of_run(engine_id)
    view: dict[str, Any]
    if at is None:
        known = await parts.blocks.newest(engine)
        assert known.state is not None
        view, state = parts.blocks.full(engine_id, known), known.state
    else:
        state, number = await asyncio.to_thread(parts.blocks.at, engine_id, at)
        view = block_view.full(state, state.cells(), engine_id, number) | {"rates": {}}
    if block is not None or owner is not None:
        view |= {"runs": None, **_asked(state, block, owner)}
    return BlockMapView.model_validate(view)


@router.get("/{engine_id}/blocks/history")
async def history(
    engine_id: str, since: float | None = None, until: float | None = None, parts: Services = Depends(services)
) -> BlockHistoryView:
    """The counts of the frames that are kept, and so the times that `at` may name."""
    parts.engines.of_run(engine_id)
    until = time.time() if until is None else until
    since = until - KEEP_S if since is None else since
    if not since < until:
        raise ApiError(400, f"since={since} must lie before until={until}", param="since")
    return BlockHistoryView.model_validate(parts.blocks.history(engine_id, since, until))


@router.post("/{engine_id}/fit")
async def fit(engine_id: str, body: FitBody, parts: Services = Depends(services)) -> PromptFit:
    """Whether a prompt would find room in the engine's cache now. Nothing is computed or taken for it."""
    engine = parts.engines.of_run(engine_id)
    if engine.supervisor.state != "ready":
        detail = f"the engine of {engine.model_id} is {engine.supervisor.state}"
        raise ApiError(409, detail, param="id", remedy="Load the model and try again")
    token_ids = await _token_ids(engine, body)
    num_tokens = body.num_tokens if token_ids is None else len(token_ids)
    if not num_tokens:
        raise ApiError(400, "the prompt has no tokens", param="prompt", code="invalid_value")
    answer = await parts.blocks.rooms.ask(engine, token_ids, num_tokens, body.max_tokens, body.cache_salt)
    return PromptFit.model_validate(answer)


def _asked(state: BlockState, block: int | None, owner: int | None) -> dict[str, Any]:
    last = state.known.num_blocks - 1
    found: dict[str, Any] = {}
    if block is not None:
        if block > last:
            raise ApiError(404, f"there is no block {block}: they are 1 to {last}", param="block")
        found["block"] = state.detail(block)
    if owner is not None:
        table = state.table(owner)
        if table is None:
            remedy = "`owners` of the whole view lists who does"
            raise ApiError(404, f"the owner {owner} holds no blocks then", param="owner", remedy=remedy)
        found["table"] = table
    return found


async def _token_ids(engine: Engine, body: FitBody) -> list[int] | None:
    """The prompt's tokens; None where only their number is given. Raises ApiError."""
    given = [name for name in ("prompt", "messages", "num_tokens") if getattr(body, name) is not None]
    if len(given) != 1:
        found = f"found {' and '.join(given)}" if given else "found none"
        detail = f"exactly one of prompt, messages and num_tokens is needed, {found}"
        raise ApiError(400, detail, param=given[1] if given else "prompt", code="invalid_value")
    if body.messages is not None:
        return await chat_prompt(engine, body.messages, TokenizeBody(messages=body.messages))
    if body.prompt is not None:
        return await asyncio.to_thread(engine.vocab.encode, body.prompt, add_special_tokens=True)
    return None
