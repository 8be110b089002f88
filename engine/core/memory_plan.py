"""What a load takes of memory, item by item, and whether that fits: integers in, integers out.

Owns the byte counts of everything but the weights (`CheckpointInfo`) and the KV pool (`engine.core.sizing`), and the
order in which the items claim what is free. Does not know devices or files. Invariant: an item is what is really
allocated at the most (tests hold it to the tensors), and a plan without a refusal fits the memory it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from engine.checkpoint import TensorInfo
from engine.config import LoadOptions, ModelConfig
from engine.core.sizing import KVPlan, SizingError, format_bytes, plan_kv
from engine.core.speculation import most_sampled_rows

ROW_ALIGNMENT = 16  # rows are padded to a multiple of it at the most
FP32_BYTES, FP64_BYTES = 4, 8
INT64_BYTES = 8
PLAIN_FORMATS = ("F64", "F32", "F16", "BF16")
EXPANDING_BYTES = 10  # of a number that a block format holds, while it becomes fp32
CODES_READING_BYTES = 4  # of a code, while it is unpacked, joined with the other parts of its matrix and rearranged
GPU_ATTENTION_BYTES = 140 << 20  # of `kernels.triton_ops.attention`, at the most: splits wait there to be merged
DRAW_BYTES_PER_ENTRY = 192  # what filters and noise need at once of one row, for each entry of the vocabulary


@dataclass(frozen=True, slots=True)
class WorkspaceBytes:
    """The tensors of a step, in bytes.

    activations: what a layer works on. logits: those of the sampled rows, and the hidden states they are made of.
    sampling: the scores that processors and filters make of these rows, and what one row takes on the way. experts:
    what a mixture of experts works on. rotary: tables of cosines and sines. transformers: what its layers allocate as
    they go, where they compute the model. kernels: what those of a GPU leave behind between two of their passes.
    """

    activations: int
    logits: int
    sampling: int
    experts: int
    rotary: int
    transformers: int
    kernels: int

    @property
    def total(self) -> int:
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Bytes by name."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


@dataclass(frozen=True, slots=True)
class DraftNeeds:
    """What a drafter takes, in bytes. weights: in memory. per_block: of its keys and values and the target's features
    in one KV block. per_position: of its rotary tables, for each token of the longest context. buffers: of its
    passes."""

    weights: int = 0
    per_block: int = 0
    per_position: int = 0
    buffers: int = 0

    def fixed(self, max_model_len: int) -> int:
        """All but the blocks."""
        return self.weights + self.buffers + self.per_position * max_model_len


NO_DRAFTER = DraftNeeds()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One load. `kv` is None where it does not fit; `refusal` says why then.

    reading_bytes: what the largest tensor takes while it is read, before the KV cache and the workspace are there.
    drafter_bytes: a drafter's weights and buffers; what it keeps in KV blocks is in `kv`.
    """

    weights_bytes: int
    workspace: WorkspaceBytes
    runtime_bytes: int
    reading_bytes: int
    available_bytes: int
    kv: KVPlan | None
    refusal: SizingError | None
    drafter_bytes: int = 0

    @property
    def peak_while_reading(self) -> int:
        """The most that the load holds until its weights are there."""
        return self.weights_bytes + self.runtime_bytes + self.reading_bytes

    @property
    def fixed_bytes(self) -> int:
        """All but the KV cache."""
        return self.weights_bytes + self.workspace.total + self.runtime_bytes + self.drafter_bytes

    @property
    def pool_bytes(self) -> int:
        """The KV cache and what a drafter keeps in its blocks; 0 where the plan does not fit."""
        return 0 if self.kv is None else self.kv.kv_bytes + self.kv.drafter_bytes

    def items(self) -> str:
        """The parts in words."""
        parts = {"weights": self.weights_bytes, "workspace": self.workspace.total, "runtime": self.runtime_bytes}
        parts["drafter"] = self.drafter_bytes + (0 if self.kv is None else self.kv.drafter_bytes)
        if self.kv is not None:
            parts["KV cache"] = self.kv.kv_bytes
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)

    def required_kv(self, held: str = "") -> KVPlan:
        """The pool. SizingError for a load that does not fit, which adds `held`: who has the rest of the memory."""
        if self.kv is not None:
            return self.kv
        assert self.refusal is not None, "a plan has a pool or says why not"
        error = self.refusal
        raise SizingError(
            self.refusal_message(held),
            needed_bytes=max(self.fixed_bytes, error.needed_bytes),
            available_bytes=self.available_bytes,
            max_model_len_that_fits=error.max_model_len_that_fits,
        )

    def refusal_message(self, held: str = "") -> str:
        """What is too large, by how much, and what would help."""
        assert self.refusal is not None, "only a plan that does not fit has one"
        told = f". {held}" if held else ""
        least = max(self.fixed_bytes, self.peak_while_reading)
        if least > self.available_bytes:
            when = f"before any KV cache ({self.items()})"
            if least > self.fixed_bytes:
                when = (
                    f"while the weights are read ({self.items()}, one tensor {format_bytes(self.reading_bytes)} more)"
                )
            return (
                f"needs {format_bytes(least)} {when}, {format_bytes(self.available_bytes)} are available: "
                f"short by {format_bytes(least - self.available_bytes)}{told}. Unload another model, choose a smaller "
                "one, or free memory"
            )
        longest = self.refusal.max_model_len_that_fits
        told_already = re.search(rf"\b{longest}\b", str(self.refusal))
        fits = "" if longest == 0 or told_already else f". At most {longest} tokens would fit"
        return f"{self.refusal}{fits}. Beside the KV cache the load needs {self.items()}{told}"


