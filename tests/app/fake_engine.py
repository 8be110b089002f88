"""An engine process without a model: speaks the protocol over the pipe and answers with a fixed text.

Run by the supervisor in place of engine.process. Words in the prompt make it misbehave: CRASH dies after three tokens,
FAIL answers with an error row, SAY«text» answers with that text, HANG never answers, SLOW takes 30 ms a token, ENDLESS
never stops by itself. `--mode` makes the load misbehave. What it does with requests it prints, so that tests can read
it in the engine's log. Sample i begins i tokens later in the text. A log probability is minus the token's place,
counted from 1; the alternatives follow at a distance of 1. A guided request is refused when its text says BAD, and
ends, complete, after 7 tokens otherwise. An embedding has two numbers, (3, 4) / 5 for "last" and (4, 3) / 5 for "mean".

It speculates unless the load options say "off": a request that says DRAFT, or is not adaptive, has three drafts (or as
many as it asks for) verified with every token, of which it says that two were right; the text stays the same. A request
that says CHALK has honest drafts, and several tokens a step (fake_chalk.py). NEARTIE puts alternatives 0.05 apart.
PROPOSER OFF and PROPOSER ON in a prompt switch the proposer `suffix`; MEASURED and a word of `fake_costs` has it send
what steps and drafts took. In the mode "lying" drafts change every second token, and in the mode "vague" so too, of an
engine that promises the distribution only. QUEUED tells a course: see fake_course.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine import protocol
from engine.core.outputs import Logprobs, RequestOutput, RequestSummary, RequestTiming
from engine.core.speculation import DraftCounters
from engine.vocab import load_vocab
from tests.app.fake_blocks import FakeBlocks
from tests.app.fake_chalk import chalk_row
from tests.app.fake_costs import measured_costs, proposers
from tests.app.fake_course import Course, course_of, progress_of
from tests.app.fake_inspection import fake_inspection
from tests.app.fake_text import MAX_MODEL_LEN, TEXT

TOKEN_S = 0.001
POOLED = {"last": [0.6, 0.8], "mean": [0.8, 0.6]}


@dataclass
class Running:
    """A request being answered."""

    request: protocol.AddRequest
    prompt: str
    text_ids: list[int]
    index: int = 0
    sent: int = 0
    turn: int = 0
    next_s: float = 0.0
    counters: DraftCounters = field(default_factory=DraftCounters)
    course: Course | None = None

    @property
    def num_drafts(self) -> int:
        """Of each step: none, unless it asks for them."""
        wish = self.request.speculation
        drafts = wish.enabled and ("DRAFT" in self.prompt or not wish.adaptive)
        return (wish.num_speculative_tokens or 3) if drafts else 0


class FakeEngine:
    def __init__(self, connection: Connection, model: Path, mode: str, speculates: bool) -> None:
        self.connection = connection
        self.mode = mode
        self.speculates = self.enabled = speculates
        self.proposer_off = ""
        self.total = DraftCounters()
        self.vocab = load_vocab(model)
        self.text_ids = self.vocab.encode(TEXT)
        self.inbox: queue.SimpleQueue[protocol.ToEngine] = queue.SimpleQueue()
        self.running: dict[tuple[str, int], Running] = {}
        self.blocks = FakeBlocks()
        self.draining = False
        self.generated = 0
        self.stats_s = 0.0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        while True:
            try:
                data = self.connection.recv_bytes()
            except (EOFError, OSError):
                os._exit(0)
            self.inbox.put(protocol.decode_to_engine(data))

    def send(self, message: protocol.FromEngine) -> None:
        self.connection.send_bytes(protocol.encode(message))

    def run(self) -> None:
        while not (self.draining and not self.running):
            with contextlib.suppress(queue.Empty):
                self.handle(self.inbox.get(timeout=TOKEN_S))
            rows = [row for running in list(self.running.values()) if (row := self.step(running)) is not None]
            if rows:
                self.send(protocol.StepOutputs(rows))
            self.send_stats()
            for reply in self.blocks.turn({key[0]: one.request for key, one in self.running.items()}):
                self.send(reply)

    def handle(self, message: protocol.ToEngine) -> None:
        match message:
            case protocol.AddRequest():
                prompt = self.vocab.decode(message.prompt_token_ids)
                print(f"added {message.request_id} {message.sampling}", flush=True)
                print(f"queued priority={message.priority} salt={message.cache_salt!r} n={message.n}", flush=True)
                print(f"speculates {message.request_id} {message.speculation} trace={message.trace}", flush=True)
                if switch := re.search("PROPOSER (OFF|ON)", prompt):
                    self.proposer_off = "12 % of its drafts were right" if switch[1] == "OFF" else ""
                if measured := re.search("MEASURED (\\w+)", prompt):
                    self.send(protocol.SpeculationCosts(time.time(), measured_costs(measured[1], time.time())))
                text_ids = (
                    self.vocab.encode(said[1], parse_special=False)
                    if (said := re.search("SAY«(.*)»", prompt, re.DOTALL))
                    else self.text_ids
                )
                course = course_of(message.request_id, prompt, len(message.prompt_token_ids))
                for index in range(message.n):
                    self.running[message.request_id, index] = Running(message, prompt, text_ids, index, course=course)
            case protocol.CheckGrammar():
                fault = f"guided: {message.guided.kind}: BAD" if "BAD" in message.guided.text else None
                verdict = RequestOutput(message.request_id, [], "stop" if fault is None else "error", fault)
                self.send(protocol.StepOutputs([verdict]))
            case protocol.AbortRequest():
                self.abort(message)
            case protocol.SetSpeculation():
                print(f"{message}", flush=True)
                self.enabled = self.enabled if message.enabled is None else message.enabled
            case protocol.WatchBlocks() | protocol.AskRoom():
                self.blocks.handle(message)
            case protocol.Drain():
                self.draining = True
            case protocol.Shutdown():
                print("shutdown", flush=True)
                sys.exit(0)

    def abort(self, message: protocol.AbortRequest) -> None:
        doomed = [key for key in self.running if key[0] == message.request_id and message.index in (None, key[1])]
        print(f"aborted {message.request_id} {message.num_output_tokens} {bool(doomed)}", flush=True)
        for running in [self.running.pop(key) for key in doomed]:
            if "HANG" not in running.prompt:
                self.send(protocol.StepOutputs([self.last_row(running, [], "abort")]))

    def step(self, running: Running) -> RequestOutput | None:
        now = time.monotonic()
        if "HANG" in running.prompt or now < running.next_s:
            return None
        if running.course is not None and not running.course.started(now):
            return None
        key, sampling = (running.request.request_id, running.index), running.request.sampling
        if "FAIL" in running.prompt:
            del self.running[key]
            return RequestOutput(key[0], [], "error", "asked to fail", index=running.index)
        if sampling.guided is not None and "BAD" in sampling.guided.text:
            del self.running[key]
            return RequestOutput(key[0], [], "error", f"guided: {sampling.guided.kind}: BAD", index=running.index)
        if running.request.inspect is not None:
            del self.running[key]
            token = self.text_ids[0] if running.request.inspect.token_id is None else running.request.inspect.token_id
            inspection = fake_inspection(running.request, token)
            return replace(self.last_row(running, [token], "length"), inspection=inspection)
        if running.request.pooling:
            del self.running[key]
            print(f"pooled {key[0]} {running.request.pooling}", flush=True)
            return replace(self.last_row(running, [], "stop"), pooled=POOLED[running.request.pooling])
        if "CRASH" in running.prompt and running.sent == 3:
            print("about to crash", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        running.next_s = now + (0.03 if "SLOW" in running.prompt else 0.0)
        endless = "ENDLESS" in running.prompt or sampling.ignore_eos
        if "CHALK" in running.prompt:
            return chalk_row(self, running)
        text_ids, scripted = running.text_ids, running.text_ids is not self.text_ids
        token = text_ids[(running.sent + (0 if scripted else running.index)) % len(text_ids)]
        reason = None
        if running.sent == len(text_ids) and not endless:
            token, reason = self.vocab.eos_token_ids[0], "stop"
        if self.speculates and self.enabled and running.num_drafts:
            token = self.verify(running, token)
        running.sent += 1
        self.generated += 1
        if token in sampling.stop_token_ids or (sampling.guided is not None and running.sent == 7 and not scripted):
            reason = "stop"
        elif running.sent == sampling.max_tokens:
            reason = reason or "length"
        if reason is not None:
            del self.running[key]
        row = RequestOutput(key[0], [token], index=running.index) if reason is None else None
        row = row or self.last_row(running, [token], reason or "")
        return self.with_logprobs(row, running)

    def verify(self, running: Running, token: int) -> int:
        """Counts a draft, tells of it where a trace is wanted, and returns the token that comes of it."""
        count = running.num_drafts
        accepted = min(2, count)
        for counters in (self.total, running.counters):
            counters.observe(count, accepted)
            counters.draft_s += 0.001
            counters.verify_s += 0.002
        if running.request.trace:
            draft = protocol.VerifiedDraft(
                request_id=running.request.request_id,
                index=running.index,
                step=self.generated,
                t_s=time.time(),
                position=len(running.request.prompt_token_ids) + running.sent,
                proposer="suffix",
                draft_token_ids=[token] * count,
                num_accepted=accepted,
                token_ids=[token] * (accepted + 1),
                draft_ms=1.0,
                verify_ms=2.0,
                num_requests=len(self.running),
                p=[0.5] * count,
                q=[1.0] * count,
            )
            self.send(protocol.StepTrace([draft]))
        lies = self.mode in ("lying", "vague") and running.sent % 2 == 1
        return token + 1 if lies else token

    def with_logprobs(self, row: RequestOutput, running: Running) -> RequestOutput:
        sampling, prompt = running.request.sampling, running.request.prompt_token_ids
        if sampling.logprobs is not None:
            gap = 0.05 if "NEARTIE" in running.prompt else 1.0
            row = replace(row, logprobs=some_logprobs(row.token_ids, running.sent, sampling.logprobs, gap))
        if sampling.prompt_logprobs is not None and running.sent == 1 and running.index == 0:
            row = replace(row, prompt_logprobs=some_logprobs(prompt[1:], 1, sampling.prompt_logprobs))
        return row

    def last_row(self, running: Running, token_ids: list[int], reason: str) -> RequestOutput:
        summary = RequestSummary(
            num_preemptions=int(running.course is not None),
            num_prompt_tokens=len(running.request.prompt_token_ids),
            num_output_tokens=running.sent,
            num_cached_tokens=16 if running.request.cache_salt else 0,
            seed=7 if running.request.sampling.seed is None else running.request.sampling.seed,
            **{name: count for name, count in asdict(running.counters).items() if name != "judged_per_position"},
            timing=RequestTiming(queue_s=0.001) if running.course is None else running.course.timing(time.monotonic()),
        )
        return RequestOutput(running.request.request_id, token_ids, reason, None, summary, index=running.index)

    def send_stats(self) -> None:
        if time.monotonic() < self.stats_s:
            return
        self.stats_s = time.monotonic() + 0.25
        if told := progress_of(running.course for running in self.running.values()):
            self.send(protocol.RequestsProgress(told))
        self.send(
            protocol.EngineStats(
                t_s=time.time(),
                num_requests_running=len(self.running),
                num_requests_waiting=0,
                kv_blocks_total=100,
                kv_blocks_used=len(self.running),
                kv_blocks_cached=0,
                prompt_tokens_total=0,
                generation_tokens_total=self.generated,
                requests_finished_total=0,
                preemptions_total=0,
                steps_total=self.generated,
                step_s_total=0.0,
                drafts_total=self.total.drafts,
                drafted_total=self.total.drafted,
                accepted_total=self.total.accepted,
                accepted_per_position_total=self.total.accepted_per_position,
                drafted_per_position_total=self.total.drafted_per_position,
                draft_s_total=self.total.draft_s,
                verify_s_total=self.total.verify_s,
                speculation_enabled=self.enabled,
                speculation_gain=1.25 if self.total.drafts else None,
                proposers=proposers(self.total, self.proposer_off) if self.speculates else [],
            )
        )


def some_logprobs(token_ids: list[int], place: int, count: int, gap: float = 1.0) -> Logprobs:
    """Of each token, minus its place; the alternatives are the token itself and the ids behind it, `gap` apart."""
    return Logprobs(
        [-float(place + i) for i in range(len(token_ids))],
        [[(token + k) % 320 for k in range(count)] for token in token_ids],
        [[-float(place + i) - gap * k for k in range(count)] for i in range(len(token_ids))],
    )


def load(connection: Connection, mode: str, speculates: bool) -> None:
    """The load, as `mode` wants it to go."""

    def send(message: protocol.FromEngine) -> None:
        connection.send_bytes(protocol.encode(message))

    send(protocol.LoadProgress("weights", 1, 2))
    if mode == "crash":
        print("no such luck", flush=True)
        os._exit(3)
    if mode == "fail":
        send(protocol.EngineFailed("out_of_memory", "asked to fail while loading: lower max_num_seqs"))
        sys.exit(1)
    if mode == "slow":
        time.sleep(30)
    memory = protocol.EngineMemory(weights_bytes=10, kv_bytes=20, process_bytes=10**7)
    send(
        protocol.EngineReady(
            protocol_version=protocol.PROTOCOL_VERSION if mode != "old" else 0,
            pid=os.getpid(),
            architecture="fake",
            device="cpu",
            device_name="none",
            dtype="float32",
            exactness="bits" if mode != "vague" else "distribution",
            exactness_reason="the text is fixed",
            effective_settings=[],
            memory=memory,
            num_kv_blocks=100,
            block_size=16,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=320,
            num_threads=1,
            kernels={},
            load_s=0.1,
            proposers=["ngram", "suffix"] if speculates else [],
            speculation="suffix" if speculates else "off",
            model_hash="aaaa",
            drafter_hash="bbbb" if speculates else "",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="normal")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    arguments = parser.parse_args()
    if arguments.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = Connection(arguments.fd)
    print(f"options {arguments.options}", flush=True)
    print(f"kernel cache {os.environ['PIZARRA_KERNEL_CACHE']}", flush=True)
    speculates = arguments.options["speculation"] != "off"
    load(connection, arguments.mode, speculates)
    if arguments.mode == "stubborn":
        while True:
            time.sleep(60)
    FakeEngine(connection, arguments.model, arguments.mode, speculates).run()


main()
