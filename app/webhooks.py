"""Telling another program about an alert: one POST of JSON to the address of its rule.

Owns the sending, its patience and its retries. Knows nothing of rules. Invariants: nobody waits for a delivery; a
delivery that fails for good is an event, which names the host only, since an address may hold a secret; redirects are
not followed, so that the operator's address is the only one that is called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from app.events import EventLog
from app.version import app_version

TIMEOUT_S = 5.0
WAITS_S = (1.0, 5.0, 25.0)  # between the tries
MAX_PENDING = 100


@dataclass(frozen=True, slots=True)
class Delivery:
    """How one try went. `status` is None where there was no answer, and `error` says why."""

    delivered: bool
    status: int | None
    error: str | None
    seconds: float


def address_fault(url: str) -> str | None:
    """What is wrong with a webhook's address; None for one that can be called."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"it is not an address: {error}"
    if parts.scheme not in ("http", "https"):
        return "it must begin with http:// or https://"
    if not host:
        return "it names no host"
    return None


class Webhooks:
    """Sends in the background. Used from the event loop."""

    def __init__(self, events: EventLog, timeout_s: float = TIMEOUT_S, waits_s: Sequence[float] = WAITS_S) -> None:
        self._events = events
        self._waits_s = tuple(waits_s)
        self._timeout_s = timeout_s
        self._pending: set[asyncio.Task[None]] = set()

    def send(self, url: str, body: dict[str, Any]) -> None:
        """Deliver it in the background, with retries."""
        if len(self._pending) >= MAX_PENDING:
            self._failed(url, f"{MAX_PENDING} deliveries are waiting already", 0)
            return
        task = asyncio.create_task(self._deliver(url, body))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def post(self, url: str, body: dict[str, Any]) -> Delivery:
        """One try, now."""
        started = time.monotonic()
        status, error = None, None
        headers = {"user-agent": f"pizarra/{app_version()}"}
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                httpx.AsyncClient(follow_redirects=False, timeout=self._timeout_s) as client,
                client.stream("POST", url, json=body, headers=headers) as response,
            ):
                status = response.status_code  # the answer's body is of no interest, however large it is
            if not 200 <= status < 300:
                error = f"answered {status}"
        except (TimeoutError, httpx.TimeoutException):
            error = f"no answer within {self._timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        return Delivery(error is None, status, error, time.monotonic() - started)

    async def shutdown(self) -> None:
        """Give up what is under way."""
        for task in list(self._pending):
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _deliver(self, url: str, body: dict[str, Any]) -> None:
        tries = 0
        for wait_s in (0.0, *self._waits_s):
            await asyncio.sleep(wait_s)
            tries += 1
            delivery = await self.post(url, body)
            if delivery.delivered:
                return
        self._failed(url, str(delivery.error), tries)

    def _failed(self, url: str, reason: str, tries: int) -> None:
        host = urlsplit(url).hostname
        message = f"the webhook at {host} was not told of an alert: {reason}"
        self._events.add("webhook", "warning", message, data={"host": host, "reason": reason, "tries": tries})
