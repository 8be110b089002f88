"""The requests of the proof, by kind: each kind presses something that drafts could break.

Owns prompts and sampling parameters, nothing else. Invariant: the same arguments give the same requests. Prompts repeat
themselves, so that proposers which look things up find something; answers are short, so that many cells fit in little
time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import ModelConfig
from engine.core.sampling_params import Guided, SamplingParams

MAX_TOKENS = 22
GRAMMARS = (
    Guided("regex", "[a-z]{1,12}( [0-9]+)*"),
    Guided("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
    Guided("choice", '["yes, of course", "no, never", "perhaps tomorrow"]'),
)


@dataclass(frozen=True)
class Wish:
    """One request. stop_text: token ids that end the answer where they first stand in it, as stop strings do."""

    name: str
    prompt: list[int]
    sampling: SamplingParams
    n: int = 1
    stop_text: tuple[int, ...] = ()


@dataclass(frozen=True)
class Place:
    """What a kind is told: which request this is, the model, what it says by itself (empty: not known yet), chance."""

    index: int
    config: ModelConfig
    free: list[int]
    random: random.Random


def _penalties(place: Place) -> dict[str, Any]:
    return (
        {"presence_penalty": 0.8, "logprobs": 2},
        {"frequency_penalty": 0.7, "presence_penalty": -0.3},
        {"repetition_penalty": 1.3, "logprobs": 0},
    )[place.index % 3]


def _dry(place: Place) -> dict[str, Any]:
    return {
        "dry_multiplier": 0.9,
        "dry_allowed_length": 1 + place.index % 2,
        "dry_sequence_breakers": (7,),
        "logprobs": 1,
    }


def _grammar(place: Place) -> dict[str, Any]:
    return {"guided": GRAMMARS[place.index % len(GRAMMARS)], "logprobs": 1, "ignore_eos": False}


def _ends(place: Place) -> dict[str, Any]:
    """max_tokens of 1 and up; a stop token out of the middle of the answer; an end token that comes by itself."""
    way = place.index % 3
    if way == 0:
        return {"max_tokens": 1 + place.index % 11}
    if way == 1 and place.free:
        return {"stop_token_ids": (place.free[place.random.randrange(len(place.free))],)}
    return {"ignore_eos": False, "logit_bias": dict.fromkeys(place.config.eos_token_ids, 2.0)}


def _min_tokens(place: Place) -> dict[str, Any]:
    ends = dict.fromkeys(place.config.eos_token_ids, 20.0)
    return {"ignore_eos": False, "min_tokens": 1 + place.index % 9, "logit_bias": ends, "logprobs": 1}


def _bad_words(place: Place) -> dict[str, Any]:
    """Words out of the answer itself: two tokens that follow each other, and one alone."""
    if len(place.free) < 6:
        return {}
    start = place.random.randrange(1, len(place.free) - 3)
    return {"bad_words": (tuple(place.free[start : start + 2]), (place.free[start + 2],)), "logprobs": 1}


def _filters(place: Place) -> dict[str, Any]:
    return (
        {"top_p": 0.9, "logprobs": 3, "logprobs_mode": "processed"},
        {"top_k": 20, "min_p": 0.02, "logprobs": 2, "logprobs_mode": "processed"},
        {"typical_p": 0.9, "logprobs": 1},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    )[place.index % 4]


def _everything(place: Place) -> dict[str, Any]:
    return _filters(place) | _penalties(place) | _dry(place) | {"logprobs": 4, "logprobs_mode": "processed"}


KINDS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "logprobs": lambda place: {
        "logprobs": 5 * (place.index % 2),
        "prompt_logprobs": 1 if place.index % 4 == 3 else None,
    },
    "penalties": _penalties,
    "dry": _dry,
    "grammar": _grammar,
    "ends": _ends,
    "stop texts": lambda place: {"logprobs": 0},
    "min_tokens": _min_tokens,
    "bad words": _bad_words,
    "filters": _filters,
    "samples": lambda place: {"logprobs": 1},
    "everything": _everything,
}


KINDS_OF_ANSWERS = ("ends", "stop texts", "bad words")  # these are made of what plain decoding says without them


def wishes(
    kind: str, temperature: float, seed: int, batch: int, config: ModelConfig, free: Mapping[str, list[int]]
) -> list[Wish]:
    """`batch` requests. free: what plain decoding answers to those of the same kind where nothing ends it early; empty:
    not known yet."""
    source = random.Random(f"{kind} {seed}")
    found = []
    for index in range(batch):
        name = f"r{index}"
        prompt = _prompt(source, config.vocab_size, index)
        place = Place(index, config, free.get(name, []), source)
        fields = {"temperature": temperature, "seed": 1000 * seed + index, "max_tokens": MAX_TOKENS, "ignore_eos": True}
        stop = place.free[4 + index % 7 :][:2] if kind == "stop texts" else []
        sampling = SamplingParams(**(fields | KINDS[kind](place)))
        found.append(Wish(name, prompt, sampling, 3 if kind == "samples" and index % 4 == 0 else 1, tuple(stop)))
    return found


def _prompt(source: random.Random, vocab_size: int, index: int) -> list[int]:
    """From 1 to some 70 tokens, most of them said before; some prompts begin alike."""
    top = min(vocab_size, 4000)
    phrase = [source.randrange(3, top) for _ in range(4 + index % 9)]
    shared = [11 + place % 80 for place in range(20)] if index % 4 == 1 else []
    length = 1 + index * 37 % 50
    return [*shared, *(phrase * (1 + length // len(phrase)))[:length]]
