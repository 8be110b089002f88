"""What a compiled schema admits is valid under it; what cannot be promised is refused by name and place."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sample.grammar import MAX_SPACES
from engine.sample.json_schema import SchemaFault, prepare_schema

TOKENS = [bytes([byte]) for byte in range(256)]
COMPILER = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(TOKENS, vocab_size=256), max_threads=1)


def prepared(schema: Any) -> str:
    return prepare_schema(json.dumps(schema), COMPILER.compile_regex)


def admits(schema: Any, text: str) -> bool:
    compiled = COMPILER.compile_json_schema(prepared(schema), strict_mode=False, max_whitespace_cnt=MAX_SPACES)
    matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
    return matcher.accept_string(text) and matcher.is_terminated()


def of(kind: str, **keywords: Any) -> dict[str, Any]:
    return {"type": kind} | keywords


A_INTEGER = {"a": of("integer")}
# (schema, valid texts, invalid texts)
PROMISED: list[tuple[Any, list[str], list[str]]] = [
    (True, ["1", "{}"], ["{"]),
    (of("object"), ["{}", '{"a": [1]}'], ["[]", '{"a":1,}']),
    (of("integer", minimum=3, maximum=20), ["3", "20"], ["2", "21", "3.5"]),
    (of("integer", exclusiveMinimum=3), ["4"], ["3"]),
    (of("integer", multipleOf=2), ["4"], ["3"]),
    (of("number", minimum=0, exclusiveMaximum=1), ["0.5", "0"], ["1", "-0.1"]),
    (of("string", minLength=2, maxLength=3), ['"ab"'], ['"a"', '"abcd"', '"\n\n"']),
    (of("string", pattern="^a+$"), ['"aa"'], ['"b"', '"ab"']),
    (of("string", format="date"), ['"2024-01-02"'], ['"x"', '"2024-13-02"']),
    (of(["integer", "string"], minLength=2), ["1", '"ab"'], ['"a"']),
    (of("array", minItems=1, maxItems=2), ["[1]"], ["[]", "[1,2,3]"]),
    (of("array", prefixItems=[of("integer")], items=False), ["[1]"], ["[1,2]", '["a"]']),
    (of("object", properties=A_INTEGER), ["{}", '{"a":1}'], ['{"a":"x"}', '{"b":1}']),
    (of("object", properties=A_INTEGER, additionalProperties=True), ['{"b":1}'], ['{"b":1,"a":"x"}']),
    (of("object", properties=A_INTEGER, additionalProperties=of("string")), ['{"b":"x"}'], ['{"b":1}', '{"a":"x"}']),
    (of("object", properties=A_INTEGER, required=["z"]), ['{"z":[]}', '{"a":1,"z":0}'], ["{}", '{"a":1}']),
    (of("object", required=["z"], additionalProperties=of("string")), ['{"z":"x"}'], ["{}", '{"z":1}']),
    (of("object", patternProperties={"^x": of("integer")}), ['{"x":1}'], ['{"x":"s"}']),
    (
        of("object", patternProperties={"^x": of("integer")}, properties={"a": of("string")}),
        ['{"x":1}', '{"a":"b"}'],
        ['{"x":"s"}', '{"a":1}'],
    ),
    (of("object", propertyNames={"pattern": "^x+$"}), ['{"xx":1}'], ['{"y":1}']),
    (of("object", minProperties=1, maxProperties=1), ['{"x":1}'], ["{}", '{"x":1,"y":2}']),
    ({"enum": [1, "a", None]}, ["1", '"a"', "null"], ["2"]),
    (of("string", enum=[1, "a"]), ['"a"'], ["1"]),
    (of("number", const=1), ["1"], ["2"]),
    ({"anyOf": [of("integer"), of("null")], "default": None, "title": "T"}, ["1", "null"], ["true"]),
    ({"oneOf": [of("integer"), of("string")]}, ["1", '"a"'], ["true"]),
    (
        {"oneOf": [of("object", properties={"k": {"const": kind}}, required=["k"]) for kind in ("x", "y")]},
        ['{"k":"x"}', '{"k":"y"}'],
        ['{"k":"z"}', "{}"],
    ),
    ({"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": of("integer")}}, ["1"], ['"a"']),
    (
        {"$defs": {"n": of("object", properties={"c": {"$ref": "#/$defs/n"}})}, "$ref": "#/$defs/n"},
        ['{"c":{"c":{}}}'],
        ['{"c":1}'],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), PROMISED)
def test_what_is_admitted_is_valid(schema: Any, valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if not admits(schema, text)] == []
    assert [text for text in invalid if admits(schema, text)] == []


REFUSED: list[tuple[Any, str]] = [
    ({"properties": {"x": {"items": {"not": {}}}}}, "at /properties/x/items/not: the keyword 'not'"),
    (of("array", uniqueItems=True), "at /uniqueItems: the keyword 'uniqueItems'"),
    (of("array", contains={}), "at /contains: "),
    ({"if": {}, "then": {}}, "the keyword 'if'"),
    (of("number", multipleOf=0.5), "at /multipleOf: 'multipleOf' is supported for the type integer only"),
    (of("string", pattern="^a+$", minLength=2), "'minLength' with 'pattern'"),
    (of("string", pattern="a(?=b)"), "the pattern 'a(?=b)' is not supported"),
    ({"minimum": 3}, "'minimum' needs a 'type'"),
    ({"oneOf": [of("integer"), of("number")]}, "at /oneOf: schemas 0 and 1 may both hold"),
    ({"anyOf": [{}], "type": "integer"}, "'anyOf' beside 'type'"),
    ({"allOf": [of("integer"), of("integer", minimum=3)]}, "at /allOf: 'allOf' of several"),
    ({"$ref": "#/$defs/x", "type": "integer", "minimum": 1}, "'$ref' beside 'minimum', 'type'"),
    (of("object", required=["a"], additionalProperties=False), "at /required: 'a' is required, but"),
    (of("string", enum=[1]), "at /enum: no value is of type string"),
    (of("object", properties=A_INTEGER, propertyNames={"pattern": "^a$"}), "'properties' beside a rule for all names"),
    (
        of("object", properties=A_INTEGER, patternProperties={"^x": True}, additionalProperties=True),
        "need 'additionalProperties': false",
    ),
    ({"properties": {"a/b~": {"not": {}}}}, "at /properties/a~1b~0/not: "),
    ([1], "a schema is an object or a boolean, not [1]"),
]


@pytest.mark.parametrize(("schema", "told"), REFUSED)
def test_what_cannot_be_promised_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(SchemaFault) as caught:
        prepared(schema)
    assert told in str(caught.value)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    with pytest.raises(SchemaFault, match="nested too deeply"):
        prepare_schema('{"items":' * 3000 + "{}" + "}" * 3000, COMPILER.compile_regex)


def bounds(low: str, high: str, limits: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, int]]:
    """Neither, one or both of two keywords, in order."""
    pairs = st.tuples(limits, limits).map(sorted).map(lambda pair: {low: pair[0], high: pair[1]})
    return pairs.flatmap(
        lambda pair: st.sets(st.sampled_from([low, high])).map(lambda keys: {k: pair[k] for k in keys})
    )


LEAVES = st.one_of(
    st.sampled_from(
        [of("boolean"), of("null"), {"const": "c"}, {"enum": [1, "x", None]}, of("string", pattern="[ab]{2}")]
    ),
    bounds("minimum", "maximum", st.integers(-50, 50)).map(lambda limits: of("integer", **limits)),
    bounds("minimum", "maximum", st.integers(-50, 50)).map(lambda limits: of("number", **limits)),
    bounds("minLength", "maxLength", st.integers(0, 4)).map(lambda limits: of("string", **limits)),
)


def composed(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects, arrays and alternatives of `parts`."""
    properties = st.dictionaries(st.sampled_from("abc"), parts, max_size=3)
    return st.one_of(
        st.builds(
            lambda listed, required, rest: of("object", properties=listed, required=required, **rest),
            properties,
            st.lists(st.sampled_from("abcd"), unique=True, max_size=2),
            st.one_of(st.just({}), st.builds(lambda part: {"additionalProperties": part}, parts | st.booleans())),
        ),
        st.builds(
            lambda part, limits: of("array", items=part, **limits),
            parts,
            bounds("minItems", "maxItems", st.integers(0, 3)),
        ),
        st.lists(parts, min_size=1, max_size=3).map(lambda several: {"anyOf": several}),
    )


