"""Instantiates a class of transformers and fills it from a checkpoint that this engine's own reader has checked.

Owns the way from config.json and mapped tensors to a module. Renaming, splitting and stacking of tensors is
transformers' own, by the table it keeps for its classes. No code of a checkpoint is run, nothing is fetched.
Invariant: every parameter came from the checkpoint, and none shares memory with a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint import CheckpointError, CheckpointInfo
from engine.models.loader import mapped_tensors
from engine.models.registry import UnsupportedModel

# Of config.json: names code of the checkpoint's, or sets what this engine sets itself.
_IGNORED_KEYS = {"auto_map", "dtype", "torch_dtype", "use_cache", "return_dict", "_attn_implementation"}


def load_class(info: CheckpointInfo, dtype: torch.dtype, progress: Callable[[int, int], None]) -> Any:
    """The model of `info`, with its weights as `dtype`, ready for inference. progress gets bytes done and in all."""
    from transformers import CONFIG_MAPPING
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    name = info.config.transformers_class
    values = {key: value for key, value in info.metadata.items() if key not in _IGNORED_KEYS}
    found = transformers_class(name)
    progress(0, info.weights_bytes_on_disk)
    with torch.inference_mode(False), torch.no_grad():  # transformers makes parameters of the tensors
        tensors = mapped_tensors(info)
        try:
            config = CONFIG_MAPPING[info.config.architecture].from_dict(values | {"use_cache": False})
            model, report = found.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                attn_implementation="eager",
                experts_implementation="eager",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                local_files_only=True,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError) as error:
            raise UnsupportedModel(
                f"{info.path}: transformers cannot make a {name} of this checkpoint ({type(error).__name__}: {error})"
            ) from error
        _check_report(info, report)
        _own_memory(model, tensors, info.weights_bytes_on_disk, progress)
    model.requires_grad_(False)
    return model.eval()


def transformers_class(name: str) -> Any:
    """The class `name` of transformers. UnsupportedModel where it is not there or its attention cannot be replaced."""
    import transformers

    found = getattr(transformers, name, None)
    if found is None:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no {name}; install a newer one, or use a GGUF file"
        )
    if not getattr(found, "_supports_attention_backend", False):
        raise UnsupportedModel(f"the attention of {name} in transformers {transformers.__version__} cannot be replaced")
    return found


def _check_report(info: CheckpointInfo, report: dict[str, Any]) -> None:
    """Refuses a checkpoint that lacks a tensor, has one too many, or one of another shape."""
    for key, finding in (
        ("missing_keys", "is missing; the checkpoint is incomplete"),
        ("unexpected_keys", "is not part of this model; this variant is not supported"),
        ("mismatched_keys", "(shapes found, expected) does not fit config.json"),
        ("error_msgs", "was reported by transformers"),
    ):
        found = sorted(map(str, report.get(key) or ()))
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise CheckpointError(f"{info.path}: {info.config.transformers_class}: {found[0]}{more} {finding}")


def _own_memory(model: Any, tensors: dict[str, Tensor], total: int, progress: Callable[[int, int], None]) -> None:
    """Copies every parameter that still is a piece of a mapped file; each copy takes the place of its original."""
    mapped = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    done = 0
    for parameter in model.parameters():
        if parameter.untyped_storage().data_ptr() in mapped:
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        done += parameter.nbytes
        progress(min(done, total), total)
    progress(total, total)
