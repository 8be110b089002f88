"""The target's hidden states over whole conversations: what a drafter sees, and what it is to predict.

Owns the target's weights, dequantised once into the dtype of the work, and the pass over rows of equal length. Knows no
drafter and no files of features. Invariant: features are the residual stream at the input of `feature_layers`, as the
engine has it there (a test holds them against the engine's logits' own inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.config import ModelConfig
from engine.layers.rotary import RotaryTables
from engine.train.forward import LayerForward, rms_norm
from engine.train.source import Source

_HEAD_ROWS = 256  # whose logits over the whole vocabulary are in memory at once
NUM_FEATURES = 3


@dataclass(frozen=True, slots=True)
class TargetStates:
    """features [B, L, 3 * H]; final [B, L, H] behind the final norm, both in the work's dtype."""

    features: Tensor
    final: Tensor


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """An early, a middle and a late layer, as vLLM's default has them: 2, n // 2, n - 3; they are never the same."""
    usual = (2, num_layers // 2, num_layers - 3)
    return usual if usual[0] < usual[1] < usual[2] else (0, num_layers // 2, num_layers - 1)


class Target:
    """The model that is drafted for. dtype: of weights and activations."""

    def __init__(
        self, source: Source, feature_layers: Sequence[int], longest: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.config: ModelConfig = source.config
        self.device, self.dtype = device, dtype
        self.feature_layers = tuple(feature_layers)
        rotary = RotaryTables(source.config, longest, torch.float32, device)
        self._layers = [LayerForward(source.config, index, rotary) for index in range(source.config.num_hidden_layers)]
        self._weights = [
            {name: self._placed(tensor) for name, tensor in source.layer(index).items()}
            for index in range(source.config.num_hidden_layers)
        ]
        self.embedding = self._placed(source.embedding())
        self.final_norm = self._placed(source.final_norm())
        self.head = self.embedding if source.config.tie_word_embeddings else self._placed(source.head())

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.dtype)

    def layer_weights(self, index: int) -> dict[str, Tensor]:
        """The tensors of a layer by their names within it."""
        return self._weights[index]

    def embed(self, token_ids: Tensor) -> Tensor:
        """[..., H] of token_ids int64 [...], as the first layer takes them."""
        return F.embedding(token_ids, self.embedding) * self.config.embedding_scale

    @torch.inference_mode()
    def states(self, token_ids: Tensor) -> TargetStates:
        """token_ids int64 [B, L], padded behind with anything."""
        x = self.embed(token_ids)
        found: dict[int, Tensor] = {}
        for index, (layer, weights) in enumerate(zip(self._layers, self._weights, strict=True)):
            if index in self.feature_layers:
                found[index] = x
            x = layer(weights, x)
        features = torch.cat([found[index] for index in self.feature_layers], dim=-1)
        return TargetStates(features, rms_norm(x, self.final_norm, self.config))

    def logits(self, final: Tensor, head: Tensor) -> Tensor:
        """fp32 [R, n] of final [R, H] over rows `head` [n, H] of the output head."""
        found = F.linear(final, head).to(torch.float32) * self.config.logits_scale
        cap = self.config.logits_soft_cap
        return torch.tanh(found / cap) * cap if cap else found

    @torch.inference_mode()
    def summary(self, final: Tensor) -> tuple[Tensor, Tensor]:
        """Of final [R, H]: log of the sum of exponentials of all logits, fp32 [R], and the most likely token, int64."""
        sums, tops = [], []
        for rows in torch.split(final, _HEAD_ROWS):
            logits = self.logits(rows, self.head)
            most, at = logits.max(-1)
            sums.append(logits.sub_(most[:, None]).exp_().sum(-1).log_().add_(most))
            tops.append(at)
        return torch.cat(sums), torch.cat(tops)
