"""A finished drafter's folder: weights and config.json in the public EAGLE-3 or Medusa layout, and its card.

Owns the files' contents. Knows no training. Invariant: every figure on the card is of these very weights; the folder is
complete or not there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import CheckpointInfo
from engine.config import ModelConfig
from engine.train.drafter_vocabulary import vocabulary_tables
from engine.train.refusal import Refusal

VERSION = 1
_ARCHITECTURES = {"eagle": "LlamaForCausalLMEagle3", "medusa": "MedusaModel"}
_NAMES = {"eagle": "EAGLE-3 style drafter", "medusa": "Medusa heads"}


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a drafter is of. model_id: the target's name; training, acceptance: as in config.json."""

    kind: str
    model_id: str
    fingerprint: str
    feature_layers: tuple[int, ...]
    training: Mapping[str, Any]
    acceptance: Mapping[str, Any]


def write_drafter(
    folder: Path,
    weights: Mapping[str, Tensor],
    chosen: Tensor,
    info: CheckpointInfo,
    layer: ModelConfig,
    made: Provenance,
) -> int:
    """Writes the folder, in place of a drafter that is there. Returns the weights' bytes.

    weights: fp32 by the public names. chosen int64 [n]: the reduced vocabulary. layer: of an EAGLE drafter's layer.
    """
    writing = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    tensors = {name: tensor.detach().cpu().to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    tensors |= vocabulary_tables(chosen, info.config.vocab_size)
    save_file(tensors, writing / "model.safetensors", {"format": "pt"})
    (writing / "model.safetensors").chmod(0o644)  # the library leaves it to its owner alone
    config = _config(len(chosen), info, layer, made)
    (writing / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (writing / "README.md").write_text(_card(info, config, made), encoding="utf-8")
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        writing.rename(folder)
        shutil.rmtree(old)
    else:
        writing.rename(folder)
    return sum(tensor.nbytes for tensor in tensors.values())


@dataclass(frozen=True, slots=True)
class OlderDrafter:
    """One to begin from. weights: fp32. chosen int64 [n]: its reduced vocabulary. training: as its config.json says how
    it was trained, with its name."""

    weights: dict[str, Tensor]
    chosen: Tensor
    training: dict[str, Any]


def read_older(folder: Path, kind: str, info: CheckpointInfo, fingerprint: str) -> OlderDrafter:
    """A drafter made here, to begin from. Refusal for another's."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))["pizarra"]
        found_kind, found_target = config["kind"], config["target"]["fingerprint"]
        training = {"name": folder.name, **config["training"]}
        list(_predecessors({"predecessor": training}))  # the new drafter's card will need all of it
        tensors = load_file(folder / "model.safetensors")
    except Exception as error:  # safetensors has its own kinds
        raise Refusal(f"{folder}: is no drafter that was made here ({error}); leave it out to begin anew") from error
    if (found_kind, found_target) != (kind, fingerprint):
        raise Refusal(
            f"{folder}: is of kind {found_kind} for weights {found_target[:12]}, and asked for is {kind} for "
            f"{info.path.name} ({fingerprint[:12]}); give one of the same, or leave it out to begin anew"
        )
    chosen = tensors.pop("d2t") + torch.arange(int(tensors.pop("t2d").sum()))
    return OlderDrafter({name: tensor.float() for name, tensor in tensors.items()}, chosen, training)


def warm_weights(
    fresh: Mapping[str, Tensor], chosen: Tensor, older: Mapping[str, Tensor], known: Tensor
) -> dict[str, Tensor]:
    """The weights `older` over the vocabulary `known`, for the vocabulary `chosen`.

    A new token begins as the mean of the known ones, so with an unremarkable score: the target's own row would outweigh
    every trained one, since a drafter's hidden states and its rows find a scale of their own.
    """
    both = torch.isin(chosen, known)
    rows = torch.searchsorted(known, chosen[both])
    found = {}
    for name, tensor in fresh.items():
        old = older.get(name)
        of_tokens = len(tensor) == len(chosen) and old is not None and len(old) == len(known) and _is_head(name)
        if old is None or (old.shape != tensor.shape and not of_tokens):
            raise Refusal(f"the drafter to begin from has no {name} of shape {tuple(tensor.shape)}; leave it out")
        if of_tokens:
            found[name] = old.mean(0, keepdim=True).repeat(len(chosen), 1)
            found[name][both] = old[rows]
        else:
            found[name] = old.clone()
    return found


def _is_head(name: str) -> bool:
    return name == "lm_head.weight" or (name.startswith("medusa_head.") and name.endswith(".1.weight"))


def _config(vocabulary: int, info: CheckpointInfo, layer: ModelConfig, made: Provenance) -> dict[str, Any]:
    base: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[made.kind]],
        "model_type": "llama" if made.kind == "eagle" else "medusa",
        "hidden_size": info.config.hidden_size,
        "vocab_size": info.config.vocab_size,
        "draft_vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
    }
    if made.kind == "eagle":
        base |= _layer_fields(layer)
        base |= {
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(made.feature_layers),
                "use_aux_hidden_state": True,
                "norm_before_residual": False,
            },
            "eagle_aux_hidden_state_layer_ids": list(made.feature_layers),
        }
    else:
        base |= {"medusa_num_heads": sum(1 for _ in range(made.training["num_heads"])), "medusa_num_layers": 1}
    target = {
        "model_id": made.model_id,
        "fingerprint": made.fingerprint,
        "hidden_size": info.config.hidden_size,
        "vocab_size": info.config.vocab_size,
        "num_hidden_layers": info.config.num_hidden_layers,
    }
    own = {
        "version": VERSION,
        "kind": made.kind,
        "feature_layers": list(made.feature_layers),
        "target": target,
        "training": dict(made.training),
        "acceptance": dict(made.acceptance),
    }
    return base | {"pizarra": own}


def _layer_fields(layer: ModelConfig) -> dict[str, Any]:
    """The usual fields of a Llama."""
    fields: dict[str, Any] = {
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": layer.max_position_embeddings,
        "rms_norm_eps": layer.rms_norm_eps,
        "rope_theta": layer.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    return fields


def _card(info: CheckpointInfo, config: Mapping[str, Any], made: Provenance) -> str:
    licence = info.metadata.get("general.license") or info.metadata.get("license")
    licence = licence if isinstance(licence, str) else "other"
    lines = ["---", f"license: {licence}", "tags:", "- speculative-decoding", f"- {made.kind}", "---", ""]
    lines += [f"# {_NAMES[made.kind]} for {made.model_id}", ""]
    lines += [
        f"Drafts tokens for the weights with the fingerprint `{made.fingerprint}` and no others: its figures hold"
    ]
    lines += ["for those alone. The target verifies every draft, so that answers stay the target's own.", ""]
    lines += [*_facts(config, made, licence), "", "## Acceptance on held-out answers", "", *_table(made.acceptance), ""]
    return "\n".join(lines)


def _facts(config: Mapping[str, Any], made: Provenance, licence: str) -> list[str]:
    training, layers = made.training, ", ".join(map(str, made.feature_layers))
    reads = f"hidden states at the input of the target's layers {layers}"
    if made.kind == "medusa":
        reads = "the target's last hidden state, behind its final norm"
    batches = f"batches of {training['batch_tokens']} tokens"
    rate = f"AdamW at {training['learning_rate']}, falling at the end, {batches}, running average of the weights"
    passes = f"{training['trained_tokens']:,} tokens with their conversations, each pass over the text counted"
    covered = f"The reduced vocabulary covers {100 * training['coverage']:.1f} % of them."
    steps = f"{training['steps']:,} steps of the optimiser, {training['unrolled_steps']} unrolled steps each"
    facts = [
        f"- Layout: {config['architectures'][0]}, {config['draft_vocab_size']} of {config['vocab_size']} tokens, bf16.",
        f"- Reads: {reads}.",
        f"- Licence: {licence}, as the target. Derived from the target's weights and from text that it wrote.",
        f"- Text: {training['text']}",
        f"- Size of the text: {training['text_tokens']:,} tokens of answers. {covered}",
        f"- Training: {training['learned_positions']:,} positions of answers ({passes}) in {steps}; {rate}.",
        f"- Cost: {_cost(training)}. Seed {training['seed']}.",
        *_predecessors(training),
    ]
    return [*facts, f"- Date: {datetime.now(UTC).date().isoformat()}."]


def _cost(training: Mapping[str, Any]) -> str:
    """Earlier versions counted the optimiser's steps alone."""
    where = f"on {training['machine']}, {training['dtype']}"
    steps = f"{training['seconds'] / 60:.0f} minutes"
    if "whole_seconds" not in training:
        untimed = "writing the text, computing the target's states and measuring were not timed"
        return f"{steps} of the optimiser's steps {where}; {untimed}"
    return f"{training['whole_seconds'] / 60:.0f} minutes {where}, {steps} of them in the optimiser's steps"


def _predecessors(training: Mapping[str, Any]) -> Iterator[str]:
    """What it was begun from, and what that was: their training is in its weights, too."""
    what = "Begun from"
    while training := training.get("predecessor", {}):
        learned = f"{training['learned_positions']:,} positions of answers in {training['steps']:,} steps"
        text = f"a text of {training['text_tokens']:,} tokens of answers"
        cost = f"Cost: {_cost(training)}. Seed {training['seed']}."
        yield f"- {what} an earlier drafter of this model, {training['name']}: {learned} over {text}. {cost}"
        what = "And that from"


def _table(found: Mapping[str, Any]) -> list[str]:
    agreed = 100 * found["first_likeliest_agrees"]
    return [
        f"{found['held_out_positions']:,} positions of answers that were not trained on. Each figure is the share of",
        "drafts at that place that are accepted if those before them were (rule `match`), when these answers are",
        "decoded: a run of drafts begins behind the last token that was not guessed.",
        "",
        "| answers | " + " | ".join(str(place + 1) for place in range(found["num_drafts"])) + " | mean length |",
        "|---|" + "---|" * (found["num_drafts"] + 1),
        _row("greedy", found["greedy"], found["greedy_mean_length"]),
        _row("temperature 1", found["temperature_1"], found["temperature_1_mean_length"]),
        "",
        f"The mean length is of a step with {found['num_drafts']} drafts, the target's own token included. Drafter and",
        f"target agree on the likeliest next token at {agreed:.1f} % of all these positions.",
    ]


def _row(name: str, shares: list[float], length: float) -> str:
    return f"| {name} | " + " | ".join(f"{share:.3f}" for share in shares) + f" | {length:.2f} |"
