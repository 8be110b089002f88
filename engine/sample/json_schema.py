"""What of JSON Schema a grammar can promise: the rest is refused by name and place, never ignored.

xgrammar passes over what it does not know, which would admit answers that do not validate. `prepare_schema` walks a
schema, refuses that, and writes out what is implied: an object with listed properties has no others unless it says so,
which keeps a model from inventing them and still validates. Knows nothing of xgrammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

Schema = dict[str, Any]

REFUSED = frozenset(
    {"not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "dependentRequired"}
    | {"dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "additionalItems"}
    | {"$dynamicRef", "$recursiveRef"}
)
NUMERIC = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
TEXTUAL = frozenset({"minLength", "maxLength", "pattern", "format"})
STRUCTURAL = frozenset(
    {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"}
    | {"maxProperties", "items", "prefixItems", "minItems", "maxItems"}
)
ALTERNATIVES = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")  # xgrammar reads the first and passes over the rest
CONSTRAINTS = NUMERIC | TEXTUAL | STRUCTURAL | {"type", *ALTERNATIVES}
TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class SchemaFault(ValueError):
    """A schema that cannot be promised. The message says where (a JSON pointer), what, and why."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(f"at {place or '/'}: {what}")


def prepare_schema(text: str, check_pattern: Callable[[str], object]) -> str:
    """The schema with what is implied written out. check_pattern raises RuntimeError for an unsupported pattern."""
    try:
        return json.dumps(_Walker(check_pattern).walk(json.loads(text), ""), ensure_ascii=False)
    except json.JSONDecodeError as error:
        raise SchemaFault("", f"not JSON: {error}") from error
    except RecursionError as error:
        raise SchemaFault("", "nested too deeply") from error


