"""Tiny random drafters in their public layouts, and what they draft according to plain torch.

Owns the files' content and the oracle: a Llama and an EAGLE-3 layer over whole sequences, without pages, kernels or
caches. Invariant: the oracle reads the very tensors of the files, and computes in fp64.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.tiny_checkpoint import tiny_config

DRAFT_VOCAB = 200
LAYERS = (0, 2, 3)  # feature layers of a target of four


def eagle_config(**overrides: Any) -> dict[str, Any]:
    """config.json of the drafter, as vLLM and SpecForge write it."""
    target = tiny_config()
    kept = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
    )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": DRAFT_VOCAB,
        "rope_theta": 10000.0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(LAYERS)},
        **{name: target[name] for name in kept},
    } | overrides


def eagle_tensors(seed: int = 1, draft_vocab: int = DRAFT_VOCAB, features: int = len(LAYERS)) -> dict[str, Tensor]:
    """Random weights, and a reduced vocabulary: every id but the target's first ones, shuffled into order."""
    config, generator = tiny_config(), torch.Generator().manual_seed(seed)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(outputs: int, inputs: int) -> Tensor:
        return torch.randn(outputs, inputs, generator=generator).mul(1.5 / inputs**0.5)

    def vector(count: int) -> Tensor:
        return 1 + 0.1 * torch.randn(count, generator=generator)

    chosen = torch.randperm(config["vocab_size"], generator=generator)[:draft_vocab].sort().values
    known = torch.zeros(config["vocab_size"], dtype=torch.bool)
    known[chosen] = True
    return {
        "fc.weight": matrix(hidden, features * hidden),
        "midlayer.input_layernorm.weight": vector(hidden),
        "midlayer.hidden_norm.weight": vector(hidden),
        "midlayer.post_attention_layernorm.weight": vector(hidden),
        "midlayer.self_attn.q_proj.weight": matrix(queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, queries),
        "midlayer.mlp.gate_proj.weight": matrix(inner, hidden),
        "midlayer.mlp.up_proj.weight": matrix(inner, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, inner),
        "norm.weight": vector(hidden),
        "lm_head.weight": matrix(draft_vocab, hidden),
        "d2t": chosen - torch.arange(draft_vocab),
        "t2d": known,
    }


def medusa_tensors(num_heads: int, seed: int = 2, draft_vocab: int = DRAFT_VOCAB) -> dict[str, Tensor]:
    """Random heads, with the reduced vocabulary of `eagle_tensors`."""
    hidden, generator = tiny_config()["hidden_size"], torch.Generator().manual_seed(seed)
    found = {name: tensor for name, tensor in eagle_tensors(seed, draft_vocab).items() if name in ("d2t", "t2d")}
    for head in range(num_heads):
        scale = 1.5 / hidden**0.5
        found[f"medusa_head.{head}.0.linear.weight"] = torch.randn(hidden, hidden, generator=generator) * scale
        found[f"medusa_head.{head}.0.linear.bias"] = torch.randn(hidden, generator=generator)
        found[f"medusa_head.{head}.1.weight"] = torch.randn(draft_vocab, hidden, generator=generator) * scale
    return found


