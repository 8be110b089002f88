"""Whether two vocabularies are one, so that a small model's tokens can be drafts for a large one.

Owns the comparison. Knows neither files nor models. Invariant: a match means that every id which both know stands for
the same text; what only one knows is at most `MOST_ONE_SIDED` ids, and the reason says how many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MOST_ONE_SIDED = 128  # editions of one tokenizer differ by a handful of special tokens
_PADDING = re.compile(r"\[PAD\d+\]")  # GGUF gives the padded rows of an embedding texts of this form


@dataclass(frozen=True, slots=True)
class VocabMatch:
    """Whether they match, and why or why not."""

    matches: bool
    reason: str


def match_vocabs(target: Sequence[str | None], draft: Sequence[str | None]) -> VocabMatch:
    """Compare the texts of two vocabularies by id; None, and ids beyond the end, are padding."""
    size = max(len(target), len(draft))
    first, second = ([_real(texts, token_id) for token_id in range(size)] for texts in (target, draft))
    both = [token_id for token_id in range(size) if first[token_id] is not None and second[token_id] is not None]
    differing = [token_id for token_id in both if first[token_id] != second[token_id]]
    if differing:
        token_id = differing[0]
        return VocabMatch(
            False,
            f"another tokenizer: {len(differing)} of {len(both)} shared ids stand for other texts, the first of them "
            f"{token_id}: {first[token_id]!r} in the model, {second[token_id]!r} in the draft",
        )
    only = [sum(texts[token_id] is not None for token_id in range(size)) - len(both) for texts in (first, second)]
    if sum(only) > MOST_ONE_SIDED or not both:
        return VocabMatch(
            False,
            f"another vocabulary: {only[0]} ids are known to the model alone and {only[1]} to the draft alone, "
            f"of {len(both)} that both know",
        )
    if sum(only):
        return VocabMatch(
            True, f"the same {len(both)} tokens; {only[0]} more in the model, {only[1]} more in the draft"
        )
    return VocabMatch(True, f"the same {len(both)} tokens")


def _real(texts: Sequence[str | None], token_id: int) -> str | None:
    text = texts[token_id] if token_id < len(texts) else None
    return None if text is None or _PADDING.fullmatch(text) else text
