"""One model on one device: its weights, its KV cache, and the step.

Anything that happens on the device happens from here. Knows plans, not requests; tokens, not text.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.checkpoint import CheckpointInfo
from engine.config import LoadOptions, ModelConfig
from engine.core.outputs import Logprobs
from engine.core.scheduler import SchedulerOutput, StepResult
from engine.models.loader import load_model
from engine.models.workspace import Workspace
from engine.runner.input_batch import BatchInputs, InputBatch, aligned
from engine.runner.kv_cache import allocate_caches
from engine.runner.load_plan import LoadPlan
from engine.runner.pooling import Pooler
from engine.sample.logprobs import add_logprobs
from engine.sample.sampler import sample
from kernels.registry import THREADS, load_ops

Progress = Callable[[str, int, int, str], None]  # stage, done, total, message


class ModelRunner:
    """Weights and caches in place, ready to run plans."""

    def __init__(self, info: CheckpointInfo, options: LoadOptions, plan: LoadPlan, progress: Progress) -> None:
        self.config: ModelConfig = info.config
        self.device, self.dtype = plan.device.device, plan.dtype
        self.num_threads = options.num_threads or os.cpu_count() or 1
        torch.set_num_threads(self.num_threads)
        wishes = backend_wishes(self.device, self.dtype)
        ops, self.kernels = load_ops(wishes, self.dtype, self.device, self.num_threads)
        self.draw = ops.draw
        rows = aligned(options.max_num_batched_tokens, ops.row_alignment)
        sample_rows = aligned(options.max_num_seqs, ops.row_alignment)
        own_threads = any(choice.backend in THREADS for choice in self.kernels)
        if own_threads and info.config.transformers_class:
            torch.set_num_threads(1)  # see below; this model's checks are steps already
        with torch.inference_mode():
            self.model = load_model(
                info,
                ops,
                plan.kv.max_model_len,
                self.dtype,
                self.device,
                lambda done, total: progress("weights", done, total, ""),
            )
            progress("kv_cache", 0, plan.kv.kv_bytes, "")
            coded = options.kv_cache_dtype != "auto"
            self.caches = allocate_caches(
                info.config, plan.kv.num_blocks, options.block_size, plan.kv_dtype, self.device, coded=coded
            )
            self.workspace = Workspace.allocate(info.config, rows, sample_rows, self.dtype, self.device)
        tables = (options.max_num_seqs, -(-plan.kv.max_model_len // options.block_size))
        self.pooler = Pooler()
        self.batch = InputBatch(
            rows, sample_rows, tables, options.block_size, plan.kv.groups, ops.row_alignment, self.device
        )
        if own_threads:
            torch.set_num_threads(1)  # two pools of threads on the same cores slow each other down many times over

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as they lie in memory, a tied head counted once."""
        return sum(weight.nbytes for weight in self.model.weights())

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """Runs a step and draws its tokens."""
        start = time.perf_counter()
        inputs, logits = self._forward(plan)
        drawn = dict(zip(inputs.sampled_ids, sample(logits, inputs.sampling, self.draw), strict=True))
        prompt_logprobs = self._prompt_logprobs(plan, inputs)
        self.pooler.forget(plan.ended)  # before it may begin anew under the same id
        pooled = self.pooler.pool(plan, self.workspace.normed)
        faults = {request_id: one.fault for request_id, one in drawn.items() if one.fault is not None}
        return StepResult(
            token_ids={request_id: (one.token_id,) for request_id, one in drawn.items() if one.fault is None},
            step_s=time.perf_counter() - start,
            faults=faults | pooled.faults,
            logprobs={request_id: one.logprobs for request_id, one in drawn.items() if one.logprobs is not None},
            prompt_logprobs=prompt_logprobs,
            pooled=pooled.vectors,
        )

    def logits(self, plan: SchedulerOutput) -> Tensor:
        """The logits of a plan's sampled rows, [rows, V] in fp32 (fp64 for a float64 model): a copy."""
        inputs, logits = self._forward(plan)
        return logits[: len(inputs.sampled_ids)].clone()

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is remembered of requests that will not run again."""
        self.batch.forget(request_ids)
        self.pooler.forget(request_ids)

    @torch.inference_mode()
    def _prompt_logprobs(self, plan: SchedulerOutput, inputs: BatchInputs) -> dict[str, Logprobs]:
        """Log probabilities of the shares' prompt targets, a workspace of logits at a time: they overwrite the drawn
        rows' logits, so this comes after the draw."""
        found: dict[str, Logprobs] = {}
        starts = inputs.step.attention[0].query_start_loc
        for start, request in zip(starts, plan.requests, strict=False):
            if not request.prompt_targets:
                continue
            found[request.request_id] = Logprobs()
            num_top, capacity = request.sampling.prompt_logprobs or 0, len(self.workspace.logits)
            for offset in range(0, len(request.prompt_targets), capacity):
                targets = request.prompt_targets[offset : offset + capacity]
                for logits, token_id in zip(self._row_logits(start + offset, len(targets)), targets, strict=False):
                    add_logprobs(found[request.request_id], logits, token_id, num_top)
        return found

    def _row_logits(self, first: int, count: int) -> Tensor:
        """Logits of `count` rows of the step that has just run, padded to the row alignment."""
        ops = self.model.ops
        rows = torch.arange(first, first + aligned(count, ops.row_alignment), device=self.device)
        rows.clamp_(max=first + count - 1)
        workspace = self.workspace.cut(len(self.workspace.normed), len(rows))
        ops.gather_rows(workspace.picked, workspace.normed, rows)
        self.model.head.forward(workspace.logits, workspace.picked)
        return workspace.logits

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> tuple[BatchInputs, Tensor]:
        inputs = self.batch.build(plan)
        workspace = self.workspace.cut(inputs.num_rows, inputs.num_sample_rows)
        self.model.forward(workspace, inputs.step, self.caches)
        return inputs, workspace.logits


def backend_wishes(device: torch.device, dtype: torch.dtype) -> list[str]:
    """Kernel backends in order of preference, before the reference."""
    return ["cpu_ops"] if device.type == "cpu" and dtype != torch.float64 else []
