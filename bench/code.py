"""Which code a figure or a proof is of: a hash over all that can change a token or a time in an engine that serves."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".py", ".cpp", ".h")


def code_hash(*others: str) -> str:
    """12 hex digits over engine/ and kernels/. others: patterns of further files, from the repository's root on.

    An engine that serves imports neither training nor benches, so they are left out.
    """
    digest = hashlib.sha256()
    for path in sorted(found for pattern in ("engine/**/*", "kernels/**/*", *others) for found in ROOT.glob(pattern)):
        if path.suffix not in SUFFIXES or ROOT / "engine" / "train" in path.parents:
            continue
        if not (path.parent == ROOT / "kernels" and path.name.startswith("bench")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