def write_drafter(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """The drafter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


class Oracle:
    """The target and its drafter over whole sequences, fp64."""

    def __init__(self, target: Path, drafter: Path) -> None:
        self.config = json.loads((target / "config.json").read_text())
        self.target = {name: tensor.double() for name, tensor in load_file(target / "model.safetensors").items()}
        self.drafter = {
            name: tensor if tensor.dtype == torch.int64 else tensor.double()
            for name, tensor in load_file(drafter / "model.safetensors").items()
            if name != "t2d"
        }
        self.settings = json.loads((drafter / "config.json").read_text())

    def states(self, tokens: list[int]) -> list[Tensor]:
        """The residual stream at the input of every layer, and last what the final norm makes, each [T, H]."""
        weights = self.target
        hidden, found = weights["model.embed_tokens.weight"][tokens], list[Tensor]()
        for layer in range(self.config["num_hidden_layers"]):
            own = _part(weights, f"model.layers.{layer}.")
            found.append(hidden)
            hidden = hidden + self._attend(own, self._norm(hidden, own["input_layernorm.weight"]))
            hidden = hidden + _mlp(own, self._norm(hidden, own["post_attention_layernorm.weight"]))
        return [*found, self._norm(hidden, weights["model.norm.weight"])]

    def next_token(self, tokens: list[int]) -> int:
        """What the target says next, greedily."""
        head = self.target.get("lm_head.weight", self.target["model.embed_tokens.weight"])
        return int((head @ self.states(tokens)[-1][-1]).argmax())

    def target_id(self, draft_id: int) -> int:
        """What an id of the drafter stands for."""
        return draft_id + int(self.drafter["d2t"][draft_id])

    def eagle_scores(self, tokens: list[int], count: int) -> list[Tensor]:
        """The drafter's logits for `count` tokens, each continued greedily."""
        layers = self.settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        states = self.states(tokens[:-1])
        features = torch.cat([states[layer] for layer in layers], dim=1)
        known = torch.cat([torch.zeros_like(features[:1]), features]) @ self.drafter["fc.weight"].T  # of j - 1, at j
        sequence, inputs, found = list(tokens), known, list[Tensor]()
        for _ in range(count):
            out, scores = self._eagle(sequence, inputs)
            found.append(scores)
            best = scores.argmax()
            sequence.append(int(best + self.drafter["d2t"][best]))
            inputs = torch.cat([inputs, out[-1:]])
        return found

    def medusa_drafts(self, tokens: list[int], count: int) -> list[int]:
        """The greedy draft of the heads."""
        state, found = self.states(tokens[:-1])[-1][-1], []
        for head in range(count):
            own = _part(self.drafter, f"medusa_head.{head}.")
            inner = own["0.linear.weight"] @ state + own["0.linear.bias"]
            best = (own["1.weight"] @ (state + torch.nn.functional.silu(inner))).argmax()
            found.append(int(best + self.drafter["d2t"][best]))
        return found

    def _eagle(self, tokens: list[int], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The drafter's hidden states of all entries, and the last one's logits."""
        own = _part(self.drafter, "midlayer.")
        embedded = self._norm(self.target["model.embed_tokens.weight"][tokens], own["input_layernorm.weight"])
        normed = self._norm(inputs, own["hidden_norm.weight"])
        residual = normed if self.settings.get("norm_before_residual") else inputs
        hidden = residual + self._attend(own, torch.cat([embedded, normed], dim=1))
        hidden = hidden + _mlp(own, self._norm(hidden, own["post_attention_layernorm.weight"]))
        return hidden, self.drafter["lm_head.weight"] @ self._norm(hidden[-1], self.drafter["norm.weight"])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        eps: float = self.config["rms_norm_eps"]
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    def _attend(self, own: dict[str, Tensor], x: Tensor) -> Tensor:
        heads: int = self.config["num_attention_heads"]
        kv_heads: int = self.config["num_key_value_heads"]
        size: int = self.config["head_dim"]
        count = len(x)

        def split(name: str, parts: int) -> Tensor:
            return (x @ own[f"self_attn.{name}.weight"].T).view(count, parts, size).transpose(0, 1)

        queries = _rotate(split("q_proj", heads), self.config["rope_theta"])
        keys = _rotate(split("k_proj", kv_heads), self.config["rope_theta"]).repeat_interleave(heads // kv_heads, 0)
        values = split("v_proj", kv_heads).repeat_interleave(heads // kv_heads, 0)
        scores = queries @ keys.transpose(1, 2) * size**-0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ values).transpose(0, 1).reshape(count, -1)
        found: Tensor = mixed @ own["self_attn.o_proj.weight"].T
        return found


def _part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _mlp(own: dict[str, Tensor], x: Tensor) -> Tensor:
    gate, up = x @ own["mlp.gate_proj.weight"].T, x @ own["mlp.up_proj.weight"].T
    return (torch.nn.functional.silu(gate) * up) @ own["mlp.down_proj.weight"].T


def _rotate(x: Tensor, theta: float) -> Tensor:
    """x [heads, T, D], the halves of each head turned."""
    half = x.shape[-1] // 2
    periods = theta ** (torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), 1 / periods)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)
