"""The server's half of `make soak`: a long mixed life of app and engine, over HTTP, with clients who leave.

Owns the clients. The server is `pizarra serve` with a tiny random model, a pool smaller than what is asked of it at
once and a short queue. Requests are whole and streamed, of several samples, stopped, constrained, bad, cancelled, too
many, half sent, and left at any moment, before the first byte too. Afterwards every answer that was waited for must
have been whole, no block may be in use and no request left, every connection must be closed, the books must balance
(the engine proves them whenever it is idle, and dies if they do not), the log must hold no traceback, and neither
process may still grow.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from bench.memory_watch import MIN_REQUESTS, MemoryWatch
from bench.servers import PizarraServer, pizarra
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

MODEL, MAX_MODEL_LEN = "tiny", 256
POOL_BLOCKS, BLOCK_BYTES = 40, 16 * 2 * 2 * 2 * 16 * 2
OPTIONS = {"kv_cache_memory_bytes": POOL_BLOCKS * BLOCK_BYTES, "max_model_len": MAX_MODEL_LEN, "num_threads": 1}
CLIENTS, MAX_WAITING = 40, 48
PATIENCE_S, REST_S = 120.0, 30.0
KEEP_ALIVE_S = 2.0  # shorter than the server's: a request must not meet a connection that is just being closed
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
BAD: tuple[tuple[str, Any, int], ...] = (  # path, body, status
    (TEXT, {"prompt": ""}, 400),
    (TEXT, {"prompt": [100_000]}, 400),
    (TEXT, {"prompt": "long", "max_tokens": 10_000}, 400),
    (TEXT, {"prompt": "hot", "temperature": "very"}, 400),
    (TEXT, {"prompt": "open", "guided_regex": "a(b"}, 400),
    (TEXT, {"prompt": "which", "model": "another"}, 404),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "n": 0}, 400),
    (CHAT, ["no object"], 400),
)
FAULTS_IN_A_LOG = ("Traceback", "never retrieved", "was destroyed", "ResourceWarning", "was never awaited")
KINDS_OF_END = ("stop", "length", "abort", "left", "left a stream", "half sent", "cancelled", "400", "404", "429")
T = TypeVar("T")
LAST_WORDS = "Application shutdown complete"
WARNINGS = {"PYTHONWARNINGS": "always::ResourceWarning"}  # of sockets and files that nobody closed


class Clients:
    """So many clients at a time, and what became of what they asked for."""

    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.num_asked = self.num_done = 0

    async def press(self, num_requests: int, after_each: Callable[[int], None]) -> None:
        """Asks so many times in all, each client again as soon as it is done. after_each: told how many are done."""

        async def keep_asking() -> None:
            while self.num_asked < num_requests:
                self.num_asked += 1
                try:
                    await self._ask_something()
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self.faults.append(f"request {self.num_done}: {type(error).__name__}: {error}")
                self.num_done += 1
                after_each(self.num_done)

        await asyncio.gather(*(keep_asking() for _ in range(CLIENTS)))

    def _ask_something(self) -> Coroutine[Any, Any, None]:
        kinds = (self._whole, self._streamed, self._leave, self._leave_stream, self._cancel, self._half, self._bad)
        weights = (6, 6, 3, 3, 2, 1, 2)
        return self.random.choices(kinds, weights)[0]()

    async def _whole(self) -> None:
        path, body = self._wish()
        response = await self.client.post(path, json=body)
        if self._refused(response):
            await asyncio.sleep(0.2)
            return
        answer = response.json()
        self._judge(body, Counter(choice["finish_reason"] for choice in answer["choices"]), {"stop", "length"})

    async def _streamed(self) -> None:
        path, body = self._wish(stream=True)
        async with self.client.stream("POST", path, json=body) as response:
            if self._refused(response):
                await response.aread()
                return
            self._judge(body, await _endings(response), {"stop", "length"})

    async def _leave(self) -> None:
        """Goes at a moment of its own: while it is queued, during the prompt, in the middle, or just too late."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.random.choice([0.0, 0.005, 0.05, 0.3]) * self.random.random()):
                await self.random.choice([self._whole, self._streamed])()
                return
        self.outcomes["left"] += 1

    async def _leave_stream(self) -> None:
        """Goes after so many lines; none is before the first byte of the body."""
        path, body = self._wish(stream=True)
        lines = self.random.choice([0, 1, 2, 9])
        async with self.client.stream("POST", path, json=body) as response:
            if not self._refused(response) and lines > 0:
                async for _ in response.aiter_lines():
                    lines -= 1
                    if lines == 0:
                        break
        self.outcomes["left a stream"] += 1

    async def _cancel(self) -> None:
        """Has its answer ended by the dashboard's call, and reads what there is."""
        path, body = self._wish(stream=True)
        async with self.client.stream("POST", path, json=body) as response:
            if self._refused(response):
                await response.aread()
                return
            self._judge(body, await _endings(response, self._cancel_one), {"stop", "length", "abort"})

    async def _cancel_one(self, answer_id: str) -> None:
        cancelled = await self.client.post(f"/api/requests/{answer_id.partition('-')[2]}/cancel")
        self.outcomes["cancelled"] += cancelled.status_code == httpx.codes.ACCEPTED
        if cancelled.status_code not in (httpx.codes.ACCEPTED, httpx.codes.NOT_FOUND):  # it may just have ended
            self.faults.append(f"a cancel was answered with {cancelled.status_code}: {cancelled.text}")

    async def _half(self) -> None:
        """Sends a part of a request and goes."""
        url = self.client.base_url
        path, body = self._wish()
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
        message = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(message[: self.random.randrange(1, len(message))])
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.outcomes["half sent"] += 1

    async def _bad(self) -> None:
        path, body, status = self.random.choice(BAD)
        response = await self.client.post(path, json=body)
        if self._refused(response, status):
            return
        self.faults.append(f"{path} {body} was answered with {response.status_code}: {response.text}")

    def _wish(self, **fields: Any) -> tuple[str, dict[str, Any]]:
        """A path and a good body of a random kind; a third of the prompts begin alike."""
        pick = self.random
        shared = "The same beginning of many. " if pick.random() < 0.33 else ""
        prompt = shared + "".join(pick.choices("abcdefgh ", k=pick.randint(1, 40)))
        body: dict[str, Any] = {
            "temperature": pick.choice([0.0, 0.7, 1.0]),
            "max_tokens": pick.randint(1, 60),
            "ignore_eos": pick.random() < 0.5,
            "n": pick.choice([1, 1, 1, 2, 4]),
            **fields,
        }
        match pick.randrange(6):
            case 0:
                body |= {"stop": pick.choice(["e", ["a", " t"], "<never>"]), "seed": pick.randrange(1 << 53)}
            case 1:
                body |= {"guided_json": SCHEMA}
            case 2:
                body |= {"guided_regex": "[a-z]{1,12}( [0-9]+)*", "top_p": 0.9}
            case 3:
                body |= {"repetition_penalty": 1.2, "bad_words": ["ab"], "logit_bias": {"5": 2.0}, "priority": 1}
        if pick.random() < 0.5:
            return TEXT, body | {"prompt": prompt}
        return CHAT, body | {"messages": [{"role": "user", "content": prompt}]}

    def _refused(self, response: httpx.Response, expected: int = httpx.codes.TOO_MANY_REQUESTS) -> bool:
        """Books a refusal that was to be expected; one because of the queue always is, and says when to come back."""
        if response.status_code == httpx.codes.OK:
            return False
        self.outcomes[str(response.status_code)] += 1
        if response.status_code not in (expected, httpx.codes.TOO_MANY_REQUESTS):
            self.faults.append(f"a refusal with {response.status_code}, {expected} was to be expected")
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS and "retry-after" not in response.headers:
            self.faults.append("a 429 does not say when to come back")
        return True

    def _judge(self, body: dict[str, Any], endings: Counter[str], allowed: set[str]) -> None:
        """Every sample ends once, as it may."""
        self.outcomes.update(endings)
        if endings.total() != body["n"] or not endings.keys() <= allowed:
            self.faults.append(f"{body} ended with {dict(endings)}")


