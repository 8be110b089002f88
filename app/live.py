"""The live feed: topics with sequence numbers, replay after a reconnect, and clients that never hold up a publisher.

Owns the rings of recent messages and the subscribers' queues. Knows nothing of what the topics carry.
Invariant: `publish` never waits; a client sees each topic's messages in order and without a hole, or is told of the
hole by `"gap": true` on the first message after it, at once where no message is left to carry that. A state read
together with `position` and followed with that as `since` is therefore never behind for good.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

RING_LENGTH = 600  # ten minutes of a topic that speaks once a second
MAX_TOPICS = 256  # the topics that were asked for or spoken on least recently are forgotten beyond this
CLIENT_QUEUE_LENGTH = 2000
KEPT_RING_LENGTH = 8  # of topics whose state somebody keeps: who missed more is told the state
RETAINED = frozenset({"header"})  # topics whose last message is a state: sent at once to a new subscriber


class SlowClient(Exception):
    """A client did not read its messages; it is disconnected and comes back with `since`."""


class _Topic:
    def __init__(self, ring_length: int = RING_LENGTH) -> None:
        # starts at the clock so that numbers of an earlier run of the server are always smaller: a reader sees a gap
        self.seq = int(time.time() * 1000)
        self.ring: deque[tuple[int, dict[str, Any]]] = deque(maxlen=ring_length)


class LiveClient:
    """One connection's subscriptions and outgoing messages."""

    def __init__(self, hub: LiveHub) -> None:
        self._hub = hub
        self.topics: set[str] = set()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(CLIENT_QUEUE_LENGTH)
        self.overflowed = False

    def offer(self, text: str) -> None:
        try:
            self._queue.put_nowait(text)
        except asyncio.QueueFull:
            self.overflowed = True

    async def next(self) -> str:
        """The next message to send. Raises SlowClient when messages had to be dropped."""
        text = await self._queue.get()
        if self.overflowed or text is None:
            raise SlowClient
        return text

    def subscribe(self, topics: list[str], since: Mapping[str, int]) -> None:
        for topic in topics:
            self.topics.add(topic)
            self._hub.replay(self, topic, since.get(topic))

    def unsubscribe(self, topics: list[str]) -> None:
        self.topics.difference_update(topics)


class LiveHub:
    """Publishes to all subscribers. Used from the event loop only."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._clients: set[LiveClient] = set()
        self._keepers: dict[str, Callable[[str], dict[str, Any] | None]] = {}

    def keep_state(self, prefix: str, state: Callable[[str], dict[str, Any] | None]) -> None:
        """Topics that begin so tell changes of what `state` returns for them: who begins to read one, or missed too
        much of it, is told that first. None: it is not known now, and will be published."""
        self._keepers[prefix] = state

    def has_readers(self, topic: str) -> bool:
        """Whether any client is subscribed."""
        return any(topic in client.topics for client in self._clients)

    def connect(self) -> LiveClient:
        client = LiveClient(self)
        self._clients.add(client)
        return client

    def disconnect(self, client: LiveClient) -> None:
        self._clients.discard(client)

    def position(self, topic: str) -> int:
        """The number of the topic's newest message: the `since` of who has just read what the topic tells of."""
        return self._topic(topic).seq

    def publish(self, topic: str, data: dict[str, Any]) -> None:
        entry = self._topic(topic)
        entry.seq += 1
        message = {"topic": topic, "seq": entry.seq, "t": time.time(), "data": data}
        entry.ring.append((entry.seq, message))
        readers = [client for client in self._clients if topic in client.topics]
        if readers:
            text = json.dumps(message)
            for client in readers:
                client.offer(text)

    def replay(self, client: LiveClient, topic: str, since: int | None) -> None:
        """What the client missed since its last message; for a state topic without one, the newest."""
        keeper = self._keeper(topic)
        if keeper is not None and (since is None or self._is_hole(topic, since)):
            state = keeper(topic)
            message = {"topic": topic, "seq": self._topic(topic).seq, "t": time.time(), "data": state}
            if state is not None or since is not None:
                client.offer(json.dumps(message if since is None else message | {"gap": True}))
            return
        if since is None:
            known = self._topics.get(topic)
            if topic in RETAINED and known is not None and known.ring:
                client.offer(json.dumps(known.ring[-1][1]))
            return
        entry = self._topic(topic)
        oldest = _oldest(entry)
        gap = self._is_hole(topic, since)
        if gap and not entry.ring:
            client.offer(json.dumps({"topic": topic, "seq": entry.seq, "t": time.time(), "data": None, "gap": True}))
        for seq, message in entry.ring:
            if gap or seq > since:
                client.offer(json.dumps({**message, "gap": True} if gap and seq == oldest else message))

    def _is_hole(self, topic: str, since: int) -> bool:
        """Whether something after `since` is no longer here, or it is a number of another run."""
        entry = self._topic(topic)
        return since < _oldest(entry) - 1 or since > entry.seq

    def _keeper(self, topic: str) -> Callable[[str], dict[str, Any] | None] | None:
        return next((keep for prefix, keep in self._keepers.items() if topic.startswith(prefix)), None)

    def _topic(self, name: str) -> _Topic:
        """The topic, from now on the one asked for most recently."""
        entry = self._topics.get(name)
        if entry is None:
            entry = self._topics[name] = _Topic(KEPT_RING_LENGTH if self._keeper(name) else RING_LENGTH)
        self._topics.move_to_end(name)
        if len(self._topics) > MAX_TOPICS:
            self._topics.popitem(last=False)
        return entry


def _oldest(entry: _Topic) -> int:
    """The number of the oldest message that is still here, or of the next one."""
    return entry.ring[0][0] if entry.ring else entry.seq + 1