def validates(value: Any, schema: Any) -> bool:
    """JSON Schema, as far as the schemas above go."""
    if isinstance(schema, bool):
        return schema
    if "anyOf" in schema:
        return any(validates(value, part) for part in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    match schema["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer" | "number" as kind:
            is_number = type(value) is int or (kind == "number" and type(value) is float)
            return is_number and schema.get("minimum", value) <= value <= schema.get("maximum", value)
        case "string":
            fits = isinstance(value, str) and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1e9)
            return fits and ("pattern" not in schema or (len(value) == 2 and set(value) <= {"a", "b"}))
        case "array":
            fits = isinstance(value, list) and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1e9)
            return fits and all(validates(item, schema["items"]) for item in value)
    listed, rest = schema["properties"], schema.get("additionalProperties", True)
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value)
        and all(validates(item, listed.get(name, rest)) for name, item in value.items())
    )


def random_answer(compiled: Any, seed: int) -> str | None:
    """What a model that knows nothing writes under a grammar: allowed bytes at random, ends preferred; None: no end."""
    pick, written = random.Random(seed), b""
    matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
    mask = torch.zeros(1, 8, dtype=torch.int32)
    while len(written) < 600:
        if matcher.is_terminated():
            return written.decode(errors="replace")
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask)
        words = mask[0].tolist()
        allowed = [byte for byte in range(256) if words[byte // 32] >> byte % 32 & 1]
        ends = [byte for byte in allowed if byte in b'"}]']
        byte = pick.choice(ends) if ends and pick.random() < 0.5 else pick.choice(allowed)
        assert matcher.accept_token(byte)
        written += bytes([byte])
    return None


@settings(max_examples=150, deadline=None)
@given(st.recursive(LEAVES, composed, max_leaves=6), st.integers(0, 1000))
def test_whatever_a_model_writes_validates(schema: Any, seed: int) -> None:
    try:
        compiled = COMPILER.compile_json_schema(prepared(schema), strict_mode=False, max_whitespace_cnt=2)
    except (RuntimeError, SchemaFault):
        return  # a schema that nothing satisfies
    answer = random_answer(compiled, seed)
    if answer is not None:
        assert validates(json.loads(answer, strict=False), schema), answer
