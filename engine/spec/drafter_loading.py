"""Reads a drafter's weights and puts it together beside a loaded target.

Owns the order: weights, caches over the target's block ids, buffers. Knows no requests. Invariant: what is allocated
here is what `engine.core.draft_memory` planned, at the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.checkpoint import CheckpointError, CheckpointInfo
from engine.checkpoint.drafter_files import DrafterFile
from engine.checkpoint.drafting import Drafting
from engine.config import LoadOptions
from engine.core.draft_memory import EIGHT_BITS, in_eight_bits, kept_rows
from engine.core.kv_groups import kv_groups
from engine.core.sizing import KVPlan
from engine.layers.linear import Weight
from engine.models.decoder import Decoder
from engine.models.eagle import EagleModel, EagleWorkspace
from engine.models.features import FeatureTap
from engine.models.loader import iter_weights, load_model, mapped_tensors
from engine.models.medusa import MedusaModel, MedusaWorkspace
from engine.models.registry import Model
from engine.models.workspace import Workspace
from engine.quant.eight_bits import to_eight_bits
from engine.runner.kv_cache import allocate_draft_caches, touched
from engine.runner.recorded_step import aligned, recorded
from engine.spec.draft_batch import DraftBatch
from engine.spec.draft_model import ModelDrafter
from engine.spec.draft_sampler import DraftSampler
from engine.spec.draft_slots import DraftSlots
from engine.spec.draft_vocab import draft_vocab
from engine.spec.drafter import Drafter
from engine.spec.eagle import EagleDrafter
from engine.spec.medusa import MedusaDrafter
from engine.spec.paged_drafter import DraftingParts
from kernels.ops import Ops, accumulation_dtype
from kernels.recording import Eager, Recorder
from kernels.registry import KernelChoice

MOST_TAPES = 512  # of passes: a first pass has as many shapes as there are numbers of accepted tokens

Progress = Callable[[int, int], None]  # bytes read so far and in all


@dataclass(frozen=True, slots=True)
class DrafterHost:
    """The target beside which a drafter works. kernels: who serves `ops`."""

    info: CheckpointInfo
    model: Model
    ops: Ops
    kernels: Sequence[KernelChoice]
    options: LoadOptions
    kv: KVPlan
    dtype: torch.dtype
    device: torch.device

    @property
    def request_rows(self) -> int:
        """Rows of the largest pass with one a request, padded."""
        return aligned(self.options.max_num_seqs, self.ops.row_alignment)

    @property
    def first_rows(self) -> int:
        """Rows of the largest first pass."""
        return max(self.options.max_num_batched_tokens, self.options.max_num_seqs)

    def numbers(self, count: int) -> Tensor:
        """int64 [count]: 0, 1, ..."""
        return torch.arange(count, device=self.device)


def load_drafter(drafting: Drafting, host: DrafterHost, progress: Progress) -> Drafter:
    """The drafter of a load that has one, ready. The target leaves its features behind from now on."""
    drafter = drafting.drafter
    assert drafter is not None, "this load has no drafter"
    recorder, ops = _recorder(host)
    host = replace(host, ops=ops)
    options, blocks = host.options, host.kv.num_blocks
    parts = DraftingParts(
        DraftSlots(blocks, options.block_size, drafting.group), _sampler(drafting, drafter, host), recorder
    )
    loaded = _LOADERS[drafter.kind](drafting, drafter, host, parts, progress)
    if loaded.tap is not None:
        assert isinstance(host.model, Decoder), "only our own decoders leave features behind"
        host.model.tap = loaded.tap
    return loaded


def _recorder(host: DrafterHost) -> tuple[Recorder, Ops]:
    """A recorder of the drafter's own: its shapes do not drive those of the target out."""
    if host.device.type == "cuda":
        return Eager("passes of a drafter are not captured yet"), host.ops
    recorder, ops = recorded(host.options, host.ops, host.kernels, host.device, by_transformers=False)
    if isinstance(recorder, Eager):
        return recorder, ops
    from kernels.cpu_ops.tape import Tape

    return Tape(MOST_TAPES), ops


def _sampler(drafting: Drafting, drafter: DrafterFile, host: DrafterHost) -> DraftSampler:
    config, options = drafter.info.config, host.options
    dtype = accumulation_dtype(host.dtype)
    ids: Sequence[int] = range(config.vocab_size)
    inputs = None
    if drafting.vocab is not None:
        ids = drafting.vocab.target_ids
        inputs = drafting.vocab.inputs
    elif drafter.target_ids is not None:
        ids = _target_ids(drafter)
    try:
        vocab = draft_vocab(ids, host.info.config.vocab_size, host.request_rows, dtype, host.device, inputs)
    except ValueError as error:
        raise CheckpointError(f"drafter {drafter.path}: d2t: {error}; it was not made for this model") from error
    passes = options.num_speculative_tokens
    if drafter.kind == "medusa":
        passes = min(passes, drafter.num_heads)
    return DraftSampler(host.ops, vocab, (passes, host.request_rows), kept_rows(options), dtype)


