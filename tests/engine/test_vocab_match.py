"""When two vocabularies are one: padding does not matter, another text does, and so does too much of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.vocab import load_vocab
from engine.vocab_match import MOST_ONE_SIDED, match_vocabs
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

TEXTS: list[str | None] = [f"token {n}" for n in range(300)]


def test_a_vocabulary_matches_itself_in_any_padding() -> None:
    padded = [*TEXTS, *(f"[PAD{n}]" for n in range(300, 600))]
    for draft in (TEXTS, padded, [*TEXTS, None, None]):
        match = match_vocabs(TEXTS, draft)
        assert (match.matches, match.reason) == (True, "the same 300 tokens")
        assert match_vocabs(draft, TEXTS) == match


def test_both_file_formats_of_a_model_match(tmp_path: Path) -> None:
    one, other = (tiny_llama_checkpoint(tmp_path / kind, format=kind) for kind in ("safetensors", "gguf"))
    match = match_vocabs(load_vocab(one).token_texts(), load_vocab(other).token_texts())
    assert (match.matches, match.reason) == (True, "the same 320 tokens")


def test_a_few_special_tokens_more_are_the_same_vocabulary_and_are_told() -> None:
    match = match_vocabs([*TEXTS, "<think>", "</think>"], [*TEXTS[:-1], None])
    assert (match.matches, match.reason) == (True, "the same 299 tokens; 3 more in the model, 0 more in the draft")


def test_one_other_text_is_another_tokenizer() -> None:
    match = match_vocabs(TEXTS, [*TEXTS[:7], "seven", *TEXTS[8:]])
    assert not match.matches
    assert "1 of 300 shared ids" in match.reason
    assert "7: 'token 7' in the model, 'seven' in the draft" in match.reason


@pytest.mark.parametrize("draft", [TEXTS[: 300 - MOST_ONE_SIDED - 1], [], [None] * 300])
def test_too_little_in_common_is_no_match(draft: list[str | None]) -> None:
    assert not match_vocabs(TEXTS, draft).matches
    assert not match_vocabs(draft, TEXTS).matches
