"""What the training of a drafter is asked to do, and everything that can be refused before any work.

Owns the arguments of the job `train-drafter` and the checks against the model and the disk. Invariant: a request that
passed can be carried out as asked; nothing is adjusted silently.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import CheckpointInfo
from engine.config import GIB
from engine.cores import usable_cores
from engine.runner.device import host_memory
from engine.train.refusal import Refusal

KINDS = ("eagle", "medusa")
_PATHS = ("model", "output", "texts", "warm_start", "work")
_NEEDED_PATHS = ("model", "output")
_BOUNDS: dict[str, tuple[float, float]] = {
    "tokens": (1000, 10**9),
    "passes": (1, 1000),
    "seed": (0, 2**53),
    "vocabulary": (64, 10**6),
    "steps": (1, 8),
    "batch_tokens": (128, 65536),
    "longest": (64, 8192),
    "answer_tokens": (16, 4096),
    "feature_gib": (0, 10**4),
    "measure_every": (100, 10**9),
    "num_threads": (1, 1024),
    "minutes": (0.01, 10**5),
    "learning_rate": (1e-6, 0.1),
}
_NUMBERS = ("minutes", "learning_rate")  # need not be whole
_TOKENS_PER_ANSWER_TOKEN = 1.5  # with questions and what is given
_DISK_PER_TOKEN = 5  # bytes of text: an id and its kind
_SHARD_TOKENS = 140_000  # at most, about


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """See `engine.jobs`. tokens: of answers, to learn from. minutes: that this stretch may take from its beginning,
    None for no limit; the last measurement and the writing of the drafter come behind them. passes: over the text.
    texts: a file of the operator's own, its paragraphs become questions. vocabulary: size of the reduced one. steps:
    how deep drafts are unrolled. longest: tokens of a conversation. feature_gib: disk for the target's states.
    warm_start: a drafter to begin from. model_id: what the card calls the target. work: where text and checkpoints are
    kept; absent: beside the output, and removed once all passes are made.
    """

    model: Path
    output: Path
    kind: str = "eagle"
    tokens: int = 1_000_000
    minutes: float | None = None
    passes: int = 3
    texts: Path | None = None
    seed: int = 0
    vocabulary: int = 8192
    steps: int = 4
    batch_tokens: int = 2048
    learning_rate: float = 8e-4
    longest: int = 1024
    answer_tokens: int = 384
    feature_gib: int = 16
    measure_every: int = 100_000
    warm_start: Path | None = None
    model_id: str = ""
    work: Path | None = None
    device: str = "auto"
    num_threads: int | None = None

    @property
    def folder(self) -> Path:
        """Where unfinished work is kept."""
        return self.work or self.output.with_name(f"{self.output.name}.partial")

    @property
    def threads(self) -> int:
        """CPU threads to use."""
        return self.num_threads or usable_cores()

    @property
    def torch_device(self) -> torch.device:
        """Where to train."""
        wish = self.device if self.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(wish)


def read_train_request(arguments: Mapping[str, Any]) -> TrainRequest:
    """The request that these arguments are. Refusal where a field is unknown, missing, or of the wrong kind."""
    known = {one.name: one.default for one in dataclass_fields(TrainRequest)}
    unknown = sorted(arguments.keys() - known.keys())
    if unknown:
        raise Refusal(f"unknown argument {unknown[0]!r}; known are {', '.join(sorted(known))}")
    values = dict(arguments)
    for name in _PATHS:
        value = values.get(name)
        if isinstance(value, str) and value:
            values[name] = Path(value)
        elif name in _NEEDED_PATHS or value is not None:
            raise Refusal(f"{name} is {value!r}, expected a path")
    for name, (low, high) in _BOUNDS.items():
        value = values.get(name, known[name])
        if value is None and known[name] is None:
            continue
        kinds = (int, float) if name in _NUMBERS else (int,)
        if type(value) not in kinds:
            raise Refusal(f"{name} is {value!r}, expected a {'' if name in _NUMBERS else 'whole '}number")
        if not low <= value <= high:
            raise Refusal(f"{name} is {value}; must lie between {low:g} and {high:g}")
    for name, allowed in (("kind", KINDS), ("device", ("auto", "cpu", "cuda"))):
        if values.get(name, known[name]) not in allowed:
            raise Refusal(f"{name} is {values[name]!r}; known are {', '.join(allowed)}")
    if not isinstance(values.get("model_id", ""), str):
        raise Refusal(f"model_id is {values['model_id']!r}, expected a name")
    request = TrainRequest(**values)
    _check_wishes(request)
    return request


def _check_wishes(request: TrainRequest) -> None:
    """What can be said without looking at the model."""
    if request.device == "cuda" and not torch.cuda.is_available():
        raise Refusal("device is 'cuda', and torch finds no GPU here; leave it out to train on the CPU")
    if not request.output.absolute().parent.is_dir():
        raise Refusal(
            f"{request.output.absolute().parent}: there is no such folder to write {request.output.name} into"
        )
    if request.output.exists() and not (request.output / "config.json").is_file():
        raise Refusal(f"{request.output}: is there already and is no drafter; choose another output, or remove it")
    if request.texts is not None and not request.texts.is_file():
        raise Refusal(f"{request.texts}: there is no such text; leave it out to have the model write alone")
    if request.warm_start is not None and not (request.warm_start / "config.json").is_file():
        raise Refusal(
            f"{request.warm_start}: there is no drafter to begin from; give the folder of one, or leave it out"
        )
    if request.longest < 2 * request.answer_tokens:
        raise Refusal(
            f"longest is {request.longest}, too short for questions and answers of {request.answer_tokens} tokens; ask "
            "for at least twice as much, or for shorter answers"
        )


def check_train_model(request: TrainRequest, info: CheckpointInfo) -> None:
    """What the model, the disk and the memory allow. Refusal otherwise."""
    config = info.config
    if request.longest > config.longest_context:
        raise Refusal(
            f"longest is {request.longest}, and {info.path} takes at most {config.longest_context}; ask for less"
        )
    if request.vocabulary > config.vocab_size:
        raise Refusal(f"vocabulary is {request.vocabulary}, and {info.path} has only {config.vocab_size} tokens")
    if config.num_hidden_layers < 3:
        raise Refusal(f"{info.path}: has {config.num_hidden_layers} layers, and a drafter reads hidden states of three")
    states = int(request.tokens * _TOKENS_PER_ANSWER_TOKEN) * (8 * config.hidden_size + 8)
    text = int(request.tokens * _TOKENS_PER_ANSWER_TOKEN) * _DISK_PER_TOKEN
    needed = min(request.feature_gib * GIB, states) + text + 20 * drafter_parameters(request, info)
    folder = request.folder.absolute()
    free = shutil.disk_usage(folder if folder.is_dir() else folder.parent).free
    if needed > free:
        raise Refusal(
            f"{folder}: the work needs up to {needed / GIB:.1f} GiB of disk, {free / GIB:.1f} are free; make room, ask "
            "for a smaller feature_gib, or choose an output on another disk"
        )
    needed, free = memory_bytes(request, info), host_memory()[1]
    if needed > free:
        raise Refusal(
            f"{info.path}: the work needs about {needed / GIB:.1f} GiB of memory, {free / GIB:.1f} are free; unload "
            "models, or ask for smaller batches"
        )


def drafter_parameters(request: TrainRequest, info: CheckpointInfo) -> int:
    """About how many numbers the drafter has."""
    hidden, inner = info.config.hidden_size, info.config.intermediate_size
    return 3 * hidden * hidden + 3 * hidden * inner + 6 * hidden * hidden + request.vocabulary * hidden * 3


def memory_bytes(request: TrainRequest, info: CheckpointInfo) -> int:
    """Of the target's weights, the drafter with its optimiser, a shard's states and a batch's unrolled steps."""
    hidden = info.config.hidden_size
    target = 2 * info.num_parameters
    shard = _SHARD_TOKENS * (8 * hidden + 16)
    batch = request.batch_tokens * (request.steps * 2 * (20 * hidden + request.vocabulary) + 8 * request.vocabulary)
    return target + 24 * drafter_parameters(request, info) + shard + 2 * batch + GIB // 2
