"""The only reader of drafter folders: EAGLE-3 and Medusa in their public layouts, or any model that can be loaded.

Owns how a drafter's kind is told, the names and shapes of its tensors, and whether it fits a target. Reads headers, no
weights; knows no torch. Invariant: what `read_drafter` returns is complete, and what `check_fit` passes can draft for
that target: every shape that the two share agrees, every id that it can draft is one of the target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.checkpoint import CheckpointError, CheckpointInfo, TensorInfo, UnsupportedCheckpointError, read_checkpoint
from engine.checkpoint.drafter_fields import DrafterFields, read_drafter_fields
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.checkpoint.folder import read_json_object
from engine.checkpoint.info import STORAGE_FORMATS
from engine.checkpoint.safetensors import read_tensors

SHIPPED = Path(__file__).resolve().parents[2] / "assets" / "drafters"
EAGLE_NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
_IDS = ("d2t", "t2d")


@dataclass(frozen=True, slots=True)
class DrafterFile:
    """A drafter that lies on disk.

    kind: "eagle" | "medusa" | "draft_model". info: its tensors by canonical names and its configuration, whose
    vocab_size is that of its head. target_ids: the tensor d2t, or None: the ids are the target's. feature_layers: the
    target's layers whose inputs it reads; empty: the default for the target's depth. fingerprint: of the weights that
    it was trained for; "" where it does not say. norm_before_residual, num_heads: EAGLE's and Medusa's variants. wins:
    whether it says that it has beaten drafts without a drafter on the bench; a shipped one serves `auto` only then.
    """

    path: Path
    kind: str
    info: CheckpointInfo
    target_ids: TensorInfo | None = None
    feature_layers: tuple[int, ...] = ()
    fingerprint: str = ""
    norm_before_residual: bool = False
    num_heads: int = 0
    wins: bool = False

    @property
    def num_features(self) -> int:
        """How many of the target's hidden states it reads of a token."""
        return len(self.feature_layers)

    @property
    def own_embedding(self) -> bool:
        """Whether it has a token table of its own."""
        return "embed_tokens.weight" in self.info.tensors

    def layers_of(self, target: CheckpointInfo) -> tuple[int, ...]:
        """The feature layers for that target; vLLM's choice where the file names none."""
        if self.kind == "medusa":
            return (target.config.num_hidden_layers,)  # behind the final norm
        if self.kind == "draft_model":
            return ()
        depth = target.config.num_hidden_layers
        return self.feature_layers or (2, depth // 2, depth - 3)


def read_drafter(path: Path) -> DrafterFile:
    """The drafter at `path`, a folder or a file. CheckpointError names what is missing, damaged or unknown."""
    folder = path if path.is_dir() else path.parent
    settings = folder / "config.json"
    if path.suffix == ".gguf" or not settings.is_file():
        return DrafterFile(path, "draft_model", read_checkpoint(path))
    values = read_json_object(settings)
    weights = path if path.is_file() and path.suffix == ".safetensors" else None
    found = read_drafter_fields(settings, values)
    tensors = {} if found.kind == "draft_model" else _renamed(read_tensors(folder, weights))
    kind = found.kind or _kind_of(tensors)
    if kind == "draft_model":
        return DrafterFile(path, kind, read_checkpoint(path))
    return _read_eagle(path, values, found, tensors) if kind == "eagle" else _read_medusa(path, values, found, tensors)


def shipped_drafter(info: CheckpointInfo, folder: Path = SHIPPED, kind: str = "") -> Path | None:
    """The drafter that comes with Pizarra for these very weights, or None. kind: "" for any."""
    candidates = sorted(path.parent for path in folder.glob("*/config.json"))
    if not candidates:
        return None
    fingerprint = weights_fingerprint(info)
    for candidate in candidates:
        values = read_json_object(candidate / "config.json")
        found = read_drafter_fields(candidate / "config.json", values)
        if found.fingerprint == fingerprint and (not kind or found.kind in ("", kind)):
            return candidate
    return None


def check_fit(drafter: DrafterFile, target: CheckpointInfo) -> None:
    """Refuses a drafter whose shapes are not the target's. CheckpointError names both."""
    if drafter.kind == "draft_model":
        return
    config, hidden = target.config, target.config.hidden_size
    if drafter.kind == "medusa":
        width = drafter.info.config.hidden_size
        if width != hidden:
            raise _unfit(drafter, target, f"its heads read hidden states of {width} numbers, the model's have {hidden}")
    else:
        _check_features(drafter, target)
    size = drafter.info.config.vocab_size
    if drafter.target_ids is None and size > config.vocab_size:
        raise _unfit(drafter, target, f"it drafts {size} tokens, the model knows {config.vocab_size}")


def _check_features(drafter: DrafterFile, target: CheckpointInfo) -> None:
    config, own = target.config, drafter.info.config.hidden_size
    layers, inputs = drafter.layers_of(target), drafter.info.tensors["fc.weight"].shape[1]
    hidden = config.hidden_size
    if inputs != len(layers) * hidden:
        what = f"fc.weight reads {inputs} numbers, {len(layers)} hidden states of the model have {len(layers) * hidden}"
        raise _unfit(drafter, target, what)
    outside = [layer for layer in layers if not 0 <= layer < config.num_hidden_layers]
    if outside or len(set(layers)) < len(layers):
        what = f"its feature layers are {list(layers)}; the model has layers 0 to {config.num_hidden_layers - 1}"
        raise _unfit(drafter, target, what)
    if drafter.own_embedding:
        known = drafter.info.tensors["embed_tokens.weight"].shape[0]
        if known < config.vocab_size:
            raise _unfit(drafter, target, f"its token table has {known} rows, the model knows {config.vocab_size}")
    elif own != hidden:
        raise _unfit(drafter, target, f"its hidden size is {own}, that of the model's token table {hidden}")


def _unfit(drafter: DrafterFile, target: CheckpointInfo, what: str) -> CheckpointError:
    return CheckpointError(
        f"drafter {drafter.path}: does not fit {target.path}: {what}; choose a drafter that was trained for this "
        "model, or leave the drafter out"
    )


def _renamed(tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """By the names that vLLM and SpecForge use: other writers call the one layer layers.0, or leave medusa_head out."""
    found = {}
    for name, tensor in tensors.items():
        canonical = name.removeprefix("model.")
        if canonical.startswith("layers.0."):
            canonical = f"midlayer.{canonical.removeprefix('layers.0.')}"
        elif canonical[:1].isdigit():
            canonical = f"medusa_head.{canonical}"
        found[canonical] = replace(tensor, name=canonical)
    return found


def _kind_of(tensors: dict[str, TensorInfo]) -> str:
    if "fc.weight" in tensors and "midlayer.hidden_norm.weight" in tensors:
        return "eagle"
    return "medusa" if any(name.startswith("medusa_head.") for name in tensors) else "draft_model"


def _read_eagle(
    path: Path, values: dict[str, Any], found: DrafterFields, tensors: dict[str, TensorInfo]
) -> DrafterFile:
    config = found.layer_config(values, _head_rows(path, tensors, "lm_head.weight"))
    fc = _required(path, tensors, "fc.weight")
    shapes = dict(_eagle_shapes(config.hidden_size, config.vocab_size, fc.shape[-1], config))
    if "embed_tokens.weight" in tensors:
        shapes["embed_tokens.weight"] = (tensors["embed_tokens.weight"].shape[0], config.hidden_size)
    info, ids = _checked(path, values, tensors, shapes, config)
    before, layers = found.norm_before_residual, found.feature_layers
    return DrafterFile(path, "eagle", info, ids, layers, found.fingerprint, before, wins=found.wins)


def _eagle_shapes(hidden: int, vocabulary: int, features: int, config: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of the one-layer drafter of EAGLE-3 (arXiv 2503.01840)."""
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    yield "fc.weight", (hidden, features)
    for name in EAGLE_NORMS:
        yield f"midlayer.{name}.weight", (hidden,)
    for name, outputs in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"midlayer.self_attn.{name}.weight", (outputs, 2 * hidden)
        if config.attention_bias:
            yield f"midlayer.self_attn.{name}.bias", (outputs,)
    yield "midlayer.self_attn.o_proj.weight", (hidden, queries)
    if config.attention_bias:
        yield "midlayer.self_attn.o_proj.bias", (hidden,)
    for name in ("gate_proj", "up_proj"):
        yield f"midlayer.mlp.{name}.weight", (config.intermediate_size, hidden)
    yield "midlayer.mlp.down_proj.weight", (hidden, config.intermediate_size)
    yield "norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def _read_medusa(
    path: Path, values: dict[str, Any], found: DrafterFields, tensors: dict[str, TensorInfo]
) -> DrafterFile:
    heads = 0
    while f"medusa_head.{heads}.1.weight" in tensors:
        heads += 1
    vocabulary, hidden = _required(path, tensors, "medusa_head.0.1.weight").shape
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        shapes[f"medusa_head.{head}.0.linear.weight"] = (hidden, hidden)
        shapes[f"medusa_head.{head}.0.linear.bias"] = (hidden,)
        shapes[f"medusa_head.{head}.1.weight"] = (vocabulary, hidden)
    config = found.head_config(hidden, vocabulary)
    info, ids = _checked(path, values, tensors, shapes, config)
    return DrafterFile(path, "medusa", info, ids, (), found.fingerprint, num_heads=heads, wins=found.wins)


def _required(path: Path, tensors: dict[str, TensorInfo], name: str) -> TensorInfo:
    tensor = tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise CheckpointError(f"drafter {path}: the matrix {name} is missing; the drafter is incomplete")
    return tensor


def _head_rows(path: Path, tensors: dict[str, TensorInfo], name: str) -> int:
    return _required(path, tensors, name).shape[0]


def _checked(
    path: Path,
    values: dict[str, Any],
    tensors: dict[str, TensorInfo],
    shapes: dict[str, tuple[int, ...]],
    config: Any,
) -> tuple[CheckpointInfo, TensorInfo | None]:
    """The tensors that are needed, each there with its shape, and the table of ids."""
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"drafter {path}: tensor {name} {shape} is missing; the drafter is incomplete")
        if tensor.shape != shape:
            raise CheckpointError(
                f"drafter {path}: tensor {name} has the shape {tensor.shape}, expected {shape} from its configuration"
            )
        if tensor.dtype not in STORAGE_FORMATS:
            raise UnsupportedCheckpointError(
                f"drafter {path}: tensor {name} is stored as {tensor.dtype}; numbers in F32, F16 or BF16 are read"
            )
    unknown = sorted(tensors.keys() - shapes.keys() - set(_IDS))
    if unknown:
        raise UnsupportedCheckpointError(
            f"drafter {path}: tensor {unknown[0]} is not part of a drafter of this configuration; this variant is not "
            "supported"
        )
    ids = tensors.get("d2t")
    if ids is not None and (ids.shape != (config.vocab_size,) or ids.dtype != "I64"):
        raise CheckpointError(
            f"drafter {path}: d2t is {ids.dtype} {ids.shape}, expected I64 ({config.vocab_size},): one for each row"
        )
    kept = {name: tensors[name] for name in shapes}
    nbytes = sum(tensor.nbytes for tensor in kept.values())
    count = sum(tensor.num_elements for tensor in kept.values())
    info = CheckpointInfo(path, "safetensors", config, kept, "BF16", None, nbytes, count, values)
    return info, ids
