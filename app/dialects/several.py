"""The pieces of several generations as one stream: what a request with several prompts needs.

Owns the merge. Knows nothing of answers' shapes. Invariant: a generation's own pieces stay in order; when one fails or
the consumer leaves, all of them end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from app.generation import Generation
from app.sample_text import Piece


async def pieces_of_all(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Piece]]:
    """Each piece with the number of its generation, as they come. Raises the first generation's error there is."""
    if len(generations) == 1:  # the ordinary case goes without a queue
        async with aclosing(generations[0].pieces()) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    arrived: asyncio.Queue[tuple[int, Piece] | Exception | None] = asyncio.Queue()

    async def follow(number: int, generation: Generation) -> None:
        try:
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    arrived.put_nowait((number, piece))
            arrived.put_nowait(None)
        except Exception as error:  # whatever it is: the consumer is told
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(follow(number, each)) for number, each in enumerate(generations)]
    num_running = len(tasks)
    try:
        while num_running:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
