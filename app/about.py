"""What this installation is: versions, kernels, processor, paths, licences, documents.

Owns how these are found out. Knows nothing of engines beyond what they said. Invariant: nothing here imports torch or
asks another machine; what cannot be found is None.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from engine.cores import usable_cores

ROOT = Path(__file__).resolve().parents[1]
CPU_INFO = Path("/proc/cpuinfo")
LIBRARIES = ("torch", "triton", "transformers", "tokenizers", "xgrammar", "gradio", "fastapi", "plotly", "sqlalchemy")
FEATURES = (  # of a processor, those that a kernel of ours may use
    *("sse4_2", "f16c", "fma", "avx", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)


def libraries() -> list[dict[str, Any]]:
    """Name, version and licence of what we stand on; what is not installed has no version."""
    return [_library(name) for name in LIBRARIES]


def _library(name: str) -> dict[str, Any]:
    try:
        found = metadata(name)
    except PackageNotFoundError:
        return {"name": name, "version": None, "license": None}
    named = [*(found.get_all("License-Expression") or []), *(found.get_all("License") or [])]
    licence = next((each for each in named if each.strip()), None) or _classified(found.get_all("Classifier") or [])
    first = licence.strip().splitlines()[0][:80] if licence else None
    return {"name": name, "version": found["Version"], "license": first}


def _classified(classifiers: Iterable[str]) -> str | None:
    return next((line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")), None)


def processor(cpu_info: Path = CPU_INFO) -> dict[str, Any]:
    """Its name, the cores we may use, and those of FEATURES that it has."""
    fields: dict[str, str] = {}
    try:
        for line in cpu_info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip().lower(), value.strip())
    except OSError:
        pass
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    return {
        "name": fields.get("model name") or platform.processor() or None,
        "architecture": platform.machine(),
        "cores": usable_cores(),
        "features": [name for name in FEATURES if name in flags],
    }


def kernel_backends(kernels: Mapping[str, str]) -> str | None:
    """The backends that serve an engine's ops, the one with the most first."""
    counted = Counter(kernels.values()).most_common()
    return ", ".join(f"{name} ({count})" for name, count in counted) or None


def documents(root: Path = ROOT) -> dict[str, Path]:
    """Name -> file of the texts that came with the program."""
    found = [root / name for name in ("README.md", "LICENSE", "NOTICE")] + sorted((root / "docs").glob("*.md"))
    return {path.name: path for path in found if path.is_file()}
