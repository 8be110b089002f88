"""The texts of one request, as they are kept where the operator wants that.

Owns what belongs to them and how much of each is kept. Knows nothing of the wish to keep them or of how rows are
stored. Invariant: a text is cut at MAX_TEXT characters, and that it was cut is said.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.request_rows import RequestBodyRow
from engine.core.sampling_params import SamplingParams
from engine.vocab import Vocab

MAX_TEXT = 256 * 1024  # characters of one text, and of a chat's messages together
MAX_ANSWERS = 8
DEFAULTS = SamplingParams()


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """What a caller sent, as it came: a chat's messages (asked for only if they are kept), or a prompt, where it was
    not sent as token ids."""

    messages: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    prompt: str | None = None


class BodyKeeper:
    """Collects the texts of one request while it runs."""

    def __init__(self, num_samples: int) -> None:
        self._answers: list[list[str]] = [[] for _ in range(min(num_samples, MAX_ANSWERS))]
        self._left = [MAX_TEXT] * len(self._answers)
        self._cut = num_samples > MAX_ANSWERS

    def take(self, index: int, text: str) -> None:
        """More text of a sample."""
        if index >= len(self._answers) or not text:
            return
        self._cut = self._cut or len(text) > self._left[index]
        self._answers[index].append(text[: self._left[index]])
        self._left[index] = max(0, self._left[index] - len(text))

    def body(
        self,
        request_id: str,
        created_at: float,
        vocab: Vocab,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        given: GivenTexts | None,
        *,
        stop: Sequence[str],
        seed: int | None,
    ) -> RequestBodyRow:
        """What is kept of it."""
        cut = self._cut
        given = given or GivenTexts()
        if given.prompt is not None:
            prompt, cut = given.prompt, cut or len(given.prompt) > MAX_TEXT
        else:  # a token has a character at least, almost always
            cut = cut or len(prompt_token_ids) > MAX_TEXT
            prompt = vocab.decode(list(prompt_token_ids[:MAX_TEXT]), skip_special_tokens=False)
            cut = cut or len(prompt) > MAX_TEXT
        messages = None if given.messages is None else [dict(message) for message in given.messages()]
        if messages is not None and len(json.dumps(messages)) > MAX_TEXT:
            messages, cut = None, True
        return RequestBodyRow(
            request_id=request_id,
            created_at=created_at,
            prompt=_storable(prompt[:MAX_TEXT]),
            messages=messages,
            sampling=_sampling(sampling, stop, seed),
            answers=[_storable("".join(parts)) for parts in self._answers],
            truncated=cut,
        )


def _storable(text: str) -> str:
    """Halves of surrogate pairs have no place in UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _sampling(sampling: SamplingParams, stop: Sequence[str], seed: int | None) -> dict[str, Any]:
    """What differs from the defaults, with the seed that was drawn with, as text: it may be larger than JSON's exact
    integers."""
    always = ("temperature", "max_tokens")
    names = [field.name for field in dataclasses.fields(sampling)]
    values = {
        name: value for name in names if (value := getattr(sampling, name)) != getattr(DEFAULTS, name) or name in always
    }
    if sampling.guided is not None:
        values["guided"] = dataclasses.asdict(sampling.guided)
    values["seed"] = None if seed is None else str(seed)
    return {**values, "stop": list(stop)}
