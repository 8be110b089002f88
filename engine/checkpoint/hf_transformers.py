"""What the installed transformers can run, read off its source files: importing it would take seconds and torch.

Owns the search for a class in those files and the marks that transformers itself gives its classes. Knows nothing of
checkpoints. Invariant: nothing of transformers is imported, and an absent transformers knows no class.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

_MAPPING = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"  # of models/auto/modeling_auto.py: model_type -> class


@functools.cache
def causal_language_models() -> dict[str, tuple[str, ...]]:
    """Every causal language model class of the installed transformers, with the model types that it serves."""
    folder = _package()
    auto = folder / "models" / "auto" / "modeling_auto.py" if folder else None
    if auto is None or not auto.is_file():
        return {}
    found: dict[str, list[str]] = {}
    for statement in ast.parse(auto.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        if [ast.unparse(target) for target in statement.targets] == [_MAPPING]:
            for model_type, names in ast.literal_eval(statement.value.args[0]):
                for name in (names,) if isinstance(names, str) else names:
                    found.setdefault(name, []).append(model_type)
    return {name: tuple(types) for name, types in found.items()}


def keeps_state(name: str) -> bool:
    """Whether transformers marks the class as one that carries a state of its own from token to token."""
    return "_is_stateful = True" in _source(name)


def takes_attention_functions(name: str) -> bool:
    """Whether transformers marks the class as one whose attention can be replaced."""
    return "_supports_attention_backend = True" in _source(name)


@functools.cache
def _source(name: str) -> str:
    """The module that defines the class; empty where there is none."""
    folder = _package()
    types = causal_language_models().get(name, ())
    if folder is None or not types:
        return ""
    models = folder / "models"
    likely = [models / kind.replace("-", "_") for kind in types]
    for path in (*(path for at in likely for path in at.glob("modeling_*.py")), *models.glob("*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        if f"\nclass {name}(" in text:
            return text
    return ""


@functools.cache
def _package() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    return Path(spec.origin).parent if spec is not None and spec.origin else None
