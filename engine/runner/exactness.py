"""Does a row's result depend on its company here? Measured on the loaded model, not assumed.

A short random prompt is run alone and whole, then cut in two beside other prompts, each time followed by a decode
step. If the logits are the same bits, this engine promises exactness "bits": the same seed gives the same text whatever
else runs. If not, it says "distribution" and why. The last step is also compared with its own replay. Runs on the free
cache before the engine takes requests, and warms it up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.runner.model_runner import ModelRunner

PROMPT_TOKENS, COMPANIONS = 37, 4  # where the engine is large enough for them


@dataclass(frozen=True, slots=True)
class Exactness:
    """level: "bits" | "distribution"."""

    level: str
    reason: str


class _Script:
    """Hands out blocks in order, to each KV group its own, and turns (name, tokens) pairs into plans."""

    def __init__(self, block_size: int, num_groups: int) -> None:
        self.block_size = block_size
        self.num_groups = num_groups
        self.next_block = 1
        self.computed: dict[str, int] = {}
        self.ended: tuple[str, ...] = ()

    def plan(self, *parts: tuple[str, list[int]]) -> SchedulerOutput:
        requests = []
        for name, tokens in parts:
            start = self.computed.get(name, 0)
            end = start + len(tokens)
            added = -(-end // self.block_size) - -(-start // self.block_size)
            firsts = [self.next_block + group * added for group in range(self.num_groups)]
            self.next_block += added * self.num_groups
            self.computed[name] = end
            requests.append(
                ScheduledRequest(
                    request_id=name,
                    first=start == 0,
                    token_ids=tuple(tokens),
                    num_computed_tokens=start,
                    block_ids=tuple(tuple(range(first, first + added)) for first in firsts),
                    samples=True,
                    sampling=SamplingParams(temperature=0),
                    seed=0,
                    num_prompt_tokens=end,
                )
            )
        ended, self.ended = self.ended, ()
        return SchedulerOutput(tuple(requests), ended)

    def finish(self) -> None:
        """Forgets all requests; their blocks are free again."""
        self.ended = tuple(self.computed)
        self.computed, self.next_block = {}, 1


def probe(runner: ModelRunner, options: LoadOptions, num_blocks: int, max_model_len: int) -> Exactness:
    """Runs the probe; leaves the cache contents undefined and the runner without requests."""
    num_groups = len(runner.batch.groups)
    length, companions = _size(options, (num_blocks - 1) // num_groups, max_model_len)
    if length < 2:
        return Exactness("bits", "this engine holds one token at a time, so there is no company to depend on")
    generator = torch.Generator().manual_seed(0)

    def prompt() -> list[int]:
        return torch.randint(runner.config.vocab_size, (length,), generator=generator).tolist()

    others, subject, last = [(f"probe-{index}", prompt()) for index in range(companions)], prompt(), [1]
    more = [(name, last) for name, _ in others]
    script = _Script(options.block_size, num_groups)
    alone = [
        runner.logits(script.plan(("subject", subject)))[0],
        runner.logits(script.plan(("subject", last)))[0],
    ]
    script.finish()
    runner.logits(script.plan(("subject", subject[: length // 2]), *others))
    beside = [
        runner.logits(script.plan(*more, ("subject", subject[length // 2 :])))[-1],
        runner.logits(script.plan(*more, ("subject", last)))[-1],
    ]
    runner.check_replay()
    script.finish()
    runner.forget(script.ended)
    return _verdict(alone, beside)


def _size(options: LoadOptions, num_blocks: int, max_model_len: int) -> tuple[int, int]:
    """Prompt length and number of companions that this engine has room for, with `num_blocks` for each KV group."""
    companions = min(COMPANIONS, options.max_num_seqs - 1)
    room = num_blocks * options.block_size - 2  # the probe frees nothing, not even what windows have passed
    length = min(PROMPT_TOKENS, max_model_len - 2, options.max_num_batched_tokens // (1 + companions), room)
    blocks_each = -(-(length + 2) // options.block_size)
    companions = min(companions, num_blocks // blocks_each - 1) if blocks_each else 0
    return length, companions


def _verdict(alone: list[Tensor], beside: list[Tensor]) -> Exactness:
    apart = max(float((one - other).abs().max()) for one, other in zip(alone, beside, strict=True))
    if all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True)):
        return Exactness(
            "bits", "measured at load: a prompt gave the same logits alone and whole as cut up beside others"
        )
    return Exactness(
        "distribution",
        f"measured at load: a prompt's logits differ by up to {apart:.2g} when it is cut up beside others; "
        "these kernels are not batch-invariant on this machine",
    )
