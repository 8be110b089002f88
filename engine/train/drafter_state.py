"""A training run on disk: weights, optimiser, place in the data, and what was measured.

Owns one file, written anew at each checkpoint. Knows neither drafter nor data. Invariant: the file is complete or the
one before it, and a run that goes on from it does what an uninterrupted one does, bit for bit on the same machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.train.refusal import Refusal

FILE = "state.safetensors"
PARTS = ("weights", "average", "first", "second")  # the last two are Adam's moments


@dataclass(slots=True)
class Place:
    """How far a run is. passes: over each shard; shard: the one at hand, -1 for none; batch: the next one in it."""

    passes: list[int] = field(default_factory=list)
    shard: int = -1
    batch: int = 0
    steps: int = 0
    tokens: int = 0  # of conversations, padding not counted
    learned: int = 0  # positions of answers
    seconds: float = 0.0  # of the optimiser's steps alone; `drafter_stretch` counts the whole
    measured_at: int = 0  # learned positions at the last measurement
    settings: list[dict[str, float]] = field(default_factory=list)  # of the stretches so far, where they changed

    def begin(self, settings: dict[str, float]) -> None:
        """A stretch with these settings begins."""
        if not self.settings or self.settings[-1] != settings:
            self.settings.append(settings)

    def span(self, name: str) -> str:
        """The values that a setting has had, for cards."""
        values = sorted({one[name] for one in self.settings})
        return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"


@dataclass(slots=True)
class TrainingState:
    """tensors: part -> name -> fp32 tensor. chosen int64 [n]: the reduced vocabulary. curve: what was measured.
    predecessor: how the drafter that this run began from was trained, as its config.json says, with its name; else
    empty. It is kept here because that folder may be replaced by what this run makes."""

    tensors: dict[str, dict[str, Tensor]]
    chosen: Tensor
    place: Place
    curve: list[dict[str, Any]]
    predecessor: dict[str, Any] = field(default_factory=dict)


def fresh_state(weights: Mapping[str, Tensor], chosen: Tensor, device: torch.device) -> TrainingState:
    """The beginning of a run from these weights."""
    placed = {name: tensor.to(device=device, dtype=torch.float32) for name, tensor in weights.items()}
    zeros = {part: {name: torch.zeros_like(one) for name, one in placed.items()} for part in ("first", "second")}
    average = {name: tensor.clone() for name, tensor in placed.items()}
    return TrainingState({"weights": placed, "average": average, **zeros}, chosen, Place(), [])


def save_state(folder: Path, state: TrainingState, identity: Mapping[str, Any]) -> None:
    """Writes the checkpoint."""
    tensors = {f"{part}/{name}": one.cpu() for part in PARTS for name, one in state.tensors[part].items()}
    tensors["chosen"] = state.chosen.cpu()
    notes = {
        "identity": dict(identity),
        "place": asdict(state.place),
        "curve": state.curve,
        "predecessor": state.predecessor,
    }
    writing = folder / f"{FILE}.tmp"
    save_file(tensors, writing, {"notes": json.dumps(notes)})
    writing.replace(folder / FILE)


def read_state(folder: Path, identity: Mapping[str, Any], device: torch.device) -> TrainingState | None:
    """The checkpoint in the folder, if there is one. Refusal for that of another run, or a damaged one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as stored:
            notes = json.loads(stored.metadata()["notes"])
            found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
        place, curve, other = Place(**notes["place"]), list(notes["curve"]), notes["identity"]
        predecessor = dict(notes.get("predecessor", {}))  # a version that did not note it left text that is refused
        chosen = found.pop("chosen")
    except Exception as error:  # the library has its own kinds
        raise Refusal(f"{path}: cannot be read ({error}); remove the folder to start anew") from error
    differing = [name for name in identity if other.get(name) != identity[name]]
    if differing:
        what = ", ".join(f"{name} {other.get(name)!r}" for name in differing)
        raise Refusal(
            f"{folder}: holds unfinished work with {what}, which differs from what is asked for; ask for the same, "
            "choose another output, or remove the folder"
        )
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for name, tensor in found.items():
        part, _, inner = name.partition("/")
        tensors[part][inner] = tensor.to(device)
    return TrainingState(tensors, chosen, place, curve, predecessor)
