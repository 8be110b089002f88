"""Which files of a repository make up the model that was asked for.

Owns the choice: Hugging Face layout or GGUF, one quantisation among several, all parts of a split file. Knows neither
network nor disk. Invariant: only weights (safetensors, GGUF), JSON, tokenizer and licence files are chosen, never a
pickle, never code; a split file is chosen whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from app.catalog.download import PullError
from app.catalog.entry import HubSource, is_safe_path
from engine.checkpoint.gguf_parts import part_name

_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_TOKENIZER_FILES = frozenset(("tokenizer.model", "vocab.txt", "merges.txt", "chat_template.jinja"))
_LICENCE_FILE = re.compile(r"(LICEN[CS]E|NOTICE|USE_POLICY)(\.[a-z]+)?", re.IGNORECASE)
_NO_MODEL = re.compile(r"(^|[-._])(mmproj|imatrix)([-._]|$)", re.IGNORECASE)  # GGUF files that go with a model
_SHOWN_CHOICES = 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub describes it. `sha256` is known for large files, `git_oid` for the others."""

    name: str
    size: int
    sha256: str | None
    git_oid: str | None

    @property
    def local_name(self) -> str:
        return self.name.rpartition("/")[2]


def choose_files(source: HubSource, available: list[HubFile]) -> tuple[HubFile, ...]:
    """The weights asked for and what they need; small files first, so that an unsuitable model is known early."""
    by_name = {file.name: file for file in available if is_safe_path(file.name)}
    top = {name: file for name, file in by_name.items() if "/" not in name}
    names_a_gguf = source.file is not None or source.quantization is not None
    weights = [] if names_a_gguf else _choose_safetensors(top)
    if weights:
        companions = [file for name, file in top.items() if name.endswith(".json") or name in _TOKENIZER_FILES]
    else:
        weights, companions = _choose_gguf(source, by_name), []
    licences = [file for name, file in top.items() if _LICENCE_FILE.fullmatch(name)]
    return tuple(sorted((*companions, *licences), key=lambda file: file.name)) + tuple(weights)


def _choose_safetensors(top: dict[str, HubFile]) -> list[HubFile]:
    """The weights in Hugging Face layout. Other layouts of the same weights often lie beside them."""
    if "model.safetensors.index.json" in top:
        return [top[name] for name in sorted(top) if _SHARD.fullmatch(name)]
    return [top["model.safetensors"]] if "model.safetensors" in top else []


def _choose_gguf(source: HubSource, by_name: dict[str, HubFile]) -> list[HubFile]:
    choices = _gguf_models(name for name in sorted(by_name) if name.endswith(".gguf"))
    if source.file is not None:
        chosen = [choice for choice, names in choices.items() if source.file in (choice, *names)]
    elif source.quantization is not None:
        chosen = [choice for choice in choices if _is_of(source.quantization, choice)]
    else:
        chosen = [choice for choice in choices if not _NO_MODEL.search(choice.rpartition("/")[2])]
    if len(chosen) != 1:
        raise PullError(_not_one(source, chosen, choices))
    parts = choices[chosen[0]]
    missing = [name for name in parts if name not in by_name]
    if missing:
        raise PullError(
            f"{source.repo} lacks {', '.join(missing)}: {chosen[0]} is split into {len(parts)} parts and of no use "
            "without them. Choose another quantisation, or another repository"
        )
    return [by_name[name] for name in parts]


def _gguf_models(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What to call each model, and its files: one, or the parts that the names promise."""
    models: dict[str, tuple[str, ...]] = {}
    for name in names:
        part = part_name(name)
        if part is None:
            models[name] = (name,)
        else:
            models[f"{part.stem}.gguf"] = part.names()
    return models


def _is_of(quantization: str, name: str) -> bool:
    """Whether a file's path names the quantisation: Q4_K is neither Q4_K_M nor IQ4_K."""
    if _NO_MODEL.search(name.rpartition("/")[2]):
        return False
    label = re.escape(quantization)
    return bool(re.search(rf"(^|[-._/]){label}([-./]|$)", name, re.IGNORECASE))


def _not_one(source: HubSource, chosen: list[str], choices: dict[str, tuple[str, ...]]) -> str:
    """Why no model is chosen, and from what one can choose."""
    offered = chosen or list(choices)
    shown = ", ".join(offered[:_SHOWN_CHOICES]) + (", ..." if len(offered) > _SHOWN_CHOICES else "")
    if chosen:
        what = f" of quantisation {source.quantization}" if source.quantization else ""
        return (
            f"{source.repo} has {len(chosen)} GGUF models{what}; name one: hf:{source.repo}:QUANTISATION (such as "
            f"Q4_K_M) or hf:{source.repo}:FILE. There are: {shown}"
        )
    if source.file is not None:
        return f"{source.repo} has no file {source.file}. Its GGUF models: {shown or 'none'}"
    if source.quantization is not None:
        return f"{source.repo} has no GGUF model of quantisation {source.quantization}. Its models: {shown or 'none'}"
    return (
        f"{source.repo} has neither safetensors in Hugging Face layout nor GGUF models; other formats (.bin, .pt, "
        ".pth are pickles, which can run code) are not loaded. Look for a safetensors or GGUF edition of the model"
    )
