"""Structural tags (xgrammar's name): literal text around JSON under schemas, as the form of a tool call is.

Owns what is done to one before it is compiled: each schema inside it is prepared, and bounded in its white space, like
one that stands alone. Knows nothing of tools. Invariant: no schema inside promises less than `prepare_schema` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.sample.json_schema import SchemaFault, prepare_schema


class TagFault(SchemaFault):
    """A fault of a schema inside a tag: the literal text in front of it tells which one it is."""

    def __init__(self, before: str, fault: SchemaFault) -> None:
        ValueError.__init__(self, f"behind {before!r}: {fault}")


def prepare_structural_tag(text: str, check_pattern: Callable[[str], object], max_spaces: int) -> str:
    """The tag with its schemas prepared. check_pattern: see `prepare_schema`. Raises SchemaFault."""
    try:
        return json.dumps(_prepared(json.loads(text), "", check_pattern, max_spaces), ensure_ascii=False)
    except json.JSONDecodeError as error:
        raise SchemaFault("", f"not JSON: {error}") from error
    except RecursionError as error:
        raise SchemaFault("", "nested too deeply") from error


def _prepared(part: Any, before: str, check_pattern: Callable[[str], object], max_spaces: int) -> Any:
    """A part of a tag; `before` is the literal text in front of it, by which a fault is found."""
    if isinstance(part, list):
        return [_prepared(each, before, check_pattern, max_spaces) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "json_schema":
        try:
            schema = json.loads(prepare_schema(json.dumps(part.get("json_schema")), check_pattern))
        except SchemaFault as fault:
            raise TagFault(before, fault) from fault
        return {**part, "json_schema": schema, "max_whitespace_cnt": max_spaces}
    before = part.get("begin") or before
    return {key: _prepared(value, before, check_pattern, max_spaces) for key, value in part.items()}
