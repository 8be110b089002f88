"""The app's end of the pipe, with the engine's end held by the test."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection

import pytest

from app.engine_client import EngineClient, EngineGone
from engine.core.outputs import RequestOutput
from engine.core.sampling_params import Guided
from engine.protocol import CheckGrammar, StepOutputs, decode_to_engine, encode

DIGITS = Guided("regex", "[0-9]+")
BROKEN = Guided("regex", "a(b")


async def asked(theirs: Connection) -> CheckGrammar:
    message = decode_to_engine(await asyncio.to_thread(theirs.recv_bytes))
    assert isinstance(message, CheckGrammar)
    return message


def answer(theirs: Connection, check: CheckGrammar, error: str | None) -> None:
    row = RequestOutput(check.request_id, [], "stop" if error is None else "error", error)
    theirs.send_bytes(encode(StepOutputs([row])))


async def test_a_grammar_that_can_be_used_is_asked_about_once() -> None:
    ours, theirs = multiprocessing.Pipe()
    client = EngineClient(ours, lambda message: None, lambda: None)
    verdict = asyncio.create_task(client.grammar_fault(DIGITS))
    check = await asked(theirs)
    assert check.guided == DIGITS
    assert client.num_running == client.num_sequences == 0, "a check is no request"
    answer(theirs, check, None)
    assert await verdict is None
    assert await client.grammar_fault(DIGITS) is None, "known by now: nobody answers any more"
    for _ in range(2):  # a fault is not kept
        verdict = asyncio.create_task(client.grammar_fault(BROKEN))
        answer(theirs, await asked(theirs), "guided: regex: no")
        assert await verdict == "guided: regex: no"
    client.close()
    theirs.close()


async def test_an_engine_that_goes_leaves_no_check_waiting() -> None:
    ours, theirs = multiprocessing.Pipe()
    client = EngineClient(ours, lambda message: None, lambda: client.fail_all("it died"))
    verdict = asyncio.create_task(client.grammar_fault(DIGITS))
    await asked(theirs)
    theirs.close()
    with pytest.raises(EngineGone, match="it died"):
        await verdict
    with pytest.raises(EngineGone, match="it died"):
        await client.grammar_fault(DIGITS)
