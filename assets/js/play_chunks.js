// A streamed answer put together again, as it would have come whole. Owns the joining; shows nothing.

import { spelledBytes } from "./play_stream.js";

/** joined() -> {whole, take(chunk) -> [[sample, tokens]]}; a token is {id, logprob, bytes}. */
export function joined() {
  const whole = { choices: [] };
  return {
    whole,
    take(chunk) {
      for (const name of ["id", "object", "created", "model", "usage", "seed"]) {
        if (chunk[name] !== undefined && chunk[name] !== null) whole[name] = chunk[name];
      }
      return chunk.choices.map((choice) => {
        const target = (whole.choices[choice.index] ??= { index: choice.index, token_ids: [] });
        return [choice.index, add(target, choice)];
      });
    },
  };
}

function add(target, choice) {
  if (choice.prompt_token_ids) target.prompt_token_ids = choice.prompt_token_ids;
  if (choice.stop_reason !== undefined) target.stop_reason = choice.stop_reason;
  target.finish_reason = choice.finish_reason ?? target.finish_reason ?? null;
  if (choice.text !== undefined) target.text = (target.text ?? "") + choice.text;
  if (choice.delta) addDelta((target.message ??= {}), choice.delta);
  if (choice.logprobs) addLogprobs((target.logprobs ??= {}), choice.logprobs);
  const ids = choice.token_ids ?? [];
  target.token_ids.push(...ids);
  const { tokens = [], token_logprobs: known = [], content = [] } = choice.logprobs ?? {};
  return ids.map((id, place) => ({
    id,
    logprob: known[place] ?? content[place]?.logprob ?? null,
    bytes: content[place]?.bytes ?? spelledBytes(tokens[place] ?? ""),
  }));
}

function addDelta(message, delta) {
  for (const [name, value] of Object.entries(delta)) {
    if (name === "tool_calls") addCalls((message.tool_calls ??= []), value);
    else if (name === "role") message.role = value;
    else message[name] = (message[name] ?? "") + value;
  }
}

function addCalls(calls, deltas) {
  for (const { index, function: called, ...rest } of deltas) {
    const call = (calls[index] ??= { function: { name: "", arguments: "" } });
    Object.assign(call, rest);
    call.function.name += called?.name ?? "";
    call.function.arguments += called?.arguments ?? "";
  }
}

function addLogprobs(target, logprobs) {
  for (const [name, values] of Object.entries(logprobs)) {
    if (Array.isArray(values)) (target[name] ??= []).push(...values);
  }
}
