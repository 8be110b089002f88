"""Lists whose members say with a field `type` what they are.

Owns how the members are told apart and how one of an unknown type is refused. Knows no types. Invariant: what is
refused is named, with what would not be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BeforeValidator, Discriminator


def refusing_others(what: str, known: Sequence[str], *, default: str | None = None) -> BeforeValidator:
    """Names a type that is none of the known ones before the union says less clearly that it has no such member.

    default: the type of what says none.
    """

    def check(value: Any) -> Any:
        if isinstance(value, Mapping):
            kind = value.get("type", default)
            if not isinstance(kind, str):
                raise ValueError(f"{what} needs a type: {', '.join(known)}")
            if kind not in known:
                raise ValueError(f"{what} of type {kind!r} is not supported; what is: {', '.join(known)}")
        return value

    return BeforeValidator(check)


def by_type(default: str | None = None) -> Discriminator:
    """Tells the members of a union by their type; their tags stand in brackets.

    errors.py leaves what stands in brackets out of the place of an error.
    """

    def tag(value: Any) -> str:
        kind = value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)
        return f"[{kind or default}]"

    return Discriminator(tag)
