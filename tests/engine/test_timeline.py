"""What a request's timing says of its wait, chunks, preemptions and company, from the scheduler alone."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from engine.core import request as request_module
from engine.core import scheduler as scheduler_module
from engine.core import timeline as timeline_module
from engine.core.block_pool import BlockPool
from engine.core.kv_cache_manager import KVCacheManager
from engine.core.outputs import RequestTiming
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.step import StepResult
from engine.core.timeline import MAX_CHUNKS, Timeline, progress_of
from engine.protocol import RequestsProgress, decode_from_engine, encode


class Steps:
    """A scheduler whose every reading of the clock is told, and whose steps take a second each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, blocks: int = 20, seqs: int = 4, budget: int = 16) -> None:
        self.now = 100.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        for module in (request_module, scheduler_module, timeline_module):
            monkeypatch.setattr(module, "time", clock)
        self.scheduler = Scheduler(KVCacheManager(BlockPool(blocks + 1), 4), seqs, budget)
        self.timings: dict[str, RequestTiming] = {}

    def add(self, name: str, prompt: int, output: int = 3) -> Request:
        request = Request(name, list(range(prompt)), SamplingParams(), 0, frozenset(), output, arrival_s=self.now)
        self.scheduler.add(request)
        return request

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            plan = self.scheduler.schedule()
            self.now += 1.0
            tokens = {share.request_id: (7,) for share in plan.requests if share.samples}
            for row in self.scheduler.update(plan, StepResult(tokens, 1.0)):
                if row.summary is not None:
                    self.timings[row.request_id] = row.summary.timing


def test_a_prompt_in_chunks_and_the_company_it_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, budget=8)
    steps.add("short", 2, output=9)
    steps.step()
    steps.add("long", 18, output=2)
    steps.step(2)
    told = progress_of(steps.scheduler.running, steps.scheduler.waiting, "")
    assert [(each.request_id, each.state, each.done, each.total) for each in told] == [("long", "prefill", 14, 18)]
    assert decode_from_engine(encode(RequestsProgress(told))) == RequestsProgress(told)
    steps.step(2)
    long = steps.timings["long"]
    chunks = [(chunk.start_s, chunk.end_s, chunk.num_tokens, chunk.done) for chunk in long.chunks]
    assert chunks == [(0.0, 1.0, 7, 7), (1.0, 2.0, 7, 14), (2.0, 3.0, 4, 18)]
    assert (long.queue_s, long.decode_steps, long.others_mean, long.others_prompt_tokens) == (0.0, 1, 1.0, 0)
    steps.step(9)
    assert steps.timings["short"].others_prompt_tokens == 18


def test_a_wait_is_told_by_what_was_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, seqs=1)
    steps.add("first", 4, output=3)
    steps.add("second", 4, output=1)
    steps.step()
    told = progress_of(steps.scheduler.running, steps.scheduler.waiting, steps.scheduler.queue_clock.cause)
    assert [(each.request_id, each.state, each.ahead, each.cause) for each in told] == [
        ("second", "waiting", 0, "slots")
    ]
    steps.step(4)
    wait = steps.timings["second"].wait
    assert wait is not None
    assert (wait.num_ahead, wait.slots_s, wait.blocks_s, wait.budget_s) == (1, 3.0, 0.0, 0.0)
    assert steps.timings["second"].queue_s == 3.0


def test_a_wait_for_blocks_and_a_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, blocks=6)
    steps.add("old", 10, output=8)
    steps.add("young", 6, output=9)
    steps.add("late", 12, output=1)
    steps.step(30)
    young, late = steps.timings["young"], steps.timings["late"]
    assert len(young.preemptions) == 1
    taken = young.preemptions[0]
    assert taken.resumed_s is not None
    assert 0 < taken.t_s < taken.resumed_s
    assert [chunk.recomputed for chunk in young.chunks] == [False] + [True] * (len(young.chunks) - 1)
    assert late.wait is not None
    assert late.queue_s is not None
    assert late.wait.blocks_s + late.wait.budget_s == late.queue_s
    assert late.wait.blocks_s > late.wait.budget_s == 1.0  # the first two prompts filled the first step


def test_what_is_listed_of_a_long_prompt_is_bounded() -> None:
    line = Timeline()
    for chunk in range(MAX_CHUNKS + 9):
        line.computed(float(chunk), 0.0, chunk, chunk + 1, 10_000)
    assert len(line.chunks) == MAX_CHUNKS
    assert (line.chunks[-1].done, line.chunks[-1].num_tokens) == (MAX_CHUNKS + 9, 10)
