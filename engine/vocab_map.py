"""How a draft model's token ids become a target's, and the other way.

One tokenizer, perhaps padded: ids are ids. Two tokenizers: the tokens that both have, by their bytes, are drafted and
the rest never is (token-level intersection, arXiv 2502.05202); the draft's distribution is then that over the shared
tokens. Owns the comparison; knows no tensors. Invariant: ids that are mapped to each other stand for the same bytes, or
are the same special token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.vocab import Vocab
from engine.vocab_match import match_vocabs

LEAST_SHARED = 0.5  # of the smaller vocabulary: with less a draft is rarely right
NOTHING = -1
_MOST_NAMED = 3


class VocabMapError(ValueError):
    """Two tokenizers with too little in common. The message names ids that differ."""


@dataclass(frozen=True, slots=True)
class VocabMap:
    """target_ids: of each draft id, NOTHING where it is never drafted. inputs: of each target id the draft id that it
    is read as; None: the same one. reason: for people; empty where ids are the same."""

    target_ids: list[int]
    inputs: list[int] | None
    reason: str = ""


def map_vocabs(target: Vocab, target_size: int, draft: Vocab, draft_size: int) -> VocabMap:
    """target_size, draft_size: rows of the models' heads, which may be padded. VocabMapError where too few are
    shared."""
    match = match_vocabs(target.token_texts(), draft.token_texts())
    if match.matches:
        ids = [token_id if token_id < target_size else NOTHING for token_id in range(draft_size)]
        inputs = None if draft_size >= target_size else [*range(draft_size), *[0] * (target_size - draft_size)]
        return VocabMap(ids, inputs)
    return _intersect(target, target_size, draft, draft_size, match.reason)


def _intersect(target: Vocab, target_size: int, draft: Vocab, draft_size: int, reason: str) -> VocabMap:
    by_key = {key: token_id for token_id, key in reversed(list(enumerate(_keys(target, target_size)))) if key}
    target_ids, taken = [NOTHING] * draft_size, dict[int, int]()
    for token_id, key in enumerate(_keys(draft, draft_size)):
        found = by_key.get(key, NOTHING) if key else NOTHING
        if found != NOTHING and found not in taken:
            target_ids[token_id] = found
            taken[found] = token_id
    smaller = max(1, min(target.size, draft.size))
    if len(taken) < LEAST_SHARED * smaller:
        raise VocabMapError(
            f"{reason}. Only {len(taken)} of {smaller} tokens are in both vocabularies, {LEAST_SHARED:.0%} are needed"
            f"{_named(target, draft)}"
        )
    inputs = [
        taken[token_id] if token_id in taken else _read_as(target, draft, token_id) for token_id in range(target_size)
    ]
    told = (
        f"the draft model has another tokenizer: it drafts the {len(taken)} tokens that both have, of {target.size} of "
        f"the model's and {draft.size} of its own"
    )
    return VocabMap(target_ids, inputs, told)


def _keys(vocab: Vocab, size: int) -> list[tuple[str, bytes | str] | None]:
    """What each id stands for: its bytes, or a special token's spelling; None for padding."""
    texts = vocab.token_texts()
    keys: list[tuple[str, bytes | str] | None] = [None] * size
    for token_id, text in enumerate(texts[:size]):
        if text is not None:
            raw = vocab.token_bytes(token_id)
            keys[token_id] = ("bytes", raw) if raw else ("special", text)
    return keys


def _read_as(target: Vocab, draft: Vocab, token_id: int) -> int:
    """The draft id that stands in for a token that only the target has: the first one of its text, else 0."""
    text = target.token_bytes(token_id).decode("utf-8", errors="ignore") if token_id < target.size else ""
    ids: Sequence[int] = draft.encode(text, parse_special=False) if text else ()
    return ids[0] if ids else 0


def _named(target: Vocab, draft: Vocab) -> str:
    """Some ids that stand for different texts, in words."""
    pairs = list(zip(target.token_texts(), draft.token_texts(), strict=False))
    differing = [(token_id, one, other) for token_id, (one, other) in enumerate(pairs) if one != other][:_MOST_NAMED]
    told = ", ".join(
        f"{token_id} is {one!r} in the model and {other!r} in the draft" for token_id, one, other in differing
    )
    return f"; {told}" if told else ""