async def _endings(
    response: httpx.Response, on_first: Callable[[str], Coroutine[Any, Any, None]] | None = None
) -> Counter[str]:
    """The finish reasons of a stream that must end with [DONE]. on_first: called once with the answer's id."""
    endings: Counter[str] = Counter()
    done = False
    async for line in response.aiter_lines():
        done = done or line == "data: [DONE]"
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        if on_first is not None:
            await on_first(event["id"])
            on_first = None
        endings.update(choice["finish_reason"] for choice in event["choices"] if choice["finish_reason"])
    if not done:
        raise ValueError("a stream ended without [DONE]")
    return endings


def soak(num_requests: int, seed: int) -> list[str]:
    """Runs it; prints a line now and then. Returns what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_llama_checkpoint(Path(folder) / MODEL, max_position_embeddings=MAX_MODEL_LEN)
        settings = {"max_waiting_requests": str(MAX_WAITING)}
        with pizarra(Path(folder) / "home", {MODEL: tiny}, WARNINGS, **settings) as server:
            faults = asyncio.run(_run(server, num_requests, seed))
            if server.unload(MODEL)["forced"]:
                faults.append("the unload had to end a request that nobody waits for")
            server.running.stop()
            log = server.running.text()
    if LAST_WORDS not in log:
        faults.append("the server did not leave in peace")
    return faults + [f"the log has {fault!r}: {log[-3000:]}" for fault in FAULTS_IN_A_LOG if fault in log]


async def _run(server: PizarraServer, num_requests: int, seed: int) -> list[str]:
    engine = server.load(MODEL, **OPTIONS)
    app = psutil.Process(server.running.process.pid)
    memory, start = MemoryWatch({"app": app.pid, "engine": engine["pid"]}, num_requests), time.monotonic()
    limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, limits=limits, trust_env=False) as client:
        clients = Clients(client, seed)

        def after_each(num_done: int) -> None:
            memory.take(num_done / num_requests)
            if num_done % max(1, num_requests // 10) == 0:
                print(f"{num_done} done, {time.monotonic() - start:.0f} s", flush=True)

        await clients.press(num_requests, after_each)
    print(f"{dict(clients.outcomes)}, {time.monotonic() - start:.0f} s")
    for name in KINDS_OF_END if num_requests >= MIN_REQUESTS else ():
        if not clients.outcomes[name]:
            clients.faults.append(f"nothing ended as {name!r}: the soak did not press hard enough")
    return [*clients.faults, *_faults_at_rest(server, engine["pid"]), *_open_ends(app), *memory.faults()]


def _faults_at_rest(server: PizarraServer, engine_pid: int) -> list[str]:
    """What an idle server must not show."""
    engine = _settled(lambda: server.engine(), lambda found: not any(_left(found).values()))
    faults = []
    if engine["pid"] != engine_pid:
        faults.append("the engine is not the one that was loaded: its books did not balance, or it crashed")
    if any(_left(engine).values()):
        faults.append(f"left at rest: {_left(engine)}")
    stats = engine["stats"]
    print(f"{stats['steps_total']} steps, {stats['preemptions_total']} preemptions")
    if stats["preemptions_total"] == 0:
        faults.append("nothing was preempted: the soak did not press hard enough")
    rows = server.client.get("/api/requests", params={"limit": 1000}).json()["requests"]
    unended = [row["id"] for row in rows if row["state"] not in ("finished", "failed")]
    return faults + ([f"requests whose rows have no end: {unended}"] if unended else [])


def _left(engine: dict[str, Any]) -> dict[str, int]:
    stats = engine["stats"]
    return {name: stats[name] for name in ("kv_blocks_used", "num_requests_running", "num_requests_waiting")}


def _open_ends(app: psutil.Process) -> list[str]:
    """Connections of clients who have all gone; our own is closed by the server once it has idled."""
    ends = _settled(
        lambda: [each for each in app.net_connections("inet") if each.status != psutil.CONN_LISTEN],
        lambda found: not found,
    )
    return [f"{len(ends)} connections are still open: {ends[:3]}"] if ends else []


def _settled(look: Callable[[], T], good: Callable[[T], bool]) -> T:
    """What is there once it is good, or at the latest after REST_S."""
    deadline = time.monotonic() + REST_S
    while not good(found := look()) and time.monotonic() < deadline:
        time.sleep(0.25)
    return found
