"""/api/live: the WebSocket that carries the live topics."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter, Depends, WebSocket, WebSocketDisconnect
from pydantic import Field, ValidationError

from app.live import LiveClient, SlowClient
from app.schemas import Incoming
from app.services import Services, services

router = APIRouter()

POLICY_VIOLATION = 1008
TRY_AGAIN_LATER = 1013


class LiveRequest(Incoming):
    """What a client says: topics it wants, topics it is done with, and the last number it saw of each."""

    subscribe: list[str] = Field(default=[], max_length=100)
    unsubscribe: list[str] = Field(default=[], max_length=100)
    since: dict[str, int] = Field(default={})


@router.websocket("/api/live")
async def live(socket: WebSocket, parts: Services = Depends(services)) -> None:
    await socket.accept()
    client = parts.hub.connect()
    tasks = [asyncio.create_task(_listen(socket, client)), asyncio.create_task(_speak(socket, client))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except WebSocketDisconnect:
        pass
    except SlowClient:
        with suppress(RuntimeError, WebSocketDisconnect):
            await socket.close(TRY_AGAIN_LATER, "messages were not read fast enough; connect again with since")
    except ValidationError as error:
        with suppress(RuntimeError, WebSocketDisconnect):
            await socket.close(POLICY_VIOLATION, f"not understood: {error.errors()[0]['msg']}"[:120])
    finally:
        parts.hub.disconnect(client)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(socket: WebSocket, client: LiveClient) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        request = LiveRequest.model_validate_json(message.get("text") or message.get("bytes") or b"")
        client.unsubscribe(request.unsubscribe)
        client.subscribe(request.subscribe, request.since)


async def _speak(socket: WebSocket, client: LiveClient) -> None:
    while True:
        await socket.send_text(await client.next())
