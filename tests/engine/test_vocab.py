"""Ids, text and bytes: exact, from a folder as from a GGUF file, for both families of tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from engine.checkpoint import read_checkpoint
from engine.vocab import Vocab, VocabError, convert_gguf_tokenizer, load_vocab, write_tokenizer
from engine.vocab_pretokenizers import PRE_TOKENIZERS
from tests.engine.test_checkpoint import edit_json, write_tiny_gguf
from tests.engine.tiny_checkpoint import CHAT_TEMPLATE, tiny_config, tiny_llama_checkpoint, tiny_tokenizer

TEXT = "Héllo 日本 👩‍🚀 it's 1234 \n\n  x\t\tend"
# A SentencePiece vocabulary: three control tokens, the bytes, then pieces with scores as ranks.
PIECES = ["▁", "t", "h", "e", "a", "b", "c", "▁t", "he", "▁the", "ca", "▁ca", "▁cab", "é"]
SPM_TEXTS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "[TOOL]"]
SPM_KEYS: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.tokens": SPM_TEXTS,
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))] + [0.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [4],
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
}


def load_gguf_vocab(folder: Path, keys: dict[str, Any]) -> Vocab:
    return load_vocab(write_tiny_gguf(folder / "x.gguf", keys))


def joined(vocab: Vocab, ids: list[int]) -> str:
    return b"".join(vocab.token_bytes(token_id) for token_id in ids).decode("utf-8")


def test_known_vectors_of_the_default_model(default_model_path: Path) -> None:
    vocab = load_vocab(default_model_path)
    assert vocab.encode("\n\n12") == [1116, 33, 34]
    assert vocab.encode("<|im_start|>user\n")[:1] == [1]
    assert (vocab.size, vocab.eos_token_ids, vocab.eos_token, vocab.bos_token) == (
        49152,
        (2,),
        "<|im_end|>",
        "<|im_start|>",
    )
    assert len(vocab.special_ids) == 17
    assert joined(vocab, vocab.encode(TEXT)) == TEXT == vocab.decode(vocab.encode(TEXT))


def test_folder_and_gguf_agree(tmp_path: Path) -> None:
    folder = load_vocab(tiny_llama_checkpoint(tmp_path / "a"))
    gguf = load_vocab(tiny_llama_checkpoint(tmp_path / "b", format="gguf"))
    for vocab in (folder, gguf):
        assert vocab.size == tiny_config()["vocab_size"]
        assert vocab.special_ids == {0, 1, 2}
        assert (vocab.bos_token, vocab.eos_token, vocab.eos_token_ids) == ("<|im_start|>", "<|im_end|>", (2,))
        assert vocab.chat_template == CHAT_TEMPLATE
    assert folder.encode(TEXT) == gguf.encode(TEXT)


def test_written_tokenizer_equals_the_gguf(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path, format="gguf")
    direct = load_vocab(path)
    write_tokenizer(read_checkpoint(path), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "tiny.gguf",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    }
    for written in (load_vocab(path), load_vocab(tmp_path)):
        assert written.encode(TEXT) == direct.encode(TEXT)
        for field in ("special_ids", "eos_token_ids", "bos_token", "eos_token", "size", "chat_template"):
            assert getattr(written, field) == getattr(direct, field)
    assert read_checkpoint(tmp_path).format == "gguf"


def test_a_tokenizer_beside_several_ggufs_belongs_to_none(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path, format="gguf")
    (tmp_path / "tokenizer.json").write_text("not this model's", encoding="utf-8")
    with pytest.raises(VocabError, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        load_vocab(path)
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert load_vocab(path).size == 320


@settings(deadline=None)
@given(text=st.text())
def test_bytes_of_any_text(text: str) -> None:
    vocab = Vocab(tiny_tokenizer())
    ids = vocab.encode(text, parse_special=False)
    assert joined(vocab, ids) == text


def test_special_tokens(tmp_path: Path) -> None:
    vocab = load_vocab(tiny_llama_checkpoint(tmp_path))
    ids = vocab.encode("a<|im_end|>")
    assert ids[-1] == 2
    assert vocab.token_bytes(2) == b""
    assert vocab.decode(ids) == "a"
    assert vocab.decode(ids, skip_special_tokens=False) == "a<|im_end|>"
    literal = vocab.encode("a<|im_end|>", parse_special=False)
    assert not vocab.special_ids & set(literal)
    assert joined(vocab, literal) == "a<|im_end|>"
    assert vocab.encode("a<|im_end|>") == ids  # the switch did not stick


def test_ids_beyond_the_vocabulary_are_nothing() -> None:
    vocab = Vocab(tiny_tokenizer())
    assert vocab.token_bytes(5000) == b""
    assert vocab.decode([5000]) == ""


def test_special_tokens_written_as_objects(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", eos_token_id=None)
    edit_json(folder / "tokenizer_config.json", eos_token=None, bos_token={"content": "<|im_start|>"})
    edit_json(folder / "special_tokens_map.json", eos_token={"content": "<|endoftext|>"})
    vocab = load_vocab(folder)
    assert (vocab.bos_token, vocab.eos_token, vocab.eos_token_ids) == ("<|im_start|>", "<|endoftext|>", (0,))


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "a 12\n\n3", ["a", " ", "1", "2", "\n\n", "3"]),
        ("gpt-2", "a 12\n\n3's", ["a", " 12", "\n", "\n", "3", "'s"]),
        ("llama-bpe", "A12345 it'S\n\nx", ["A", "123", "45", " it", "'S", "\n\n", "x"]),
        ("dbrx", "A12345 it'S\n\nx", ["A", "123", "45", " it", "'S", "\n\n", "x"]),
        ("smaug-bpe", "A12345 it'S\n\nx", ["A", "123", "45", " it", "'S", "\n\n", "x"]),
        ("qwen2", "a12 (b)\n", ["a", "1", "2", " (", "b", ")\n"]),
        ("default", "a+12345", ["a", "+", "123", "45"]),
    ],
)
def test_pre_tokenizers_cut_where_they_should(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", {"tokenizer.ggml.pre": pre})
    write_tokenizer(read_checkpoint(path), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == pieces


@pytest.mark.parametrize(
    ("keys", "finding"),
    [
        ({"tokenizer.ggml.pre": "mystery"}, f"is 'mystery'; known pre-tokenizers are {', '.join(PRE_TOKENIZERS)}"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is None"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model is 'bert'; known are gpt2, llama"),
        ({"tokenizer.ggml.merges": ["Ġ zzz"]}, "holds 'Ġ zzz', which does not join two tokens"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type has 2 entries for 320 tokens"),
        ({"tokenizer.ggml.tokens": ["same"] * 320}, "holds the same token twice"),
        (SPM_KEYS | {"tokenizer.ggml.scores": [0.0]}, "scores has 1 entries for 274 tokens"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "bos_token_id is missing"),
    ],
)
def test_gguf_vocabularies_that_are_refused(tmp_path: Path, keys: dict[str, Any], finding: str) -> None:
    with pytest.raises(VocabError, match=finding):
        load_gguf_vocab(tmp_path, keys)


def test_sentencepiece(tmp_path: Path) -> None:
    vocab = load_gguf_vocab(tmp_path, SPM_KEYS)

    def texts(text: str, **options: bool) -> list[str]:
        return [SPM_TEXTS[token_id] for token_id in vocab.encode(text, **options)]

    assert texts("the cab") == ["▁the", "▁cab"]
    assert texts("the", add_special_tokens=True) == ["<s>", "▁the"]
    assert texts("é\n") == ["▁", "é", "<0x0A>"]
    assert texts("the[TOOL]") == ["▁the", "[TOOL]"]
    assert vocab.special_ids == {0, 1, 2}
    assert vocab.token_bytes(SPM_TEXTS.index("▁the")) == b" the"
    assert vocab.token_bytes(SPM_TEXTS.index("<0xE6>")) == b"\xe6"
    assert vocab.token_bytes(SPM_TEXTS.index("[TOOL]")) == b"[TOOL]"
    assert joined(vocab, vocab.encode(TEXT)) == " " + TEXT
    assert vocab.decode(vocab.encode(TEXT)) == TEXT


def test_sentencepiece_without_the_leading_space(tmp_path: Path) -> None:
    vocab = load_gguf_vocab(tmp_path, SPM_KEYS | {"tokenizer.ggml.add_space_prefix": False})
    assert joined(vocab, vocab.encode(TEXT)) == TEXT == vocab.decode(vocab.encode(TEXT))


def spm_keys(*more: tuple[str, int], **keys: Any) -> dict[str, Any]:
    """SPM_KEYS with tokens, (text, type), put behind its own."""
    return SPM_KEYS | {
        "tokenizer.ggml.tokens": [*SPM_TEXTS, *(text for text, _ in more)],
        "tokenizer.ggml.scores": [*SPM_KEYS["tokenizer.ggml.scores"], *(0.0 for _ in more)],
        "tokenizer.ggml.token_type": [*SPM_KEYS["tokenizer.ggml.token_type"], *(kind for _, kind in more)],
        **{f"tokenizer.ggml.{name}": value for name, value in keys.items()},
    }


def spelled(folder: Path, keys: dict[str, Any], text: str, **options: bool) -> list[str]:
    vocab = load_gguf_vocab(folder, keys)
    return [keys["tokenizer.ggml.tokens"][token_id] for token_id in vocab.encode(text, **options)]


def test_sentencepiece_begins_words_anew_behind_every_token_found_in_text(tmp_path: Path) -> None:
    assert spelled(tmp_path, SPM_KEYS, "the[TOOL]the<s>the") == ["▁the", "[TOOL]", "▁the", "<s>", "▁the"]


def test_sentencepiece_takes_what_a_user_writes_as_text(tmp_path: Path) -> None:
    literal = spelled(tmp_path, SPM_KEYS, "<s>[TOOL]", parse_special=False)
    assert literal == ["▁", "<0x3C>", "<0x73>", "<0x3E>", "[TOOL]"]
    vocab = load_gguf_vocab(tmp_path, SPM_KEYS)
    assert vocab.encode("<0x41>", parse_special=False) != [SPM_TEXTS.index("<0x41>")]
    assert vocab.decode(vocab.encode("<0x41>", parse_special=False)) == "<0x41>"


def test_sentencepiece_runs_of_spaces_as_gemma_has_them(tmp_path: Path) -> None:
    keys = spm_keys(("  ", 4), ("   ", 4), ("\n\n", 4), add_space_prefix=False)
    assert spelled(tmp_path, keys, "a   b\n\n c") == ["a", "   ", "b", "\n\n", "▁", "c"]
    vocab = load_gguf_vocab(tmp_path, keys)
    assert joined(vocab, vocab.encode("a   b\n\n c")) == "a   b\n\n c" == vocab.decode(vocab.encode("a   b\n\n c"))


@pytest.mark.parametrize("named", [True, False])
def test_sentencepiece_without_bytes_has_an_unknown_token(tmp_path: Path, named: bool) -> None:
    texts = ["<unk>", "<s>", "</s>", "▁", "a"]
    keys: dict[str, Any] = SPM_KEYS | {
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": [0.0] * len(texts),
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
        "tokenizer.ggml.unknown_token_id": 0 if named else None,
    }
    assert spelled(tmp_path, keys, "aéüa") == ["▁", "a", "<unk>", "a"]
    keys = keys | {"tokenizer.ggml.token_type": [1, 3, 3, 1, 1], "tokenizer.ggml.unknown_token_id": None}
    with pytest.raises(VocabError, match="tokens lacks <0x00>, and there is no unknown token"):
        load_gguf_vocab(tmp_path, keys)


def test_phi3_tokens_swallow_the_white_space_behind_them(tmp_path: Path) -> None:
    keys = spm_keys(("<|user|>", 3), ("<|endoftext|>", 3))
    info = read_checkpoint(write_tiny_gguf(tmp_path / "x.gguf", keys))
    phi3 = replace(info, metadata=info.metadata | {"general.architecture": "phi3"})
    texts = {}
    for each in (info, phi3):
        ids = convert_gguf_tokenizer(each).encode("<|user|>\nthe<|endoftext|>\nthe", add_special_tokens=False).ids
        texts[each is phi3] = [keys["tokenizer.ggml.tokens"][token_id] for token_id in ids]
    end = ["<|endoftext|>", "▁", "<0x0A>", "t", "he"]
    assert texts == {False: ["<|user|>", "▁", "<0x0A>", "t", "he", *end], True: ["<|user|>", "▁the", *end]}


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(VocabError, match="no model here"):
        load_vocab(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(VocabError, match=r"only a SentencePiece tokenizer\.model is here"):
        load_vocab(tmp_path)
    Tokenizer(WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(VocabError, match="neither byte-level nor SentencePiece"):
        load_vocab(tmp_path)


def test_transformers_reads_what_is_written(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = tiny_llama_checkpoint(tmp_path, format="gguf")
    write_tokenizer(read_checkpoint(path), tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": TEXT}]
    prompt: Any = theirs.apply_chat_template(messages, add_generation_prompt=True)
    rendered = f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt["input_ids"] == load_vocab(path).encode(rendered)
    assert json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"] == [2]
