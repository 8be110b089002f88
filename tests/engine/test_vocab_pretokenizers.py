"""Every named rule cuts one nasty text where its model's tokenizer does; the rest that goes with a name holds too."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.checkpoint import read_checkpoint
from engine.vocab import load_vocab
from engine.vocab_gguf import convert_gguf_tokenizer
from engine.vocab_pretokenizers import PRE_TOKENIZERS
from tests.engine.test_checkpoint import write_tiny_gguf

# A contraction in capitals, a capital inside a word, CRLF, tab, two spaces, accents, digits, three scripts.
TEXT = "I'Ve userId:\r\n\n\tx2  = naïve+café/12345 日本かな한글 µ²!!\n// end \n"
MID, END = [" =", " naïve", "+café", "/"], [" 日本かな한글", " µ", "²"]
DIGITS = list("12345")
LLAMA = ["I", "'Ve", " userId", ":\r\n\n", "\tx", "2", " ", *MID]
CASED = [" user", "Id", ":\r\n\n", "\tx", "2", " ", *MID]
GPT2 = ["I", "'", "Ve", " userId", ":", "\r\n\n", "\t", "x", "2", " ", " =", " naïve", "+", "café", "/"]
SEED = ["I", "'Ve", " userId", ":", "\r\n\n", "\tx", "2", " ", *MID]
CODE = ["I", "'", "Ve", " userId", ":", "\r", "\n", "\n", "\tx", "2"]
CUTS = {
    "default falcon": [
        *["I", "'", "Ve", " userId", ":", "\r\n\n", "\t", "x", "2", "  ", "=", " naïve", "+", "café", "/", "123", "45"],
        *[*END, "!!", "\n", "//", " end", " \n"],
    ],
    "gpt-2 phi-2 gigachat a.x-4.0 mellum trillion granite-docling mpt olmo": [
        *[*GPT2, "12345", *END, "!!", "\n", "//", " end", " \n"]
    ],
    "smollm starcoder refact codeshell exaone minerva-7b command-r": [
        *[*GPT2, *DIGITS, *END, "!!", "\n", "//", " end", " \n"]
    ],
    "llama-bpe llama3 llama-v3 falcon3 pixtral midm-2.0 smaug-bpe dbrx": [
        *[*LLAMA, "123", "45", *END, "!!\n", "//", " end", " \n"]
    ],
    "qwen2 deepseek-r1-qwen megrez kormo": [*LLAMA, *DIGITS, *END, "!!\n", "//", " end", " \n"],
    "seed-coder": [*SEED, *DIGITS, *END, "!!", "\n", "//", " end", " \n"],
    "tekken": ["I", "'Ve", *CASED, *DIGITS, *END, "!!\n//", " end", " \n"],
    "gpt-4o llama4": ["I'Ve", *CASED, "123", "45", *END, "!!\n//", " end", " \n"],
    # DeepSeek's marks reach from the colon to the tilde, letters and all: words fall apart at their accents
    "deepseek-llm": [
        *[*CODE, " ", " =", " na", "ï", "ve", "+", "caf", "é", "/", *DIGITS, " ", "日本かな한글", " µ", "²"],
        *["!!", "\n", "//", " end", " ", "\n"],
    ],
    "deepseek-coder": [
        *[*CODE, "  =", " naïve", "+", "café", "/", *DIGITS, " ", "日本かな한글", " µ", "²", "!!", "\n", "//", " end"],
        *[" ", "\n"],
    ],
    "deepseek-v3": [
        *["I", "'Ve", " userId", ":\r\n\n", "\tx", "2", " ", " =", " naïve", "+caf", "é", "/", "123", "45", " "],
        *["日本かな", "한글", " µ", "²", "!!\n", "//", " end", " \n"],
    ],
}


def pieces(name: str, text: str) -> list[str]:
    cut = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


def gguf_tokenizer(folder: Path, keys: dict[str, object]) -> Tokenizer:
    return convert_gguf_tokenizer(read_checkpoint(write_tiny_gguf(folder / "x.gguf", keys)))


@pytest.mark.parametrize("names", CUTS)
def test_cuts_of_a_nasty_text(names: str) -> None:
    for name in names.split():
        assert pieces(name, TEXT) == CUTS[names], name


def test_every_rule_is_checked() -> None:
    assert {name for names in CUTS for name in names.split()} == PRE_TOKENIZERS.keys()


def test_only_falcon_counts_the_backtick_as_a_mark() -> None:
    assert pieces("falcon", "a(`)") == ["a", "(`)"]
    assert pieces("default", "a(`)") == ["a", "(", "`", ")"]


@pytest.mark.parametrize(("name", "joined"), [("command-r", True), ("olmo", True), ("qwen2", True), ("gpt-2", False)])
def test_accents_are_composed_where_the_model_does(tmp_path: Path, name: str, joined: bool) -> None:
    apart = unicodedata.normalize("NFD", "é")
    tokenizer = gguf_tokenizer(tmp_path, {"tokenizer.ggml.pre": name})
    assert (tokenizer.encode(apart).ids == tokenizer.encode("é").ids) is joined


@pytest.mark.parametrize("name", ["tekken", "llama-bpe", "gpt-4o", "dbrx"])
def test_bos_is_added_where_the_file_does_not_say(tmp_path: Path, name: str) -> None:
    keys = {"tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": None, "tokenizer.ggml.bos_token_id": 1}
    vocab = load_vocab(write_tiny_gguf(tmp_path / "x.gguf", keys))
    starts = vocab.encode("a", add_special_tokens=True)[0] == 1
    assert starts is (name in ("tekken", "llama-bpe"))


def test_whole_words_are_taken_whatever_the_merges_say(tmp_path: Path) -> None:
    """A word without a merge that makes it: only rules that take whole words find its token."""
    tokens = ["a", "b", "c", "ab", "abc", "<s>"]
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 5,
        "tokenizer.ggml.eos_token_id": 5,
    }
    found = {
        name: gguf_tokenizer(tmp_path, keys | {"tokenizer.ggml.pre": name}).encode("abc").tokens[-2:]
        for name in ("tekken", "dbrx")
    }
    assert found == {"tekken": ["abc"], "dbrx": ["ab", "c"]}
