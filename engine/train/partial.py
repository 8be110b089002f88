"""Unfinished work on disk: what is needed to go on after a stop or a crash.

Owns the folder `output`.partial: the request, the calibration rows, a file for each finished layer, and the hidden
states behind the last one. Knows nothing of methods. Invariant: `layers_done` counts only layers whose file and states
are complete; what a crash left half written is written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.train.calibration import Rows
from engine.train.refusal import Refusal

_STATE = "state.json"
_ROWS = "rows.safetensors"


class Partial:
    """The folder. `identity` tells this work from other work; Refusal where the folder is another's."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.layers_done = 0
        self.notes: dict[str, Any] = {}
        if (folder / _STATE).is_file():
            self._read(dict(identity))
        else:
            folder.mkdir(exist_ok=True)
        self._identity = dict(identity)

    def _read(self, identity: dict[str, Any]) -> None:
        try:
            state = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
            found, self.layers_done, self.notes = state["identity"], int(state["layers_done"]), state["notes"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refusal(
                f"{self.folder / _STATE}: cannot be read ({error}); remove the folder to start anew"
            ) from error
        differing = [name for name in identity if found.get(name) != identity[name]]
        if differing:
            what = ", ".join(f"{name} {found.get(name)!r}" for name in differing)
            raise Refusal(
                f"{self.folder}: holds unfinished work with {what}, which differs from what is asked for; ask for the "
                "same, choose another output, or remove the folder"
            )

    def rows(self) -> Rows | None:
        """The calibration rows, if they are made."""
        if "calibration" not in self.notes:
            return None
        stored = load_file(self.folder / _ROWS)
        return Rows(stored["calibration"], stored["held_out"], self.notes["calibration"])

    def save_rows(self, rows: Rows) -> None:
        """Keeps the calibration rows."""
        save_tensors(self.folder / _ROWS, {"calibration": rows.calibration, "held_out": rows.held_out})
        self.notes["calibration"] = rows.source
        self._commit()

    def layer_file(self, index: int) -> Path:
        """Where layer `index` is, in the form in which it will be stored."""
        return self.folder / f"layer-{index:05}.safetensors"

    def states(self) -> dict[str, Tensor]:
        """The hidden states behind the last finished layer; none are kept before the first."""
        return load_file(self._states_file(self.layers_done)) if self.layers_done else {}

    def save_layer(self, tensors: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> None:
        """Keeps the next layer as it will be stored, and the hidden states behind it."""
        save_tensors(self.layer_file(self.layers_done), tensors)
        save_tensors(self._states_file(self.layers_done + 1), states)
        self.layers_done += 1
        self._commit()
        self._states_file(self.layers_done - 1).unlink(missing_ok=True)

    def note(self, name: str, value: Any) -> None:
        """Keeps a value that JSON can hold."""
        self.notes[name] = value
        self._commit()

    def _states_file(self, layers: int) -> Path:
        return self.folder / f"states-{layers:05}.safetensors"

    def _commit(self) -> None:
        state = {"identity": self._identity, "layers_done": self.layers_done, "notes": self.notes}
        writing = self.folder / f"{_STATE}.tmp"
        writing.write_text(json.dumps(state, indent=2), encoding="utf-8")
        writing.replace(self.folder / _STATE)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, complete or not there."""
    writing = path.with_suffix(".tmp")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, writing)
    writing.replace(path)
