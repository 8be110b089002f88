"""Log probabilities as OpenAI's clients expect them, and prompt log probabilities as vLLM's do.

Owns how a token is spelled and the shapes around it. Knows nothing of requests. Invariant: `bytes` are a token's exact
bytes, so that those of a whole answer joined are its text; a token that is no text by itself is spelled by its bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from app.sample_text import TokenLogprob
from engine.core.outputs import Logprobs
from engine.vocab import Vocab

LEAST = -9999.0  # what OpenAI writes for minus infinity, which JSON does not have


class TokenSpelling:
    """What tokens look like on the wire. A special token is spelled by its name."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    def bytes_of(self, token_id: int) -> bytes:
        return self._vocab.token_bytes(token_id) or self._vocab.decode([token_id], skip_special_tokens=False).encode()

    def text_of(self, token_id: int) -> str:
        spelled = self.bytes_of(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def chat_logprobs(tokens: Iterable[TokenLogprob], spelling: TokenSpelling) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        spelled = spelling.bytes_of(token_id)
        return {"token": spelling.text_of(token_id), "logprob": _finite(logprob), "bytes": list(spelled)}

    content = [
        {**entry(each.token_id, each.logprob), "top_logprobs": [entry(*other) for other in each.top]} for each in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob], spelling: TokenSpelling, *, shift: int = 0) -> dict[str, Any]:
    """`choices[].logprobs` of a raw completion; `shift`: how much text stands before these tokens' own."""
    return {
        "tokens": [spelling.text_of(each.token_id) for each in tokens],
        "token_logprobs": [_finite(each.logprob) for each in tokens],
        "top_logprobs": [_alternatives(each, spelling) for each in tokens],
        "text_offset": [each.offset + shift for each in tokens],
    }


def prompt_tokens(
    token_ids: Sequence[int], text: str, logprobs: Logprobs | None, num_top: int, spelling: TokenSpelling
) -> list[TokenLogprob]:
    """A prompt's tokens with their places in its text; `logprobs` begin with the second token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ends, length = [0], 0
    for token_id in token_ids:
        length += len(decoder.decode(spelling.bytes_of(token_id)))
        ends.append(length)
    added = length - len(text)  # tokens that the tokenizer put in front are no part of the text
    entries = []
    for place, (token_id, offset) in enumerate(zip(token_ids, ends, strict=False)):
        at = max(0, offset - added)
        if place == 0 or logprobs is None:
            entries.append(TokenLogprob(token_id, None, at))
            continue
        top = zip(logprobs.top_token_ids[place - 1], logprobs.top_logprobs[place - 1], strict=True)
        entries.append(TokenLogprob(token_id, logprobs.logprobs[place - 1], at, tuple(top)[:num_top]))
    return entries


def prompt_logprobs(
    token_ids: Sequence[int], logprobs: Logprobs, num_top: int, spelling: TokenSpelling
) -> list[dict[str, Any] | None]:
    """vLLM's `choices[].prompt_logprobs`: for each token its alternatives by id. A rank beyond them is not known."""
    shown: list[dict[str, Any] | None] = [None]
    for each in prompt_tokens(token_ids, "", logprobs, num_top, spelling)[1:]:
        entries = {
            str(token_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": spelling.text_of(token_id)}
            for rank, (token_id, logprob) in enumerate(each.top, 1)
        }
        own = {"logprob": _finite(each.logprob), "rank": None, "decoded_token": spelling.text_of(each.token_id)}
        shown.append({str(each.token_id): own, **entries})
    return shown


def _alternatives(token: TokenLogprob, spelling: TokenSpelling) -> dict[str, float | None] | None:
    """The most likely tokens and the token itself, by their spelling; None where nothing was drawn."""
    if token.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
        found.setdefault(spelling.text_of(token_id), _finite(logprob))
    return found


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST)