def _target_ids(drafter: DrafterFile) -> list[int]:
    """The target's id of each of the head's rows: d2t holds how far they lie apart."""
    assert drafter.target_ids is not None
    (apart,) = mapped_tensors(replace(drafter.info, tensors={"d2t": drafter.target_ids})).values()
    ids: list[int] = (apart + torch.arange(len(apart))).tolist()
    return ids


def _weights(
    drafting: Drafting, drafter: DrafterFile, dtype: torch.dtype, progress: Progress
) -> Iterator[tuple[str, Weight]]:
    """The drafter's tensors, matrices in codes where the model's are."""
    for name, weight in iter_weights(drafter.info, dtype, progress):
        if drafting.in_codes and isinstance(weight, Tensor) and in_eight_bits(tuple(weight.shape)):
            yield name, to_eight_bits(weight, EIGHT_BITS.group_size)
        else:
            yield name, weight


def _tap(drafting: Drafting, host: DrafterHost) -> FeatureTap:
    hidden = host.info.config.hidden_size
    shape = (host.kv.num_blocks * host.options.block_size, len(drafting.layers) * hidden)
    columns = {layer: index * hidden for index, layer in enumerate(drafting.layers)}
    return FeatureTap(touched(shape, host.dtype, host.device), columns, drafting.group)


def _batch(host: DrafterHost) -> DraftBatch:
    options = host.options
    tables = (options.max_num_seqs, -(-host.kv.max_model_len // options.block_size))
    passes = options.num_speculative_tokens - 1
    return DraftBatch(host.first_rows, tables, passes, options.block_size, host.ops.row_alignment, host.device)


def _eagle(
    drafting: Drafting, drafter: DrafterFile, host: DrafterHost, parts: DraftingParts, progress: Progress
) -> Drafter:
    config, options = drafter.info.config, host.options
    assert isinstance(host.model, Decoder)
    table = None if drafter.own_embedding else host.model.embedding
    model = EagleModel(
        host.ops,
        config,
        table,
        host.kv.max_model_len,
        host.dtype,
        host.device,
        norm_before_residual=drafter.norm_before_residual,
    )
    for name, weight in _weights(drafting, drafter, host.dtype, progress):
        model.load(name, weight)
    tap = _tap(drafting, host)
    numbers = host.numbers(aligned(host.first_rows, host.ops.row_alignment))
    workspace = EagleWorkspace.allocate(config, tap.features.shape[1], numbers, host.request_rows, host.dtype)
    caches = allocate_draft_caches(config, host.kv.num_blocks, options.block_size, host.dtype, host.device)
    return EagleDrafter(parts, _batch(host), caches, model, workspace, tap)


def _medusa(
    drafting: Drafting, drafter: DrafterFile, host: DrafterHost, parts: DraftingParts, progress: Progress
) -> Drafter:
    config = drafter.info.config
    model = MedusaModel(host.ops, config, drafter.num_heads, host.dtype, host.device)
    for name, weight in _weights(drafting, drafter, host.dtype, progress):
        model.load(name, weight)
    workspace = MedusaWorkspace.allocate(config, host.numbers(host.request_rows), host.dtype)
    return MedusaDrafter(parts, model, workspace, _tap(drafting, host))


def _draft_model(
    drafting: Drafting, drafter: DrafterFile, host: DrafterHost, parts: DraftingParts, progress: Progress
) -> Drafter:
    info, options = drafter.info, host.options
    model = load_model(info, host.ops, host.kv.max_model_len, host.dtype, host.device, progress)
    rows = aligned(host.first_rows, host.ops.row_alignment)
    workspace = Workspace.allocate(info.config, rows, host.request_rows, host.dtype, host.device)
    caches = allocate_draft_caches(info.config, host.kv.num_blocks, options.block_size, host.dtype, host.device)
    inputs = None if drafting.vocab is None else drafting.vocab.inputs
    groups = len(kv_groups(info.config))
    return ModelDrafter(parts, _batch(host), caches, model, workspace, inputs, host.numbers(host.request_rows), groups)


_Loader = Callable[[Drafting, DrafterFile, DrafterHost, DraftingParts, Progress], Drafter]
_LOADERS: dict[str, _Loader] = {"eagle": _eagle, "medusa": _medusa, "draft_model": _draft_model}
