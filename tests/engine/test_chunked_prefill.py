"""A long prompt beside running answers: no step leaves an answer out, and none holds more than one chunk of the prompt.

That is the structure behind the promise on inter-token latency; bench/interleave.py measures the latency itself.
"""

from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool
from engine.core.kv_cache_manager import KVCacheManager
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.step import SchedulerOutput, StepResult

BUDGET, LONG_PROMPT = 512, 4096
ENDLESS = 10_000


def answering(num_answers: int, threshold: int) -> Scheduler:
    """A scheduler with so many answers that run and decode."""
    target = Scheduler(KVCacheManager(BlockPool(2048), 16), 32, BUDGET, threshold)
    for index in range(num_answers):
        target.add(request(f"answer {index}", 8))
    while any(one.num_output_tokens == 0 for one in target.requests.values()):
        run(target, target.schedule())
    return target


def request(name: str, prompt: int, priority: int = 0) -> Request:
    return Request(name, list(range(prompt)), SamplingParams(), 0, frozenset(), ENDLESS, priority=priority)


def run(target: Scheduler, plan: SchedulerOutput) -> list[str]:
    """Every sampling request gets a token; the ids of the rows that came of it."""
    rows = target.update(plan, StepResult({share.request_id: (7,) for share in plan.requests if share.samples}, 0.0))
    return [row.request_id for row in rows]


@pytest.mark.parametrize("priority", [0, -1], ids=["queued last", "served first"])
@pytest.mark.parametrize("threshold", [0, 512, 256, 64, 16])
@pytest.mark.parametrize("num_answers", [1, 3, 16])
def test_every_step_of_a_long_prefill_serves_all_answers_and_one_chunk(
    num_answers: int, threshold: int, priority: int
) -> None:
    target = answering(num_answers, threshold)
    answers = [f"answer {index}" for index in range(num_answers)]
    target.add(request("long", LONG_PROMPT, priority))
    chunk = min(threshold or BUDGET, BUDGET - num_answers)
    computed = 0
    while computed < LONG_PROMPT:
        plan = target.schedule()
        sizes = {share.request_id: len(share.token_ids) for share in plan.requests}
        assert sizes == dict.fromkeys(answers, 1) | {"long": min(chunk, LONG_PROMPT - computed)}
        assert all(share.samples for share in plan.requests if share.request_id != "long")
        computed += sizes["long"]
        assert sorted(run(target, plan)) == sorted([*answers, *(["long"] if computed == LONG_PROMPT else [])])


def test_two_long_prompts_share_the_budget_and_leave_the_answers_their_rows() -> None:
    target = answering(4, threshold=128)
    for name in ("long", "longer"):
        target.add(request(name, LONG_PROMPT))
    for _ in range(LONG_PROMPT // 128):
        plan = target.schedule()
        sizes = {share.request_id: len(share.token_ids) for share in plan.requests}
        assert sizes == {f"answer {index}": 1 for index in range(4)} | {"long": 128, "longer": 128}
        run(target, plan)
