"""A tiny random Llama checkpoint with a real byte-level tokenizer, for tests that need a whole model in milliseconds.

Owns its shapes, its weights (a seeded normal distribution) and its 320-token vocabulary; writes safetensors or GGUF.
Invariant: same arguments, same weights, whichever format; transformers and this engine both load the safetensors form.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from tests.engine.gguf_writer import StoredTensor, encode, interleave_rotary_rows, store, write_gguf

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 2  # <|im_end|>
_MERGES = (
    "Ġ t|Ġ a|h e|i n|r e|o n|Ġt he|e r|Ġ s|Ġ o|a t|e n|Ġ c|Ġ w|o u|i s|o r|e s|n d|Ġ b|Ġ f|in g|Ġ p|e d|Ġa nd|Ġo f|"
    "a l|Ġ m|Ġt o|Ġ in|Ġ d|i t|a n|Ġ h|l e|Ġ is|a s|l l|Ġ y|Ġy ou|i c|Ġ n|r o|u s|s t|Ġ l|a r|v e|Ġw h|o m|Ġ re|"
    "i on|Ġ e|Ġ T|Ġ g|Ċ Ċ|o t|Ġb e|i d|a m|Ġ I"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama_checkpoint(
    folder: Path, *, format: str = "safetensors", seed: int = 0, dtype: str = "F32", **config: Any
) -> Path:
    """Write the checkpoint into `folder`; returns the folder ("safetensors") or the file ("gguf").

    `dtype` is the storage format of the matrices (norms and biases stay F32 in GGUF); `config` overrides config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = tiny_config(**config)
    weights = tiny_weights(settings, seed)
    if format == "gguf":
        return _write_gguf(folder / "tiny.gguf", settings, weights, dtype)
    write_safetensors(folder / "model.safetensors", weights, dtype)
    generation = {"bos_token_id": settings["bos_token_id"], "eos_token_id": settings["eos_token_id"]}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "chat_template": CHAT_TEMPLATE,
    }
    for name, content in (
        ("config.json", settings),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def tiny_gguf_parts(folder: Path, count: int, *, stem: str = "tiny", seed: int = 0) -> list[Path]:
    """The same checkpoint as a GGUF file split into `count` parts."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config()
    tensors = list(gguf_tensors(config, tiny_weights(config, seed), "F32").items())
    paths = []
    for index in range(count):
        keys = {"split.no": index, "split.count": count, "split.tensors.count": len(tensors)}
        metadata = (gguf_metadata(config) if index == 0 else {}) | keys
        path = folder / f"{stem}-{index + 1:05}-of-{count:05}.gguf"
        paths.append(write_gguf(path, metadata, dict(tensors[index::count])))
    return paths


def tiny_config(**overrides: Any) -> dict[str, Any]:
    """config.json of the tiny model, with `overrides` put over it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": len(SPECIAL_TOKENS) + 256 + len(_MERGES.split("|")),
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    } | overrides


def tiny_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Random fp32 weights under Hugging Face names, scaled so that logits differ clearly between tokens."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(out_features: int, in_features: int) -> torch.Tensor:
        return torch.randn(out_features, in_features, generator=generator).mul(1.5 / in_features**0.5)

    def vector(size: int, centre: float) -> torch.Tensor:
        return centre + 0.1 * torch.randn(size, generator=generator)

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    linears = (
        ("self_attn.q_proj", queries, hidden, config["attention_bias"]),
        ("self_attn.k_proj", keys, hidden, config["attention_bias"]),
        ("self_attn.v_proj", keys, hidden, config["attention_bias"]),
        ("self_attn.o_proj", hidden, queries, config["attention_bias"]),
        ("mlp.gate_proj", inner, hidden, config["mlp_bias"]),
        ("mlp.up_proj", inner, hidden, config["mlp_bias"]),
        ("mlp.down_proj", hidden, inner, config["mlp_bias"]),
    )
    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[f"{prefix}input_layernorm.weight"] = vector(hidden, 1.0)
        weights[f"{prefix}post_attention_layernorm.weight"] = vector(hidden, 1.0)
        for name, out_features, in_features, has_bias in linears:
            weights[f"{prefix}{name}.weight"] = matrix(out_features, in_features)
            if has_bias:
                weights[f"{prefix}{name}.bias"] = vector(out_features, 0.0)
    weights["model.norm.weight"] = vector(hidden, 1.0)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return weights


def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of 320 tokens: 3 special ones, 256 bytes, 61 merges; digits stand alone."""
    merges = [(left, right) for left, right in (merge.split(" ") for merge in _MERGES.split("|"))]
    alphabet = sorted(ByteLevel.alphabet())
    texts = [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(BPE({text: token_id for token_id, text in enumerate(texts)}, merges))
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return tokenizer


def write_safetensors(path: Path, weights: dict[str, torch.Tensor], dtype: str = "F32") -> None:
    """Write one safetensors file, every tensor stored as `dtype`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in weights.items():
        raw = encode(tensor, dtype)
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode("utf-8")
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _write_gguf(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], dtype: str) -> Path:
    return write_gguf(path, gguf_metadata(config), gguf_tensors(config, weights, dtype))


def gguf_tensors(config: dict[str, Any], weights: dict[str, torch.Tensor], dtype: str) -> dict[str, StoredTensor]:
    """`weights` under GGUF names, q and k in GGUF's row order, matrices as `dtype`."""
    tensors = {}
    for name, tensor in weights.items():
        stem = name.rpartition(".")[0]
        rows = tensor
        if stem.endswith("q_proj"):
            rows = interleave_rotary_rows(tensor, config["num_attention_heads"])
        elif stem.endswith("k_proj"):
            rows = interleave_rotary_rows(tensor, config["num_key_value_heads"])
        tensors[gguf_name(name)] = store(rows, dtype if tensor.dim() == 2 else "F32")
    return tensors


def gguf_name(name: str) -> str:
    """A Hugging Face name of Llama's as GGUF has it."""
    stem, _, suffix = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{_GGUF_NAMES[stem]}.{suffix}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{suffix}"


def gguf_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """The GGUF key-values of `config`, tokenizer and chat template included."""
    tokenizer = tiny_tokenizer()
    texts = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.get_vocab_size())]
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if text in SPECIAL_TOKENS else 1 for text in texts],
        "tokenizer.ggml.merges": _MERGES.split("|"),
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
