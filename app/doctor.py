"""A checkpoint's report completed with what depends on this machine: memory, tokenizer, template, drafts, environment.

Owns the report of `pizarra doctor` and of /api/models/{id}/doctor. Loads no model and changes nothing. Invariant: a
report is always made, whatever is wrong; `problem` is empty exactly where the checkpoint could be served here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.catalog.local import LocalModel
from app.fit import FitEstimate, estimate
from app.template_check import chat_support
from engine.checkpoint import CheckpointInfo
from engine.checkpoint.doctor import CheckpointReport, examine
from engine.config import LoadOptions
from engine.vocab import Vocab, VocabError, load_vocab
from engine.vocab_match import match_vocabs

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """Whether the tokenizer can be read; `reason` says why not."""

    readable: bool
    num_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """The chat template: is it there, does it render a chat, and what kinds of conversation does it not take."""

    present: bool
    accepted: bool
    reason: str
    limits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Another model on this disk as a drafter of this one."""

    model_id: str
    matches: bool
    num_parameters: int
    reason: str


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All that can be said of a checkpoint without loading it. Parts that could not be looked at are None.

    problem: why it cannot be served, "" where it can. fit: with default options and the memory that is free now.
    environment: what is wrong with this installation, whatever the checkpoint.
    """

    model_id: str | None
    problem: str
    checkpoint: CheckpointReport
    tokenizer: TokenizerReport
    chat_template: TemplateReport | None
    fit: FitEstimate | None
    drafts: tuple[DraftReport, ...]
    environment: tuple[str, ...]


class Doctor:
    """Examines checkpoints. `local` lists the models on disk, `free_memory` is `app.devices.free_memory` of now."""

    def __init__(
        self, local: Callable[[], Sequence[LocalModel]], free_memory: Callable[[], tuple[str, int, int]]
    ) -> None:
        self._local = local
        self._free_memory = free_memory

    def examine_model(self, model: LocalModel) -> DoctorReport:
        """The report of a model on disk, a broken one included."""
        return self._examine(model.path, model.id, model.error or "")

    def examine_path(self, path: Path) -> DoctorReport:
        """The report of a model folder or file that need not be known here."""
        return self._examine(path, None, "")

    def _examine(self, path: Path, model_id: str | None, known_problem: str) -> DoctorReport:
        checkpoint, info = examine(path)
        vocab, tokenizer = _read_tokenizer(path)
        return DoctorReport(
            model_id=model_id,
            problem=checkpoint.problem or known_problem or tokenizer.reason,
            checkpoint=checkpoint,
            tokenizer=tokenizer,
            chat_template=None if vocab is None else _try_template(vocab),
            fit=None if info is None else self._fit(info),
            drafts=() if info is None or vocab is None else tuple(self._drafts(path, info, vocab)),
            environment=tuple(environment_problems()),
        )

    def _fit(self, info: CheckpointInfo) -> FitEstimate:
        device, available, total = self._free_memory()
        return estimate(info, LoadOptions(), available, total, device)

    def _drafts(self, path: Path, info: CheckpointInfo, vocab: Vocab) -> list[DraftReport]:
        texts = vocab.token_texts()
        others = [model for model in self._local() if not _is_same(model.path, path)]
        found = [_try_draft(model, info.num_parameters, texts) for model in others]
        return sorted(found, key=lambda draft: (not draft.matches, draft.num_parameters))


def environment_problems() -> list[str]:
    """What would break the engine whatever it loads: another module in the place of our kernels/."""
    problems = []
    try:
        version = importlib.metadata.version("kernels")
        problems.append(
            f"Hugging Face's distribution `kernels` {version} is installed: it has the name of a package of Pizarra, "
            "and `import transformers` breaks where both are found. Remove it: pip uninstall kernels"
        )
    except importlib.metadata.PackageNotFoundError:
        pass
    spec = importlib.util.find_spec("kernels")
    origin = Path(spec.origin).parent if spec is not None and spec.origin else None
    if origin is None or origin.resolve() != ROOT / "kernels":
        problems.append(
            f"`kernels` is imported from {origin or 'nowhere'} and not from {ROOT / 'kernels'}: something stands "
            "before it on Python's path (PYTHONPATH, the working directory, or an installed package); remove that"
        )
    return problems


def _read_tokenizer(path: Path) -> tuple[Vocab | None, TokenizerReport]:
    try:
        vocab = load_vocab(path)
    except (VocabError, OSError) as error:
        return None, TokenizerReport(False, 0, str(error))
    return vocab, TokenizerReport(True, sum(text is not None for text in vocab.token_texts()), "")


def _try_template(vocab: Vocab) -> TemplateReport:
    chat = chat_support(vocab)
    limits = tuple(f"{each.requested}: {each.reason}" for each in chat.settings) if chat.encoder is not None else ()
    return TemplateReport(vocab.chat_template is not None, chat.encoder is not None, chat.error, limits)


def _try_draft(model: LocalModel, target_parameters: int, texts: Sequence[str | None]) -> DraftReport:
    if model.info is None:
        return DraftReport(model.id, False, 0, f"it cannot be loaded: {model.error}")
    size = model.info.num_parameters
    if size >= target_parameters:
        return DraftReport(model.id, False, size, "it is no smaller than this model, so its drafts would save nothing")
    try:
        match = match_vocabs(texts, load_vocab(model.path).token_texts())
    except (VocabError, OSError) as error:
        return DraftReport(model.id, False, size, f"its tokenizer cannot be read: {error}")
    return DraftReport(model.id, match.matches, size, match.reason)


def _is_same(one: Path, other: Path) -> bool:
    """Whether both lead to the same model; a folder that holds one GGUF file stands for that file."""
    one, other = one.resolve(), other.resolve()
    return (
        one == other
        or (one.parent == other and one.suffix == ".gguf")
        or (other.parent == one and other.suffix == ".gguf")
    )
