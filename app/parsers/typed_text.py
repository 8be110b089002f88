"""Values that were written as text, turned into JSON by the schema of what they are for.

Owns the meaning of a schema's types for such text. Knows no form of call. Invariant: what comes out is the text of one
JSON value; text that is of none of the schema's types is a string, so that nothing a model wrote is lost.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

MAX_REFERENCES = 8  # that lead from one to the next
STRING = frozenset({"string"})


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema admits, JSON Schema's names; of one that says nothing, a string. root: holds `$defs`."""
    return frozenset(_types(schema, root, MAX_REFERENCES)) or STRING


def referred(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema that is a reference into the root refers to; any other schema is itself."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        path = schema["$ref"].removeprefix("#/").split("/")
        found: Any = root
        for name in path:
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        schema = found
    return None


def json_of(text: str, types: frozenset[str]) -> str:
    """The value as JSON. Where a string is allowed, text is one unless it is a value of another type allowed."""
    others = types - STRING
    if others & _type_names(text):
        return text.strip()
    literal = _literal(text) if others else None
    if literal is not None and others & _type_names(literal):
        return literal
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    schema = referred(schema, root)
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        return {name for value in values for name in _type_names(json.dumps(value))}
    named = schema.get("type")
    if named is not None:
        return {name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}
    parts = [part for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list) for part in schema[key]]
    if parts:
        return {name for part in parts for name in _types(part, root, depth - 1)}
    return {"object"} if "properties" in schema else {"array"} if "items" in schema else set()


def _literal(text: str) -> str | None:
    """A value written as Python writes it, as JSON; None where it is none."""
    try:
        value = ast.literal_eval(text.strip())
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return written


def _type_names(text: str) -> frozenset[str]:
    """The types that the JSON value is of; none where the text is no JSON."""
    try:
        value = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return frozenset()
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return STRING
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