class _Walker:
    """Rebuilds a schema from the leaves up."""

    def __init__(self, check_pattern: Callable[[str], object]) -> None:
        self._check_pattern = check_pattern

    def walk(self, schema: Any, place: str) -> Any:
        """The prepared form of one schema at a JSON pointer."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaFault(place, f"a schema is an object or a boolean, not {json.dumps(schema)}")
        for keyword in schema:
            if keyword in REFUSED and schema[keyword] is not False:
                raise SchemaFault(f"{place}/{keyword}", f"the keyword {keyword!r} is not supported")
        schema = self._children(schema, place)
        leading = next((keyword for keyword in ALTERNATIVES if keyword in schema), None)
        if leading is None:
            return self._typed(schema, place)
        return self._alternative(schema, leading, place)

    def _children(self, schema: Schema, place: str) -> Schema:
        """A copy with every schema inside it prepared."""
        found = dict(schema)
        for keyword in ("properties", "patternProperties", "$defs", "definitions"):
            if isinstance(schema.get(keyword), dict):
                parts = schema[keyword].items()
                found[keyword] = {name: self.walk(part, f"{place}/{keyword}/{_escaped(name)}") for name, part in parts}
        for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            if isinstance(schema.get(keyword), list):
                parts = enumerate(schema[keyword])
                found[keyword] = [self.walk(part, f"{place}/{keyword}/{index}") for index, part in parts]
        for keyword in ("items", "additionalProperties"):
            if keyword in schema:
                found[keyword] = self.walk(schema[keyword], f"{place}/{keyword}")
        if isinstance(schema.get("propertyNames"), dict):
            found["propertyNames"] = self.walk({"type": "string"} | schema["propertyNames"], f"{place}/propertyNames")
        for pattern in (*schema.get("patternProperties", {}), *([schema["pattern"]] if "pattern" in schema else [])):
            try:
                self._check_pattern(pattern)
            except RuntimeError as error:
                reason = str(error).strip().rpartition("error ")[2]
                raise SchemaFault(place, f"the pattern {pattern!r} is not supported ({reason})") from error
        return found

    def _alternative(self, schema: Schema, leading: str, place: str) -> Schema:
        """A schema that is a reference, a list of values or of schemas: nothing else may restrict it."""
        if leading in ("const", "enum") and "type" in schema:
            schema = _values_of_type(schema, leading, place)
        others = sorted((CONSTRAINTS & schema.keys()) - {leading})
        if others:
            raise SchemaFault(place, f"{leading!r} beside {', '.join(map(repr, others))} is not supported; merge them")
        if leading == "allOf" and len(schema["allOf"]) != 1:
            raise SchemaFault(f"{place}/allOf", "'allOf' of several schemas is not supported; merge them into one")
        if leading == "oneOf":
            for (i, one), (j, other) in combinations(enumerate(schema["oneOf"]), 2):
                if not _exclusive(one, other):
                    raise SchemaFault(
                        f"{place}/oneOf", f"schemas {i} and {j} may both hold; use 'anyOf' if that is meant"
                    )
            return {"anyOf" if keyword == "oneOf" else keyword: part for keyword, part in schema.items()}
        return schema

    def _typed(self, schema: Schema, place: str) -> Schema:
        """A schema that restricts values of given types."""
        types = schema.get("type")
        if types is None and (loose := sorted((NUMERIC | TEXTUAL) & schema.keys())):
            raise SchemaFault(place, f"{loose[0]!r} needs a 'type' beside it")
        if "multipleOf" in schema and types != "integer":
            raise SchemaFault(f"{place}/multipleOf", "'multipleOf' is supported for the type integer only")
        texts = sorted(TEXTUAL & schema.keys())
        if len(texts) > 1 and set(texts) != {"minLength", "maxLength"}:
            raise SchemaFault(place, f"{' with '.join(map(repr, texts))} is not supported; express them in one pattern")
        if "required" in schema or "properties" in schema:
            properties = dict(schema.get("properties", {}))
            rest = schema.get("additionalProperties", True)
            for name in schema.get("required", ()):
                if rest is False and name not in properties:
                    raise SchemaFault(f"{place}/required", f"{name!r} is required, but it is not among the properties")
                properties.setdefault(name, rest)
            if "propertyNames" in schema or ("patternProperties" in schema and rest not in (True, False)):
                raise SchemaFault(
                    place, "'properties' beside a rule for all names is not supported; list every property"
                )
            if "patternProperties" in schema and schema.get("additionalProperties") is True:
                raise SchemaFault(place, "'properties' and 'patternProperties' need 'additionalProperties': false")
            schema = {"additionalProperties": False} | schema | {"properties": properties}
        return schema


def _escaped(name: str) -> str:
    """A property's name as part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _values_of_type(schema: Schema, keyword: str, place: str) -> Schema:
    """The values that have the type beside them; the type is then said."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    values = [schema["const"]] if keyword == "const" else schema["enum"]
    kept = [value for value in values if _type_name(value) in types or (type(value) is int and "number" in types)]
    if not kept:
        raise SchemaFault(f"{place}/{keyword}", f"no value is of type {' or '.join(types)}")
    rest = {name: part for name, part in schema.items() if name not in ("type", keyword)}
    return rest | ({"const": kept[0]} if keyword == "const" else {"enum": kept})


def _exclusive(one: Any, other: Any) -> bool:
    """Whether no value satisfies both schemas, as far as can be seen: by type, or by a required property's values."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    mine, theirs = _types(one), _types(other)
    if mine and theirs and not mine & theirs:
        return True
    for name in set(one.get("required", ())) & set(other.get("required", ())):
        values = [_values(schema.get("properties", {}).get(name)) for schema in (one, other)]
        if values[0] and values[1] and not values[0] & values[1]:
            return True
    return False


def _types(schema: Schema) -> set[str]:
    """The types a schema admits, "number" with "integer"; empty: not known."""
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        found = {_type_name(value) for value in values}
    else:
        named = schema.get("type", [])
        found = set(named if isinstance(named, list) else [named])
    return found | ({"number"} if "integer" in found else set()) | ({"integer"} if "number" in found else set())


def _values(schema: Any) -> set[str]:
    """The values a schema lists, as JSON; empty: it lists none."""
    if not isinstance(schema, dict):
        return set()
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {json.dumps(value, sort_keys=True) for value in values}


def _type_name(value: Any) -> str:
    return "null" if value is None else TYPE_NAMES[type(value)]
