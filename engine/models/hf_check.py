"""Does a model of transformers run here as it does there? Measured at load, not assumed.

Owns three checks: that rotary angles depend on positions alone; a trace of what each layer asks of its attention; and a
comparison of logits with transformers' own eager attention. Knows no family. What fails is an `UnsupportedModel` that
names the layer.
Invariant: a model that passes attends once in every layer, causally, in full or within a window, with nothing added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.models.decoder import StepInputs
from engine.models.registry import UnsupportedModel
from engine.models.workspace import Workspace
from kernels.ops import AttentionMetadata, KVCache

TRACED = "pizarra_traced"  # the name of the tracing attention, and of its masks, at transformers
TRACE_TOKENS = 8
PROMPT_TOKENS, CUT, COMPANION_TOKENS, BLOCK_SIZE = 24, 13, 9, 16
# Of a row's logits, relative to their length, in the median row: bf16 rounds much, and a router may round to another
# expert. Eager attention rounds to fp32 even in fp64. Wrong positions or masks give about 1.
MAX_DEVIATION = {torch.bfloat16: 0.25, torch.float32: 1e-3, torch.float64: 1e-3}
# What an attention may be asked to add, by the name of the argument.
_ADDITIONS = {"s_aux": "attention sinks", "position_bias": "a position bias", "sinks": "attention sinks"}

Forward = Callable[[Workspace, StepInputs, Sequence[KVCache]], None]


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """How one layer attends: `window` and `soft_cap` as in `kernels.ops.PagedAttention`, 0 for none."""

    scale: float
    window: int
    soft_cap: float


def check_rotary(model: Any, name: str, max_positions: int) -> None:
    """Refuses frequencies that transformers changes with the longest sequence of a batch."""
    parameters = getattr(model.config, "rope_parameters", None) or {}
    for part in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if part.get("rope_type") != "longrope":
            continue
        original = part.get("original_max_position_embeddings") or model.config.max_position_embeddings
        if max_positions > original:
            raise UnsupportedModel(
                f"{name}: its rotary frequencies change once a sequence is longer than {original} tokens (longrope), "
                f"which cached keys do not survive; load with max_model_len up to {original}"
            )


def trace_layers(model: Any, config: ModelConfig, max_positions: int) -> list[LayerTrace]:
    """Runs a few tokens with an attention that only takes note of what it is asked."""
    from transformers import AttentionInterface, AttentionMaskInterface

    tracer = _Tracer(config, max_positions)
    AttentionInterface.register(TRACED, tracer.attend)
    AttentionMaskInterface.register(TRACED, tracer.mask)
    model.set_attn_implementation(TRACED)
    length = min(TRACE_TOKENS, max_positions)
    ids = torch.arange(length).remainder(config.vocab_size).unsqueeze(0).to(model.device)
    positions = torch.arange(length).unsqueeze(0).to(model.device)
    with torch.inference_mode(), _named(config):
        model(input_ids=ids, position_ids=positions, use_cache=False)
    if len(tracer.layers) != config.num_hidden_layers:
        raise UnsupportedModel(
            f"{config.transformers_class}: {len(tracer.layers)} of its {config.num_hidden_layers} layers call their "
            "attention where it can be replaced; only models with softmax attention in every layer run here"
        )
    return tracer.layers


@contextmanager
def _named(config: ModelConfig) -> Iterator[None]:
    """Names the class in whatever goes wrong inside transformers."""
    try:
        yield
    except UnsupportedModel:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError) as error:
        raise UnsupportedModel(
            f"{config.transformers_class} does not run a packed sequence of a few tokens in this transformers "
            f"({type(error).__name__}: {error}); use llama.cpp, or transformers itself"
        ) from error


@dataclass(slots=True)
class _Tracer:
    """Stands in for attention and masks."""

    config: ModelConfig
    max_positions: int
    layers: list[LayerTrace] = field(default_factory=list)
    masks: list[tuple[Tensor, Any]] = field(default_factory=list)  # those handed out, with their functions

    def mask(self, q_length: int, kv_length: int, mask_function: Any, **_: Any) -> Tensor:
        """A tensor that stands for a mask; should a layer use it, its function is asked which keys it lets through."""
        stand_in = torch.zeros(1, 1, q_length, kv_length, dtype=torch.bool)
        self.masks.append((stand_in, mask_function))
        return stand_in

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Notes the layer's wishes; the result is zeros."""
        self._check_shapes(query, key, value)
        for name, meaning in _ADDITIONS.items():
            if kwargs.get(name) is not None:
                raise self._refused(f"its attention has {meaning}")
        if kwargs.get("is_causal", getattr(module, "is_causal", True)) is False:
            raise self._refused("its attention also sees the tokens that follow")
        scale = kwargs.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        window = self._window_of(attention_mask, kwargs.get("sliding_window"))
        self.layers.append(LayerTrace(scale, window, float(kwargs.get("softcap") or 0.0)))
        return query.new_zeros(query.shape).transpose(1, 2).contiguous(), None

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        config, length = self.config, query.shape[-2]
        keys = (1, config.num_key_value_heads, length, config.head_dim)
        wanted = (1, config.num_attention_heads, length, config.head_dim), keys, keys
        found = tuple(query.shape), tuple(key.shape), tuple(value.shape)
        if found != wanted:
            raise self._refused(
                f"queries, keys and values have the shapes {found}, by config.json they should have {wanted} "
                "(batch, heads, tokens, head size)"
            )

    def _window_of(self, mask: Any, asked: Any) -> int:
        """The window of a mask that was handed out here; the layer's own word where there is no mask."""
        if mask is None:
            return self._bounded(int(asked or 0))
        for stand_in, mask_function in self.masks:
            if mask is stand_in or (isinstance(mask, Tensor) and mask.data_ptr() == stand_in.data_ptr()):
                return self._window(mask_function)
        raise self._refused("it makes an attention mask of its own")

    def _bounded(self, window: int) -> int:
        return window if window < self.max_positions else 0

    def _window(self, mask_function: Any) -> int:
        """The window that a mask function describes, 0 for none: asked at four positions, of all keys."""
        last = self.max_positions - 1
        windows = []
        for position in (last, max(0, last - 1), last // 2, last // 3):
            keys = torch.arange(self.max_positions)
            try:
                seen = mask_function(torch.tensor(0), torch.tensor(0), torch.tensor(position), keys)
            except (IndexError, RuntimeError, TypeError) as error:
                raise self._refused(f"its attention mask depends on more than positions ({error})") from error
            seen = torch.as_tensor(seen).expand(len(keys))
            count = int(seen.sum())
            if not count or not torch.equal(seen, (keys <= position) & (keys > position - count)):
                raise self._refused("its attention mask is neither causal nor a sliding window")
            windows.append(0 if count == position + 1 else count)
        if any(window not in (0, windows[0]) for window in windows):
            raise self._refused("its attention mask is no sliding window: it sees chunks")
        return windows[0]

    def _refused(self, finding: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.config.transformers_class}, layer {len(self.layers)}: {finding}; such models do not run on the "
            "paged KV cache. Use llama.cpp, or transformers itself"
        )