def plan_memory(
    config: ModelConfig,
    weights_bytes: int,
    options: LoadOptions,
    available_bytes: int,
    dtype_bytes: int,
    device: str,
    runtime_bytes: int,
    reading_bytes: int = 0,
    draft: DraftNeeds = NO_DRAFTER,
) -> MemoryPlan:
    """Divides `available_bytes`. weights_bytes: `CheckpointInfo.weights_bytes`. runtime_bytes: of the engine process
    itself, 0 where they are taken already. reading_bytes: `largest_reading`, 0 where tensors are read into other memory
    than they stay in. draft: of a drafter that is loaded too.

    The rotary tables are as long as the context and the context as long as what they leave it, so it is planned twice:
    without them, then beside those of the first plan's context, which the second does not exceed. A refusal's longest
    context therefore fits when it is asked for.
    """
    max_model_len, kv, refusal = 0, None, None
    for _ in range(2):
        workspace = workspace_bytes(config, options, max_model_len, dtype_bytes, device)
        drafter_bytes = draft.fixed(max_model_len)
        left = available_bytes - weights_bytes - workspace.total - runtime_bytes - drafter_bytes
        try:
            kv = plan_kv(config, options, left, dtype_bytes, device, draft.per_block)
        except SizingError as error:
            kv, refusal, max_model_len = None, error, error.max_model_len_that_fits
        else:
            max_model_len = kv.max_model_len
    plan = MemoryPlan(
        weights_bytes, workspace, runtime_bytes, reading_bytes, available_bytes, kv, refusal, drafter_bytes
    )
    if kv is None or plan.peak_while_reading <= available_bytes:
        return plan
    too_much = SizingError(
        "the largest tensor does not fit beside the others while it is read",
        needed_bytes=kv.kv_bytes,
        available_bytes=available_bytes,
        max_model_len_that_fits=0,
    )
    return replace(plan, kv=None, refusal=too_much)


def largest_reading(tensors: Iterable[TensorInfo], dtype_bytes: int) -> int:
    """What the reading of the largest tensor takes at the most, what stays of it included."""
    return max(_reading_bytes(tensor, dtype_bytes) for tensor in tensors)


def _reading_bytes(tensor: TensorInfo, dtype_bytes: int) -> int:
    if tensor.scheme is not None:
        return tensor.num_elements * CODES_READING_BYTES
    as_numbers = FP32_BYTES + dtype_bytes
    plain = tensor.dtype in PLAIN_FORMATS
    return tensor.num_elements * (as_numbers if plain else max(EXPANDING_BYTES, as_numbers))


def workspace_bytes(
    config: ModelConfig, options: LoadOptions, max_model_len: int, dtype_bytes: int, device: str
) -> WorkspaceBytes:
    """The tensors of the largest step. activations and logits are `Workspace.allocate`'s, exactly, for whole rows."""
    rows, sampled = _padded(options.max_num_batched_tokens), _padded(most_sampled_rows(options))
    wide = FP64_BYTES if dtype_bytes == FP64_BYTES else FP32_BYTES
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    hidden, inner, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
    attention = queries + keys + keys + queries
    own_layers = 0
    if config.transformers_class:  # results of its products, norms in fp32, and what a block keeps beside them
        own_layers = rows * ((4 * hidden + attention + 4 * inner) * dtype_bytes + 4 * hidden * wide)
    return WorkspaceBytes(
        activations=rows * (3 * hidden + attention + 3 * inner) * dtype_bytes,
        logits=sampled * (hidden * dtype_bytes + vocabulary * wide),
        sampling=vocabulary * (sampled * wide + DRAW_BYTES_PER_ENTRY),
        experts=experts_bytes(config, rows, dtype_bytes, wide),
        rotary=0 if config.transformers_class else rotary_bytes(config, max_model_len, wide),
        transformers=own_layers,
        kernels=GPU_ATTENTION_BYTES if device != "cpu" else 0,
    )


def _padded(rows: int) -> int:
    return -(-rows // ROW_ALIGNMENT) * ROW_ALIGNMENT


def experts_bytes(config: ModelConfig, rows: int, dtype_bytes: int, wide: int) -> int:
    """The op `mixture_mlp` where every token picks the same experts, which is when one product is largest."""
    if not config.num_experts:
        return 0
    hidden, inner, chosen = config.hidden_size, config.intermediate_size, config.num_experts_per_token
    routing = config.num_experts * (2 * wide + INT64_BYTES) + chosen * wide
    going_up = (2 * hidden + 5 * inner) * dtype_bytes  # with the rows' padded copy, and the last expert's products
    going_down = (4 * inner + hidden) * dtype_bytes + hidden * wide
    adding_up = 3 * inner * dtype_bytes + 2 * hidden * wide
    block = ROW_ALIGNMENT * 2 * inner * wide  # of a product that is made a few rows at a time
    return rows * (routing + chosen * hidden * wide + max(going_up, going_down, adding_up)) + block


def rotary_bytes(config: ModelConfig, max_model_len: int, wide: int) -> int:
    """`engine.layers.rotary.RotaryTables`: a cosine and a sine per position and pair, for each way to turn."""
    ways = set()
    for layer in range(config.num_hidden_layers):
        if layer in config.nope_layers:
            ways.add("none")
        elif config.window_rope_theta is not None and config.layer_windows and config.layer_windows[layer]:
            ways.add("window")
        else:
            ways.add("full")
    return len(ways) * 2 * max_model_len * (config.head_dim // 2) * wide
