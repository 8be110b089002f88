"""Trains a tiny Llama with fp32 weights, so that quantisation is measured on weights that lie on no grid.

Its text is what the default model writes; the answers to some topics are kept out of the training, as the text that
quantisation is calibrated and measured on. Seeds are fixed, and training goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint.hf_config import read_config
from engine.config import ModelConfig
from engine.layers.rotary import RotaryTables
from engine.train.calibration import rows_by_model
from engine.train.compute import rounded_products
from engine.train.forward import LayerForward, embed, logits
from engine.vocab import load_vocab

VOCABULARY = 2048
LAYERS, HIDDEN, INNER, HEADS, KEY_HEADS, HEAD_DIM = 4, 256, 768, 4, 2, 64
ROW, BATCH, STEPS, KEEP_EVERY = 256, 4, 400, 50
RATE, DECAY, WARM_UP = 2e-3, 0.1, 30
END = "<|end|>"
TRAIN_TEXT, OTHER_TEXT = "train.txt", "other.txt"


def write_texts(model: Path, folder: Path, rows: int, threads: int) -> None:
    """Has `model` write rows of 512 tokens to train on, and a fifth as many about other topics; once."""
    if (folder / OTHER_TEXT).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    vocab = load_vocab(model)
    found = rows_by_model(model, vocab, rows, 512, 1, threads, lambda done, total: None)
    for name, part in ((TRAIN_TEXT, found.calibration), (OTHER_TEXT, found.held_out)):
        (folder / name).write_text(vocab.decode(part.flatten().tolist()), encoding="utf-8")


def train(texts: Path, folder: Path) -> float:
    """Writes the trained model into `folder`, on one thread; returns its last training loss in nats a token."""
    if (folder / "model.safetensors").is_file():
        return float(json.loads((folder / "training.json").read_text())["loss"])
    folder.mkdir(parents=True, exist_ok=True)
    text = (texts / TRAIN_TEXT).read_text(encoding="utf-8")
    tokenizer = _tokenizer(text)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    settings = _settings()
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    config = read_config(folder / "config.json", settings)
    weights = _initial(config)
    with rounded_products(1):
        loss = _fit(weights, config, torch.tensor(tokenizer.encode(text).ids), folder / "training.safetensors")
    (folder / "training.json").write_text(json.dumps({"loss": loss, "steps": STEPS}))
    save_file({name: tensor.detach() for name, tensor in weights.items()}, folder / "model.safetensors")
    return loss


def _tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(END, special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def _settings() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }


def _initial(config: ModelConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries, keys = HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (queries, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    weights = {"model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator) * 0.02}
    for index in range(config.num_hidden_layers):
        prefix = f"model.layers.{index}."
        for name, shape in shapes.items():
            weights[f"{prefix}{name}.weight"] = torch.randn(shape, generator=generator) * (0.5 / math.sqrt(shape[1]))
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = torch.ones(HIDDEN)
    weights["model.norm.weight"] = torch.ones(HIDDEN)
    return weights


def _batches(token_ids: Tensor, first: int) -> Iterator[tuple[int, Tensor]]:
    """Step numbers and int64 [BATCH, ROW + 1]; a step's batch depends on its number alone."""
    for step in range(first, STEPS):
        generator = torch.Generator().manual_seed(1000 + step)
        starts = torch.randint(0, len(token_ids) - ROW - 1, (BATCH,), generator=generator)
        yield step, torch.stack([token_ids[start : start + ROW + 1] for start in starts.tolist()])


def _fit(weights: dict[str, Tensor], config: ModelConfig, token_ids: Tensor, kept: Path) -> float:
    rotary = RotaryTables(config, ROW, torch.float32, torch.device("cpu"))
    layers = [LayerForward(config, index, rotary) for index in range(config.num_hidden_layers)]
    for tensor in weights.values():
        tensor.requires_grad_()
    matrices = [tensor for tensor in weights.values() if tensor.dim() == 2]
    vectors = [tensor for tensor in weights.values() if tensor.dim() == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    first, loss = _restore(kept, weights, optimiser), torch.tensor(0.0)
    for step, batch in _batches(token_ids, first):
        if step and step % KEEP_EVERY == 0 and step != first:
            _keep(kept, step, weights, optimiser)
        for group in optimiser.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP, 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        x = embed(batch[:, :-1], weights["model.embed_tokens.weight"], config)
        for index, layer in enumerate(layers):
            prefix = f"model.layers.{index}."
            own = {name.removeprefix(prefix): one for name, one in weights.items() if name.startswith(prefix)}
            x = layer(own, x)
        found = logits(x, weights["model.norm.weight"], weights["model.embed_tokens.weight"], config)
        loss = F.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        if step % KEEP_EVERY == 0:
            print(f"training step {step} of {STEPS}: {loss.detach():.3f} nats", flush=True)
    return float(loss.detach())


def _keep(path: Path, step: int, weights: dict[str, Tensor], optimiser: torch.optim.Optimizer) -> None:
    stored = {f"weight.{name}": tensor.detach() for name, tensor in weights.items()} | {"step": torch.tensor(step)}
    for name, tensor in weights.items():
        state = optimiser.state[tensor]
        stored |= {f"{key}.{name}": state[key] for key in ("exp_avg", "exp_avg_sq", "step")}
    save_file(stored, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def _restore(path: Path, weights: dict[str, Tensor], optimiser: torch.optim.Optimizer) -> int:
    """The step to go on from."""
    if not path.is_file():
        return 0
    stored = load_file(path)
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(stored[f"weight.{name}"])
            keys = ("exp_avg", "exp_avg_sq", "step")
            optimiser.state[tensor] = {key: stored[f"{key}.{name}"] for key in keys}
    return int(stored["step"])
