"""Token ids <-> text and bytes, with the `tokenizers` library; torch-free.

Owns `Vocab` and where its parts come from: a folder's tokenizer.json, or a GGUF file's key-values. Knows no weights.
Invariant: the `token_bytes` of a text's tokens, joined, are the very bytes of that text; special tokens have none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.checkpoint import find_gguf, read_checkpoint
from engine.checkpoint.folder import read_chat_template, read_eos_token_ids, read_optional_object, read_special_token
from engine.checkpoint.gguf import MAGIC
from engine.checkpoint.gguf_parts import first_part
from engine.checkpoint.info import CheckpointError, CheckpointInfo, read_head
from engine.vocab_gguf import VocabError, convert_gguf_tokenizer

__all__ = ["Vocab", "VocabError", "convert_gguf_tokenizer", "load_vocab", "write_tokenizer"]

TOKENIZER_FILE = "tokenizer.json"
_SPACE = "▁"  # SentencePiece's visible space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Vocab:
    """A model's vocabulary. Ids that the tokenizer does not know (a padded embedding has such) stand for nothing."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        eos_token_ids: tuple[int, ...] = (),
        chat_template: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added_bytes = {
            token_id: b"" if token.special else token.content.encode("utf-8") for token_id, token in added.items()
        }
        self.size: int = max(tokenizer.get_vocab().values(), default=-1) + 1
        self._read_bytes = _byte_reader(tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = True) -> list[int]:
        """Ids of `text`. `parse_special` False takes the spelling of a special token as ordinary text."""
        tokenizer = self._tokenizer if parse_special else self._literal_tokenizer
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; incomplete UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; none for a special token."""
        if token_id in self._added_bytes:
            return self._added_bytes[token_id]
        text = self._tokenizer.id_to_token(token_id)
        return b"" if text is None else self._read_bytes(text)

    def token_texts(self) -> list[str | None]:
        """Every token as the tokenizer spells it, by id; None where no token has the id."""
        texts: list[str | None] = [None] * self.size
        for text, token_id in self._tokenizer.get_vocab().items():
            texts[token_id] = text
        return texts

    @cached_property
    def _literal_tokenizer(self) -> Tokenizer:
        """A copy that does not look for special tokens: the switch is the tokenizer's state, not the call's."""
        copy = Tokenizer.from_str(self._tokenizer.to_str())
        copy.encode_special_tokens = True
        return copy


def load_vocab(path: Path) -> Vocab:
    """The vocabulary of a model folder, or of one file in it.

    A GGUF file alone in its folder yields to the tokenizer.json beside it, which `write_tokenizer` makes.
    """
    folder = path if path.is_dir() else path.parent
    try:
        if path.is_file() and read_head(path).startswith(MAGIC):
            files = sorted(folder.glob("*.gguf"))
            alone = len(files) == 1 or first_part(files) is not None
            beside = alone and (folder / TOKENIZER_FILE).is_file()
            return _from_folder(folder) if beside else _from_gguf(path)
        if (folder / TOKENIZER_FILE).is_file():
            return _from_folder(folder)
        if (folder / "tokenizer.model").is_file():
            raise VocabError(
                f"{folder}: only a SentencePiece tokenizer.model is here; make a tokenizer.json of it "
                "(transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER))"
            )
        return _from_gguf(find_gguf(folder))
    except CheckpointError as error:
        raise VocabError(str(error)) from error


def write_tokenizer(info: CheckpointInfo, folder: Path) -> None:
    """Write a GGUF file's tokenizer in Hugging Face's form: tokenizer.json and the two small files it goes with."""
    tokenizer = convert_gguf_tokenizer(info)
    vocab = _with_gguf_details(tokenizer, info)
    special = {"bos_token": vocab.bos_token, "eos_token": vocab.eos_token, "chat_template": vocab.chat_template}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {name: value for name, value in special.items() if value is not None}
    generation: dict[str, Any] = {"eos_token_id": list(vocab.eos_token_ids)}
    if info.config.bos_token_id is not None:
        generation["bos_token_id"] = info.config.bos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    # tokenizer.json last: where it is, the others are complete.
    _write_atomically(folder / "generation_config.json", json.dumps(generation, indent=2))
    _write_atomically(folder / "tokenizer_config.json", json.dumps(settings, indent=2, ensure_ascii=False))
    _write_atomically(folder / TOKENIZER_FILE, tokenizer.to_str())


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _from_folder(folder: Path) -> Vocab:
    path = folder / TOKENIZER_FILE
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise VocabError(f"{path}: cannot be read as a tokenizer ({error}); download the file again") from error
    config = read_optional_object(folder / "config.json")
    eos_token = read_special_token(folder, "eos_token")
    eos_ids = read_eos_token_ids(folder, config.get("eos_token_id"))
    if not eos_ids and eos_token is not None:
        token_id = tokenizer.token_to_id(eos_token)
        eos_ids = () if token_id is None else (token_id,)
    return Vocab(
        tokenizer,
        bos_token=read_special_token(folder, "bos_token"),
        eos_token=eos_token,
        eos_token_ids=eos_ids,
        chat_template=read_chat_template(folder),
    )


def _from_gguf(path: Path) -> Vocab:
    info = read_checkpoint(path)
    return _with_gguf_details(convert_gguf_tokenizer(info), info)


def _with_gguf_details(tokenizer: Tokenizer, info: CheckpointInfo) -> Vocab:
    def text(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.id_to_token(token_id)

    config = info.config
    return Vocab(
        tokenizer,
        bos_token=text(config.bos_token_id),
        eos_token=text(config.eos_token_ids[0] if config.eos_token_ids else None),
        eos_token_ids=config.eos_token_ids,
        chat_template=info.chat_template,
    )


def _byte_reader(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """How a token's text stands for bytes: found by asking the tokenizer's decoder, whatever it is composed of."""
    decoder = tokenizer.decoder
    if decoder is not None:
        if decoder.decode(["x", "Ġ"]) == "x ":
            return _byte_level_bytes
        if decoder.decode(["x", "<0x41>"]) == "xA":
            return _byte_fallback_bytes
        if decoder.decode(["x", _SPACE]) == "x ":
            return _visible_space_bytes
    raise VocabError(
        "the tokenizer's decoder is neither byte-level nor SentencePiece's: such vocabularies are not supported"
    )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the rest for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(text: str) -> bytes:
    if all(character in _BYTE_OF for character in text):
        return bytes(_BYTE_OF[character] for character in text)
    return text.encode("utf-8")  # as the library's own decoder does


def _byte_fallback_bytes(text: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(text):
        return bytes.fromhex(match[1])
    return _visible_space_bytes(text)


def _visible_space_bytes(text: str) -> bytes:
    return text.replace(_SPACE, " ").encode("utf-8")
