"""From the fields of a /v1 body to the engine's SamplingParams.

Owns the translation of words into token ids and of the ways to ask for a grammar. Knows nothing of requests.
Invariant: what a body asks for reaches the engine or is refused with the field's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.dialects.openai_schemas import CompletionFields
from app.errors import ApiError
from engine.core.sampling_params import Guided, SamplingError, SamplingParams
from engine.vocab import Vocab

DRY_BREAKERS = ("\n", ":", '"', "*")  # the defaults of DRY's author
SAME_NAMES = (
    "temperature", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "seed", "min_tokens",
    "ignore_eos", "logprobs_mode",
)  # fmt: skip


def sampling_params(defaults: Mapping[str, float], **fields: Any) -> SamplingParams:
    """SamplingParams from request fields (None: the default); a bad value is a 400 that names the field."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return SamplingParams(**(dict(defaults) | given))
    except SamplingError as error:
        raise ApiError(400, str(error), param=error.param, code="invalid_value") from error


def body_sampling(
    body: CompletionFields, vocab: Vocab, max_tokens: int, defaults: Mapping[str, float], wish: GrammarWish | None
) -> SamplingParams:
    """What a body asks of the engine; `defaults` are the model's, for what it does not say. Raises ApiError."""
    breakers = DRY_BREAKERS if body.dry_sequence_breakers is None else body.dry_sequence_breakers
    return sampling_params(
        defaults,
        **{name: getattr(body, name) for name in SAME_NAMES},
        max_tokens=max_tokens,
        top_k=0 if body.top_k == -1 else body.top_k,
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        stop_token_ids=None if body.stop_token_ids is None else tuple(body.stop_token_ids),
        logit_bias=None if body.logit_bias is None else _by_token_id(body.logit_bias),
        bad_words=None if body.bad_words is None else token_sequences(body.bad_words, vocab),
        dry_sequence_breakers=breaker_ids(breakers, vocab) if body.dry_multiplier else None,
        logprobs=0 if body.return_token_ids and body.num_logprobs is None else body.num_logprobs,
        prompt_logprobs=body.num_prompt_logprobs,
        guided=None if wish is None else wish.guided,
    )


def token_sequences(words: Sequence[str], vocab: Vocab) -> tuple[tuple[int, ...], ...]:
    """Each word as the tokens that spell it, at the beginning of a text and after a space."""
    spellings = [spelling for word in words for spelling in (word, f" {word.lstrip()}")]
    encoded = (tuple(vocab.encode(spelling, parse_special=False)) for spelling in spellings)
    return tuple(dict.fromkeys(ids for ids in encoded if ids))


def breaker_ids(breakers: Sequence[str], vocab: Vocab) -> tuple[int, ...]:
    """The last token of each breaker behind a letter, as DRY's author has it: what a text is cut at."""
    return tuple(dict.fromkeys(vocab.encode(f"a{breaker}", parse_special=False)[-1] for breaker in breakers))


@dataclass(frozen=True, slots=True)
class GrammarWish:
    """A grammar and the field that asks for it."""

    field: str
    guided: Guided


def grammar_wish(body: CompletionFields) -> GrammarWish | None:
    """The one grammar that is asked for. Raises ApiError for two."""
    asked: dict[str, Guided] = {}
    if body.response_format is not None and body.response_format.type != "text":
        asked["response_format"] = _response_format(body)
    if body.guided_json is not None:
        text = body.guided_json if isinstance(body.guided_json, str) else json.dumps(body.guided_json)
        asked["guided_json"] = Guided("json_schema", text)
    if body.guided_regex is not None:
        asked["guided_regex"] = Guided("regex", body.guided_regex)
    if body.guided_grammar is not None:
        asked["guided_grammar"] = Guided("ebnf", body.guided_grammar)
    if body.guided_choice is not None:
        asked["guided_choice"] = Guided("choice", json.dumps(body.guided_choice))
    if len(asked) > 1:
        names = list(asked)
        detail = f"{' and '.join(names)} exclude each other"
        raise ApiError(400, detail, param=names[1], remedy="Keep one of them", code="invalid_value")
    return next((GrammarWish(*wish) for wish in asked.items()), None)


def _response_format(body: CompletionFields) -> Guided:
    assert body.response_format is not None
    if body.response_format.type == "json_object":
        return Guided("json")
    wrapper = body.response_format.json_schema
    if wrapper is None:
        detail = "response_format of type json_schema needs the field json_schema"
        raise ApiError(400, detail, param="response_format.json_schema", code="invalid_value")
    return Guided("json") if wrapper.json_schema is None else Guided("json_schema", json.dumps(wrapper.json_schema))


def _by_token_id(bias: dict[str, float]) -> dict[int, float]:
    wrong = next((name for name in bias if not (name.isascii() and name.isdecimal() and len(name) < 10)), None)
    if wrong is not None:
        detail, remedy = f"logit_bias: {wrong[:40]!r} is no token id", "Its keys are token ids: /tokenize tells them"
        raise ApiError(400, detail, param="logit_bias", remedy=remedy, code="invalid_value")
    return {int(name): value for name, value in bias.items()}
