"""One model on one device: its weights, its KV cache, and the step.

Anything that happens on the device happens from here. Knows plans, not requests; tokens, not text.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.checkpoint import CheckpointInfo
from engine.config import LoadOptions, ModelConfig
from engine.core.outputs import Logprobs
from engine.core.speculation import DraftPlan, DraftResult, most_sampled_rows
from engine.core.step import SchedulerOutput, StepResult
from engine.cores import usable_cores
from engine.layers.linear import Weight
from engine.models.loader import load_model
from engine.models.workspace import Workspace
from engine.runner.input_batch import MOST_VIEWS, BatchInputs, InputBatch
from engine.runner.kv_cache import allocate_caches
from engine.runner.load_plan import LoadPlan
from engine.runner.pooling import Pooler
from engine.runner.recorded_step import StepShapes, aligned, graph_classes, recorded, rows_each
from engine.sample.logprobs import log_probabilities
from engine.sample.sampler import Sampler
from engine.sample.verifier import Verifier, no_scores
from engine.spec.drafter import Drafter
from engine.spec.drafter_loading import DrafterHost, load_drafter
from kernels.checks import FLOAT8
from kernels.group_quant import GroupQuant
from kernels.ops import Ops
from kernels.recording import Eager
from kernels.registry import THREADS, KernelChoice, load_ops

Progress = Callable[[str, int, int, str], None]  # stage, done, total, message


class ModelRunner:
    """Weights and caches in place, ready to run plans."""

    def __init__(
        self,
        info: CheckpointInfo,
        options: LoadOptions,
        plan: LoadPlan,
        progress: Progress,
        weights: Iterable[tuple[str, Weight]] | None = None,
    ) -> None:
        """weights: see `load_model`."""
        self.config: ModelConfig = info.config
        self.device, self.dtype = plan.device.device, plan.dtype
        self.num_threads = options.num_threads or usable_cores()
        torch.set_num_threads(self.num_threads)
        wishes = backend_wishes(self.device, self.dtype, options.kernel_backend)
        ops, self.kernels = load_ops(wishes, self.dtype, self.device, self.num_threads, float8=plan.kv_dtype == FLOAT8)
        ops = rounding_activations(ops, activation_bits(options.activation_bits, self.kernels))
        by_transformers = bool(info.config.transformers_class)
        self.recorder, ops = recorded(
            options,
            ops,
            self.kernels,
            self.device,
            by_transformers=by_transformers,
            mixture=info.config.num_experts > 0,
        )
        rows = aligned(options.max_num_batched_tokens, ops.row_alignment)
        sample_rows = aligned(most_sampled_rows(options), ops.row_alignment)
        own_threads = any(choice.backend in THREADS for choice in self.kernels)
        if own_threads and by_transformers:
            torch.set_num_threads(1)  # see below; this model's checks are steps already
        with torch.inference_mode():
            self.model = load_model(
                info,
                ops,
                plan.kv.max_model_len,
                self.dtype,
                self.device,
                lambda done, total: progress("weights", done, total, ""),
                weights,
            )
            self.drafter = self._load_drafter(info, options, plan, progress)
            progress("kv_cache", 0, plan.kv.kv_bytes, "")
            coded = options.kv_cache_dtype != "auto"
            self.caches = allocate_caches(
                info.config, plan.kv.num_blocks, options.block_size, plan.kv_dtype, self.device, coded=coded
            )
            self.workspace = Workspace.allocate(info.config, rows, sample_rows, self.dtype, self.device)
        draft_scores = no_scores if self.drafter is None else self.drafter.draft_scores
        self.verifier = Verifier(ops, Sampler(ops, self.workspace.logits), draft_scores)
        self._cut = functools.lru_cache(MOST_VIEWS)(self.workspace.cut)
        tables = (options.max_num_seqs, -(-plan.kv.max_model_len // options.block_size))
        self.pooler = Pooler()
        # with graphs every other shape than these runs as it is; on a CPU every shape is recorded when it is met
        with_graphs = self.device.type == "cuda" and not isinstance(self.recorder, Eager)
        sizes = (options.max_num_seqs, rows, sample_rows, ops.row_alignment)
        classes = graph_classes(*sizes, rows_each=rows_each(options)) if with_graphs else ()
        shapes = StepShapes(ops.row_alignment, classes)
        self.batch = InputBatch(rows, sample_rows, tables, options.block_size, plan.kv.groups, shapes, self.device)
        if own_threads:
            torch.set_num_threads(1)  # two pools of threads on the same cores slow each other down many times over

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as they lie in memory, a tied head counted once."""
        return sum(weight.nbytes for weight in self.model.weights())

    @torch.inference_mode()
    def prepare(self) -> None:
        """Records the steps that have to be recorded before requests come, the largest first."""
        for shape in reversed(self.batch.shapes.classes):
            step = self.batch.idle(shape)
            self.recorder.prepare(
                shape, functools.partial(self.model.forward, self._cut(*shape[:2]), step, self.caches)
            )

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """Runs a step and draws its tokens."""
        start = time.perf_counter()
        inputs, logits = self._forward(plan)
        verified = self.verifier.verify(logits, inputs.sampled, inputs.sampling)
        prompt_logprobs = self._prompt_logprobs(plan, inputs)
        self.pooler.forget(plan.ended)  # before it may begin anew under the same id
        pooled = self.pooler.pool(plan, self.workspace.normed)
        return StepResult(
            token_ids=verified.token_ids,
            step_s=time.perf_counter() - start,
            faults=verified.faults | pooled.faults,
            logprobs=verified.logprobs,
            prompt_logprobs=prompt_logprobs,
            pooled=pooled.vectors,
            num_accepted=verified.num_accepted,
            draft_probabilities=verified.draft_probabilities,
            inspections=verified.inspections,
        )

    def logits(self, plan: SchedulerOutput) -> Tensor:
        """The logits of a plan's sampled rows, [rows, V] in fp32 (fp64 for a float64 model): a copy."""
        inputs, logits = self._forward(plan)
        return logits[: len(inputs.sampling)].clone()

    @torch.inference_mode()
    def check_replay(self) -> None:
        """Has the last step done again, by the recorder and as it is; if the logits differ, no step is replayed from
        now on, and `recorder` says so. NaN in all buffers shows what a replay leaves out."""
        if isinstance(self.recorder, Eager):
            return
        shape, step = self._last
        workspace = self._cut(shape.rows, shape.sample_rows)
        logits = workspace.logits
        for name in workspace.__slots__:
            getattr(workspace, name).fill_(math.nan)
        self.recorder.run(shape, step)
        replayed = logits.clone()
        step()
        if not torch.equal(replayed, logits):
            self.recorder = Eager("checked at load: a replayed step left other logits than the step itself")

    def propose(self, plan: DraftPlan) -> DraftResult:
        """Drafts by the drafter that was loaded with the model."""
        assert self.drafter is not None, "no drafter was loaded"
        for share in plan.requests:
            self.batch.extend(share.request_id, share.block_ids)
        return self.drafter.propose(plan)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is remembered of requests that will not run again."""
        if self.drafter is not None:
            self.drafter.forget(request_ids)
        self.batch.forget(request_ids)
        self.pooler.forget(request_ids)

    def _load_drafter(
        self, info: CheckpointInfo, options: LoadOptions, plan: LoadPlan, progress: Progress
    ) -> Drafter | None:
        """The drafter of a plan that has one. The model leaves hidden states behind for it from now on."""
        if plan.drafting.drafter is None:
            return None
        host = DrafterHost(info, self.model, self.model.ops, self.kernels, options, plan.kv, self.dtype, self.device)
        return load_drafter(plan.drafting, host, lambda done, total: progress("drafter", done, total, ""))

    @torch.inference_mode()
    def _prompt_logprobs(self, plan: SchedulerOutput, inputs: BatchInputs) -> dict[str, Logprobs]:
        """Log probabilities of the shares' prompt targets, a workspace of logits at a time: they overwrite the drawn
        rows' logits, so this comes after the draw."""
        found: dict[str, Logprobs] = {}
        if not any(request.prompt_targets for request in plan.requests):
            return found
        starts = inputs.step.attention[0].query_start_loc
        for start, request in zip(starts, plan.requests, strict=False):
            if not request.prompt_targets:
                continue
            found[request.request_id] = Logprobs()
            num_top, capacity = request.sampling.prompt_logprobs or 0, len(self.workspace.logits)
            for offset in range(0, len(request.prompt_targets), capacity):
                targets = request.prompt_targets[offset : offset + capacity]
                logits = self._row_logits(start + offset, len(targets))[: len(targets)]
                found[request.request_id].extend(log_probabilities(logits, targets, num_top, self.model.ops))
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
        if self.drafter is not None:
            self.drafter.see(plan)
        workspace = self._cut(inputs.shape.rows, inputs.shape.sample_rows)
        self._last = inputs.shape, functools.partial(self.model.forward, workspace, inputs.step, self.caches)
        self.recorder.run(*self._last)
        return inputs, workspace.logits


def activation_bits(wish: str, kernels: Sequence[KernelChoice]) -> int:
    """The bits that activations may be rounded to for products of codes. wish: `LoadOptions.activation_bits`.

    The reference rounds too, but gains no speed by it: "auto" spares it that loss.
    """
    served = next(choice.backend for choice in kernels if choice.op == "group_linear")
    return 16 if wish == "16" or (wish == "auto" and served == "reference") else 8


def rounding_activations(ops: Ops, bits: int) -> Ops:
    """The ops for products of codes with activations of `bits` 8 where they round any, or of 16."""

    def prepare_group_quant(weight: GroupQuant) -> GroupQuant:
        return ops.prepare_group_quant(weight.with_activation_bits(bits))

    return replace(ops, prepare_group_quant=prepare_group_quant)


def backend_wishes(device: torch.device, dtype: torch.dtype, wish: str = "auto") -> list[str]:
    """Kernel backends in order of preference, before the reference. wish: `LoadOptions.kernel_backend`."""
    if wish != "auto":
        return [] if wish == "reference" else [wish]
    if device.type == "cuda":
        return ["triton_ops"]
    return ["cpu_ops"] if dtype != torch.float64 else []
