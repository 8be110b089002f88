"""Runs a causal language model of transformers on this engine's paged KV cache.

Owns the meeting of the two: transformers computes the layers over one packed sequence, and this module stands in for
its attention (through transformers' AttentionInterface) and between its body and its head. Knows no family.
Invariant: what is cached of a token depends on its own text alone, and logits are computed of the sampled rows only.
Unlike a decoder of Pizarra's own it leaves norms and activations to torch, allocates as it goes, and cannot be
recorded and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.checkpoint import CheckpointInfo
from engine.models.decoder import StepInputs
from engine.models.hf_check import Comparison, check_rotary, trace_layers
from engine.models.hf_loading import load_class
from engine.models.hf_modules import InterceptedLinear, replace_linears
from engine.models.registry import UnsupportedModel
from engine.models.workspace import Workspace
from kernels.ops import AttentionMetadata, KVCache, Ops, accumulation_dtype

PAGED = "pizarra_paged"  # the name of our attention at transformers


class TransformersModel:
    """Token ids to logits."""

    def __init__(
        self,
        ops: Ops,
        info: CheckpointInfo,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[int, int], None],
    ) -> None:
        """Loads the weights, and checks that the model says here what it says in transformers, else UnsupportedModel.

        progress gets the bytes of weights done and in all.
        """
        from transformers import AttentionInterface

        AttentionInterface.register(PAGED, _attention)
        name, wide = info.config.transformers_class, accumulation_dtype(dtype)
        self.ops = ops
        self.config = info.config
        self.head = _Head(self)
        self._model = load_class(info, dtype, progress).to(device)
        check_rotary(self._model, name, max_positions)
        replace_linears(self._model, ops, dtype, wide)
        self.result_class: Any = None  # of the body
        _take_body(self._model, name)
        half = info.config.head_dim // 2
        self._cos, self._sin = torch.zeros(2, 1, half, dtype=wide, device=device)
        self._cos.fill_(1)
        # Routers and experts multiply without a layer. Watching for it costs every other model time for nothing.
        self._intercepts = True
        with self._linear() as intercepted:
            self.layers = trace_layers(self._model, info.config, max_positions)
        self._intercepts = intercepted.count > 0
        comparison = Comparison(self._model, info.config, ops.row_alignment, dtype, device)
        self._model.set_attn_implementation(PAGED)
        comparison.check(self.forward)

    def forward(self, ws: Workspace, step: StepInputs, caches: Sequence[KVCache]) -> None:
        """Leaves the logits of `step.sample_rows` in ws.logits, the rows behind the last norm in ws.normed."""
        (metadata,) = step.attention
        unturned = replace(metadata, positions=metadata.positions.new_zeros(len(metadata.positions)))
        running = _Step(self, ws, step, metadata, unturned, caches)
        with _as_running(running), self._linear():
            result = self._model(
                input_ids=step.token_ids.unsqueeze(0), position_ids=metadata.positions.unsqueeze(0), use_cache=False
            )
        if self.result_class is None:
            raise UnsupportedModel(f"{self.config.transformers_class} does not call its body as a whole")
        ws.logits.copy_(result.logits[0])

    def forward_head(self, out: Tensor, hidden: Tensor) -> None:
        """out [S, V] = the logits of hidden [S, H], by the model's own head and all that it does to logits."""
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        with _as_running(_HeadOnly(self.result_class(last_hidden_state=hidden.unsqueeze(0)))):
            out.copy_(self._model(input_ids=ids, use_cache=False).logits[0])

    def attend(self, running: _Step, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Writes the keys and values [1, C, T, D] of the next layer, already rotated; attends with query [1, A, T, D].

        Returns [1, T, A, D], valid until the next layer.
        """
        layer, cache = self.layers[running.layer], running.caches[running.layer]
        running.layer += 1
        ws, heads, kv_heads = running.ws, self.config.num_attention_heads, self.config.num_key_value_heads
        split = ws.qkv.view(len(ws.qkv), heads + 2 * kv_heads, self.config.head_dim)
        split[:, :heads].copy_(query[0].transpose(0, 1))
        split[:, heads : heads + kv_heads].copy_(key[0].transpose(0, 1))
        split[:, heads + kv_heads :].copy_(value[0].transpose(0, 1))
        # Turned by an angle of 0, which changes no bit: this op is the one that writes the cache.
        self.ops.rotary_kv_write(ws.qkv, self._cos, self._sin, cache, running.unturned, heads)
        self.ops.paged_attention(
            ws.attended, ws.qkv, cache, running.metadata, layer.scale, layer.window, layer.soft_cap
        )
        return ws.attended.view(1, len(ws.attended), heads, self.config.head_dim)

    def weights(self) -> Iterator[Tensor]:
        """Everything that was loaded; a tied head is the embedding and comes once."""
        yield from self._model.parameters()

    @contextmanager
    def _linear(self) -> Iterator[Any]:
        with InterceptedLinear(self.ops) if self._intercepts else nullcontext() as intercepted:
            yield intercepted


class _Head:
    """The output head by itself."""

    def __init__(self, model: TransformersModel) -> None:
        self._model = model

    def forward(self, out: Tensor, hidden: Tensor) -> None:
        self._model.forward_head(out, hidden)


class _Running(Protocol):
    """What is being computed while transformers is called."""

    def body(self, compute: Callable[[], Any]) -> Any:
        """The result of the model's body, as its head shall see it; `compute` gives the body's own."""


class _HeadOnly:
    """A call for the head alone: the body's result is given."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def body(self, compute: Callable[[], Any]) -> Any:  # noqa: ARG002
        return self._given


@dataclass(slots=True)
class _Step:
    """One step; `layer` counts those that have attended. unturned: the same rows at position 0 of the angle-0 table."""

    model: TransformersModel
    ws: Workspace
    step: StepInputs
    metadata: AttentionMetadata
    unturned: AttentionMetadata
    caches: Sequence[KVCache]
    layer: int = 0

    def body(self, compute: Callable[[], Any]) -> Any:
        """Only the sampled rows go to the head."""
        result = compute()
        self.model.result_class = type(result)
        self.ws.normed.copy_(result.last_hidden_state[0])
        self.model.ops.gather_rows(self.ws.picked, self.ws.normed, self.step.sample_rows)
        result.last_hidden_state = self.ws.picked.unsqueeze(0)
        return result


# transformers hands an attention function its own module and tensors, and nothing of ours.
_running: ContextVar[_Running | None] = ContextVar("running", default=None)


@contextmanager
def _as_running(running: _Running) -> Iterator[None]:
    token = _running.set(running)
    try:
        yield
    finally:
        _running.reset(token)


def _attention(_module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """The attention function that transformers calls; the mask is None and all else was traced at load."""
    running = _running.get()
    assert isinstance(running, _Step)
    return running.model.attend(running, query, key, value), None


def _take_body(model: Any, name: str) -> None:
    """Puts `_Running.body` between the model's body and its head."""
    candidates = (model.get_decoder(), model.base_model, getattr(model, "model", None))
    body = next((body for body in candidates if body is not None and body is not model), None)
    if body is None:
        raise UnsupportedModel(f"{name} has no body apart from its head in transformers, so the two cannot be parted")
    own = body.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        running = _running.get()
        return own(*args, **kwargs) if running is None else running.body(lambda: own(*args, **kwargs))

    body.forward = forward
