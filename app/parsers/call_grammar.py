"""The grammar of an answer that must be a call.

Owns how the tools on offer become one structural tag. Knows nothing of any template's form beyond asking its parsers.
Invariant: what the grammar admits, the same parsers read as calls whose arguments validate against the tools' schemas.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.parsers.base import Tool, ToolParser
from app.parsers.reasoning import ReasoningParser
from engine.core.sampling_params import Guided


def call_grammar(
    parser: type[ToolParser],
    tools: Sequence[Tool],
    *,
    parallel: bool,
    reasoning: type[ReasoningParser] | None = None,
    reasoning_opened: bool = False,
) -> Guided:
    """What makes the engine call one of these tools, behind thoughts where the model has them."""
    if not tools:
        raise ValueError("a call needs a tool")
    answer = parser.call_format(tools, parallel=parallel)
    if reasoning is not None:
        thoughts = reasoning.thought_format(opened=reasoning_opened)
        answer = {"type": "sequence", "elements": [thoughts, answer]}
    return Guided("structural_tag", json.dumps({"type": "structural_tag", "format": answer}, ensure_ascii=False))