class Comparison:
    """Logits of one prompt: by transformers' eager attention, whole; by ours, cut in two beside another prompt."""

    def __init__(
        self, model: Any, config: ModelConfig, row_alignment: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Computes what is expected; switches the model to eager attention."""
        self._config, self._alignment, self._dtype, self._device = config, row_alignment, dtype, device
        generator = torch.Generator().manual_seed(0)
        length = min(PROMPT_TOKENS, config.max_position_embeddings)
        self._tokens = [
            torch.randint(config.vocab_size, (count,), generator=generator).to(device)
            for count in (length, min(COMPANION_TOKENS, length))
        ]
        model.set_attn_implementation("eager")
        positions = torch.arange(length, device=device)
        with torch.inference_mode(), _named(config):
            result = model(input_ids=self._tokens[0].unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False)
        self._expected = result.logits[0].double()

    def check(self, forward: Forward) -> None:
        """Runs the prompt through `forward`. UnsupportedModel if the logits differ by more than rounding does."""
        config, limit = self._config, MAX_DEVIATION[self._dtype]
        shape = (1 + 2 * -(-PROMPT_TOKENS // BLOCK_SIZE), config.num_key_value_heads, BLOCK_SIZE, config.head_dim)
        caches = [
            KVCache(*torch.zeros(2, *shape, dtype=self._dtype, device=self._device))
            for _ in range(config.num_hidden_layers)
        ]
        length, companion = (len(tokens) for tokens in self._tokens)
        cut, shorter = min(CUT, length), max(0, companion - 2)
        parts = [[(0, 0, cut), (1, 0, shorter)], [(1, shorter, companion), (0, cut, length)]]
        for part in parts:
            first, end = next((start, end) for prompt, start, end in part if prompt == 0)
            if first == end:
                continue
            found = self._logits(forward, caches, [share for share in part if share[1] < share[2]])
            expected = self._expected[first:end]
            apart = (found - expected).norm(dim=-1).div(expected.norm(dim=-1).clamp(min=1e-30)).median()
            if not float(apart) <= limit:  # not a number is refused too
                raise UnsupportedModel(
                    f"{config.transformers_class}: a test prompt's logits differ by {float(apart):.2g} of their length "
                    f"from those of transformers itself (at most {limit} is rounding): its attention or its positions "
                    "do something that the paged KV cache does not. Use llama.cpp, or transformers itself"
                )

    def _logits(self, forward: Forward, caches: Sequence[KVCache], shares: Sequence[tuple[int, int, int]]) -> Tensor:
        """Runs one step of (prompt, first token, end) shares; the logits of the rows of prompt 0 in fp64."""
        blocks = -(-PROMPT_TOKENS // BLOCK_SIZE)
        rows = [(line, prompt, index) for line, (prompt, a, b) in enumerate(shares) for index in range(a, b)]
        tables = [[1 + prompt * blocks + index for index in range(blocks)] for prompt, _, _ in shares]
        starts = [0]
        for _, first, end in shares:
            starts.append(starts[-1] + end - first)
        wanted = [row for row, (_, prompt, _) in enumerate(rows) if prompt == 0]

        def column(values: list[int], padding: int, dtype: torch.dtype = torch.int64) -> Tensor:
            padded = values + [padding] * (-len(values) % self._alignment)
            return torch.tensor(padded, dtype=dtype, device=self._device)

        slots = [tables[line][index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE for line, _, index in rows]
        metadata = AttentionMetadata(
            positions=column([index for _, _, index in rows], 0),
            slot_mapping=column(slots, -1),
            block_tables=torch.tensor(tables, dtype=torch.int32, device=self._device),
            query_start_loc=starts,
            query_starts=torch.tensor(starts, dtype=torch.int32, device=self._device),
            row_request=column([line for line, _, _ in rows], -1, torch.int32),
        )
        tokens = column([int(self._tokens[prompt][index]) for _, prompt, index in rows], 0)
        step = StepInputs(tokens, column(wanted, 0), (metadata,))
        ws = Workspace.allocate(self._config, len(tokens), len(step.sample_rows), self._dtype, self._device)
        with torch.inference_mode(), _named(self._config):
            forward(ws, step, caches)
        return ws.logits[: len(wanted)].double()
