// Holds a JSON value against a JSON schema, apart from the engine that was held to it: the keywords that a grammar here
// can promise. Owns the rules; knows nothing of what is shown. What it does not know it names, and does not judge.

const length = (text) => [...text].length;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const same = (a, b) => canonical(a) === canonical(b);

const TYPES = {
  object: isObject,
  array: Array.isArray,
  string: (value) => typeof value === "string",
  number: (value) => typeof value === "number",
  integer: Number.isInteger,
  boolean: (value) => typeof value === "boolean",
  null: (value) => value === null,
};

// keyword -> (its value, the value held against it) -> whether that is right; of other types it says nothing
const RULES = {
  type: (type, value) => [].concat(type).some((name) => TYPES[name]?.(value)),
  enum: (values, value) => values.some((each) => same(each, value)),
  const: (expected, value) => same(expected, value),
  minimum: (least, value) => typeof value !== "number" || value >= least,
  maximum: (most, value) => typeof value !== "number" || value <= most,
  exclusiveMinimum: (least, value) => typeof value !== "number" || value > least,
  exclusiveMaximum: (most, value) => typeof value !== "number" || value < most,
  minLength: (least, value) => typeof value !== "string" || length(value) >= least,
  maxLength: (most, value) => typeof value !== "string" || length(value) <= most,
  pattern: (source, value) => typeof value !== "string" || new RegExp(source, "u").test(value),
  minItems: (least, value) => !Array.isArray(value) || value.length >= least,
  maxItems: (most, value) => !Array.isArray(value) || value.length <= most,
  minProperties: (least, value) => !isObject(value) || Object.keys(value).length >= least,
  maxProperties: (most, value) => !isObject(value) || Object.keys(value).length <= most,
  required: (names, value) => !isObject(value) || names.every((name) => Object.hasOwn(value, name)),
};
const NESTED = new Set(["properties", "additionalProperties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref"]);
const REMARKS = new Set(["$schema", "$id", "$defs", "definitions", "title", "description", "default", "examples", "$comment"]);

/** {faults: [{path, keyword}], unchecked: [keyword]} */
export function checkSchema(schema, value) {
  const found = { root: schema, faults: [], unchecked: new Set() };
  hold(schema, value, "", found);
  return { faults: found.faults, unchecked: [...found.unchecked] };
}

function hold(schema, value, path, found) {
  if (schema === true || schema === undefined) return;
  if (schema === false) return void found.faults.push({ path: path || "/", keyword: "false" });
  for (const [keyword, wanted] of Object.entries(schema)) {
    if (RULES[keyword]) {
      if (!RULES[keyword](wanted, value)) found.faults.push({ path: path || "/", keyword });
    } else if (!NESTED.has(keyword) && !REMARKS.has(keyword)) found.unchecked.add(keyword);
  }
  if (schema.$ref) hold(resolve(found.root, schema.$ref), value, path, found);
  if (isObject(value)) holdProperties(schema, value, path, found);
  if (Array.isArray(value)) holdItems(schema, value, path, found);
  for (const part of schema.allOf ?? []) hold(part, value, path, found);
  for (const keyword of ["anyOf", "oneOf"]) {
    if (!schema[keyword]) continue;
    const fitting = schema[keyword].filter((part) => fits(part, value, found)).length;
    if (fitting === 0 || (keyword === "oneOf" && fitting > 1)) found.faults.push({ path: path || "/", keyword });
  }
}

function holdProperties(schema, value, path, found) {
  for (const [name, each] of Object.entries(value)) {
    const at = `${path}/${name}`;
    const known = schema.properties !== undefined && Object.hasOwn(schema.properties, name);
    if (known) hold(schema.properties[name], each, at, found);
    else if (schema.additionalProperties === false) found.faults.push({ path: at, keyword: "additionalProperties" });
    else if (isObject(schema.additionalProperties)) hold(schema.additionalProperties, each, at, found);
  }
}

function holdItems(schema, value, path, found) {
  const first = schema.prefixItems ?? [];
  value.forEach((each, index) => hold(index < first.length ? first[index] : schema.items, each, `${path}/${index}`, found));
}

function fits(schema, value, found) {
  const inner = { root: found.root, faults: [], unchecked: found.unchecked };
  hold(schema, value, "", inner);
  return inner.faults.length === 0;
}

function resolve(root, reference) {
  if (!reference.startsWith("#")) return true;
  const parts = reference.slice(1).split("/").filter(Boolean);
  return parts.reduce((node, part) => node?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

/** The same text for values that are equal, whatever the order of their properties. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join()}}`;
}
