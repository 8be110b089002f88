"""Which proposers an engine has: what its speculation names, and those that cost nothing to have beside it.

Owns the choice; each proposer is imported when it is chosen. Invariant: the engine's own proposer is among them, and a
request can ask for every one of them by name.
"""

from __future__ import annotations

import importlib
from typing import Any

from engine.runner.executor import Executor
from engine.spec import PROPOSERS
from engine.spec.base import Proposer
from engine.spec.model_proposer import ModelProposer

FREE = ("ngram", "suffix")  # these look at tokens alone


def build_proposers(
    speculation: str, drafter: str, executor: Executor, num_groups: int, longest: int | None = None
) -> dict[str, Proposer]:
    """The proposers by name. speculation: `engine.checkpoint.drafting.Drafting.speculation`; "off": there are none.
    drafter: the kind of the one that is loaded, or "". num_groups: KV groups of the model. longest: tokens that the
    drafter can read; None: as many as the model."""
    if speculation == "off":
        return {}
    found: dict[str, Proposer] = {name: _class_of(name)() for name in FREE}
    if drafter:
        model = ModelProposer(drafter, executor, num_groups, longest)
        found[drafter] = model
        found["hybrid"] = _class_of("hybrid")(found["suffix"], model)
    assert speculation in found, f"{speculation} is not among {', '.join(found)}"
    return found


def _class_of(name: str) -> Any:
    module, _, attribute = PROPOSERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
