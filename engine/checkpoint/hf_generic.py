"""Reads config.json of a family that has no decoder here: transformers' own class will run it.

Owns the spellings of the few fields that the engine itself needs: shapes of the KV cache, vocabulary, context. What the
arithmetic is stays with transformers. Knows no tensors.
Invariant: a configuration that leaves here names a causal language model of the installed transformers, without code of
the checkpoint's own, and nothing in it is known not to run.
"""

from __future__ import annotations

from engine.checkpoint.fields import Fields
from engine.checkpoint.folder import read_eos_token_ids
from engine.checkpoint.hf_families import FAMILIES
from engine.checkpoint.hf_refusals import recurrent, refusal
from engine.checkpoint.hf_transformers import causal_language_models, keeps_state, takes_attention_functions
from engine.checkpoint.info import UnsupportedCheckpointError
from engine.config import ModelConfig

_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "feedforward_size")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


def read_generic(fields: Fields, name: str, reason: str) -> ModelConfig:
    """The configuration of class `name` of transformers. `reason`: why no decoder here runs it."""
    _refuse(fields, name, reason)
    types = causal_language_models()[name]
    model_type = fields.get("model_type", types[0] if len(types) == 1 else None)
    if model_type not in types:
        raise fields.fail("model_type", f"{' or '.join(types)}, as transformers calls {name}")
    hidden, heads = _count(fields, _HIDDEN), _count(fields, _HEADS)
    bos = fields.get("bos_token_id")
    return ModelConfig(
        architecture=model_type,
        hidden_size=hidden,
        intermediate_size=_count(fields, _INNER, 4 * hidden),
        num_hidden_layers=_count(fields, _LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=1 if fields.get("multi_query") else _count(fields, _KEY_HEADS, heads),
        head_dim=_count(fields, ("head_dim", "attention_head_dim", "kv_channels"), max(1, hidden // heads)),
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=_count(fields, _CONTEXT),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=10000.0,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        bos_token_id=bos if type(bos) is int else None,
        eos_token_ids=read_eos_token_ids(fields.path.parent, fields.get("eos_token_id")),
        transformers_class=name,
        transformers_reason=reason,
    )


def _count(fields: Fields, names: tuple[str, ...], default: int | None = None) -> int:
    """The first of `names` that is set; an error that lists them where none is and there is no default."""
    for name in names:
        if fields.get(name) is not None:
            return fields.count(name)
    if default is None:
        raise fields.fail(names[0], f"a positive whole number (also read as {', '.join(names[1:])})")
    return default


def _refuse(fields: Fields, name: str, reason: str) -> None:
    known = causal_language_models()
    refused = refusal(fields, name)
    if refused is None and name not in known and fields.get("auto_map"):
        refused = (
            f"{name} is Python code that comes with the checkpoint (auto_map), and such code is never run; "
            "use a GGUF file of the model, or its port to transformers"
        )
    if refused is None and name not in known:
        refused = (
            f"architecture {name} is not supported; supported: {', '.join(FAMILIES)}, and causal language models of "
            "transformers with softmax attention in every layer"
        )
    if refused is None and keeps_state(name):
        refused = recurrent(name)
    if refused is None and not takes_attention_functions(name):
        refused = f"{name}: its attention in transformers cannot be replaced, so the paged KV cache cannot serve it"
        refused = f"{refused} ({reason}); use a GGUF file of the model with llama.cpp, or transformers itself"
    if refused is not None:
        raise UnsupportedCheckpointError(f"{fields.path}: {refused}")
