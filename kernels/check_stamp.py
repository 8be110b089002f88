"""Which ops of a backend were found right on this machine, so that they are checked once and not at every load.

Owns one small JSON file for each thing that was checked: beside the built library of `cpu_ops`, and for `triton_ops`
one a card in the same folder. Knows no ops. Invariant: an entry counts for the very same library or card, what the
system lets it use, versions and sources, dtype and op; what failed has no entry, for the next load may find it right
(memory had run out, say); and a file that cannot be read or written costs a check and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.cpu_ops.folders import cache_folders

KERNELS_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class CheckStamp:
    """The entries in `path`, which count while `identity` is the same."""

    path: Path
    identity: str

    def read(self, dtype: torch.dtype) -> set[str]:
        """The ops that were right for a model of `dtype`."""
        return set(self._entries().get(str(dtype), ()))

    def write(self, dtype: torch.dtype, right: set[str]) -> None:
        """Adds ops. Of processes that write at once the last one's stay; no one reads half a file."""
        entries = self._entries()
        entries[str(dtype)] = sorted(right | set(entries.get(str(dtype), ())))
        text = json.dumps({"identity": self.identity, "right": entries}, indent=1)
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".checked-", dir=self.path.parent)
            partial = Path(name)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    stream.write(text)
                partial.replace(self.path)
            finally:
                partial.unlink(missing_ok=True)

    def _entries(self) -> dict[str, list[str]]:
        """dtype -> ops; nothing of a file that is another's, or broken."""
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            if held["identity"] != self.identity:
                return {}
            return {str(dtype): [str(op) for op in ops] for dtype, ops in held["right"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}


def stamp_of(backend: str, device: torch.device) -> CheckStamp | None:
    """The stamp for `backend` on `device`; None where nothing is checked at a load: the reference, and
    Triton's interpreter, which would take minutes and proves nothing of a GPU."""
    if backend == "cpu_ops":
        from kernels.cpu_ops.binding import matrix_tiles  # which imports the registry, which imports this module
        from kernels.cpu_ops.build import library

        built = Path(str(library()._name))
        identity = f"{built.name} {sources(backend)}, matrix tiles {matrix_tiles()}"
        return CheckStamp(built.with_name(f"{built.name}.checked"), identity)
    if backend == "triton_ops" and device.type == "cuda":
        card = f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
        identity = f"{card}, torch {torch.__version__}, triton {triton_version()}, {sources(backend)}"
        digest = hashlib.blake2b(card.encode(), digest_size=6).hexdigest()
        return CheckStamp(cache_folders()[0] / f"triton_ops-{digest}.checked", identity)
    return None


def triton_version() -> str:
    """Of the triton that is installed."""
    import triton  # absent where torch has no GPU build

    return str(triton.__version__)


@functools.cache
def sources(backend: str) -> str:
    """A hash of the Python that a check depends on: the backend's, the reference's and the checks' own."""
    digest = hashlib.blake2b(digest_size=12)
    for folder in (KERNELS_FOLDER, KERNELS_FOLDER / "reference", KERNELS_FOLDER / backend):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
