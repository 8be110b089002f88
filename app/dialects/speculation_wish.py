"""The field `speculation` of a /v1 body.

Owns its forms and the words that refuse others. Knows nothing of engines. Invariant: what leaves here is a wish that
some engine could grant.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from engine.config import MAX_DRAFTS, SPECULATION_RULES, SPECULATIONS
from engine.core.speculation import SpeculationParams

PROPOSER_NAMES = tuple(name for name in SPECULATIONS if name not in ("auto", "off"))
FIELDS: dict[str, type] = {"proposer": str, "num_speculative_tokens": int, "rule": str, "adaptive": bool}
WORDS = {str: "a text", int: "a whole number", bool: "true or false"}


def _read(value: Any) -> Any:
    """The wish. Raises ValueError in the field's own words."""
    if value is None or isinstance(value, SpeculationParams):
        return value
    if isinstance(value, bool):
        return SpeculationParams(enabled=value)
    if not isinstance(value, dict):
        raise ValueError(f"must be true, false, or an object with any of {', '.join(FIELDS)}")
    for name, given in value.items():
        if name not in FIELDS:
            raise ValueError(f"{str(name)[:40]!r} is unknown; known are {', '.join(FIELDS)}")
        if type(given) is not FIELDS[name]:
            raise ValueError(f"{name} must be {WORDS[FIELDS[name]]}")
    if not 1 <= value.get("num_speculative_tokens", 1) <= MAX_DRAFTS:
        raise ValueError(
            f"num_speculative_tokens must lie between 1 and {MAX_DRAFTS}; "
            "to decode without drafts send speculation: false"
        )
    for name, known in (("proposer", PROPOSER_NAMES), ("rule", SPECULATION_RULES)):
        if value.get(name, known[0]) not in known:
            raise ValueError(f"{name} {value[name][:40]!r} is unknown; known are {', '.join(known)}")
    return SpeculationParams(**value)


SpeculationWish = Annotated[
    SpeculationParams | None,
    BeforeValidator(_read),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {"type": "null"},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "proposer": {"type": "string", "enum": list(PROPOSER_NAMES)},
                        "num_speculative_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_DRAFTS},
                        "rule": {"type": "string", "enum": list(SPECULATION_RULES)},
                        "adaptive": {"type": "boolean"},
                    },
                },
            ],
            "description": "false decodes without drafts; an object says who drafts, how much, and how it is verified",
        }
    ),
]
