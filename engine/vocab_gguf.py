"""Builds a `tokenizers.Tokenizer` from the key-values of a GGUF file.

Owns what `tokenizer.ggml.*` means: byte-level BPE ("gpt2"), cut by a rule of engine/vocab_pretokenizers.py, and
SentencePiece BPE ("llama"). Knows no files.
Invariant: a pre-tokenizer or tokenizer that is not known for certain is refused; a near miss would only spoil answers.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from engine.checkpoint.info import CheckpointInfo
from engine.vocab_pretokenizers import PRE_TOKENIZERS


class VocabError(ValueError):
    """A tokenizer that cannot be read. The message names the file, what was found, and the remedy."""


class _TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as far as it matters here."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


_PREFIX = "tokenizer.ggml."
_SPACE = "▁"  # SentencePiece's visible space
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
# Phi 3's tokens swallow the white space behind them, all but these. GGUF has no key for it.
_PHI3_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")


class _Tables:
    """The vocabulary's arrays, checked to belong together."""

    def __init__(self, info: CheckpointInfo) -> None:
        self._info = info
        self.texts: list[str] = self._array("tokens", str)
        self.types: list[int] = self._array("token_type", int, [_TokenType.NORMAL] * len(self.texts))
        self.ids = {text: token_id for token_id, text in enumerate(self.texts)}
        if len(self.types) != len(self.texts):
            raise self.fail("token_type", f"has {len(self.types)} entries for {len(self.texts)} tokens")
        if len(self.ids) != len(self.texts):
            raise self.fail("tokens", "holds the same token twice")

    def fail(self, key: str, problem: str, remedy: str = "get another file of this model") -> VocabError:
        return VocabError(f"{self._info.path}: key {_PREFIX}{key} {problem}; {remedy}")

    def get(self, key: str, default: Any = None) -> Any:
        return self._info.metadata.get(_PREFIX + key, default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"is {value!r}, expected true or false")
        return value

    def token(self, key: str) -> str | None:
        """The text of the token whose id is stored under `key`."""
        token_id = self.get(key)
        if token_id is None:
            return None
        if type(token_id) is not int or not 0 <= token_id < len(self.texts):
            raise self.fail(key, f"is {token_id!r}, outside the vocabulary of {len(self.texts)}")
        return self.texts[token_id]

    def unknown(self) -> str | None:
        """The token for text that no other can spell."""
        named = self.token("unknown_token_id")
        kinds = zip(self.texts, self.types, strict=True)
        return named or next((text for text, kind in kinds if kind == _TokenType.UNKNOWN), None)

    def swallows_space(self, text: str) -> bool:
        """Whether white space behind this special token goes with it."""
        is_phi3 = self._info.metadata.get("general.architecture") == "phi3" and self.get("model") == "llama"
        return is_phi3 and text not in _PHI3_KEEPS_SPACE

    def merges(self) -> list[tuple[str, str]]:
        pairs = []
        for merge in self._array("merges", str):
            left, space, right = merge.partition(" ")
            if not (space and {left, right, left + right} <= self.ids.keys()):
                raise self.fail("merges", f"holds {merge!r}, which does not join two tokens to a third")
            pairs.append((left, right))
        return pairs

    def scores(self) -> list[float]:
        scores: list[float] = self._array("scores", float)
        if len(scores) != len(self.texts):
            raise self.fail("scores", f"has {len(scores)} entries for {len(self.texts)} tokens")
        return scores

    def _array(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.get(key, default)
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self.fail(key, f"is missing or not a list of {kind.__name__}")
        return value


def convert_gguf_tokenizer(info: CheckpointInfo) -> Tokenizer:
    """The tokenizer that the GGUF file `info` describes."""
    model = info.metadata.get(f"{_PREFIX}model")
    if model not in _BUILDERS:
        raise VocabError(
            f"{info.path}: key {_PREFIX}model is {model!r}; known are {', '.join(_BUILDERS)}: use a checkpoint with a "
            "tokenizer.json"
        )
    tables = _Tables(info)
    tokenizer, begins_with_bos = _BUILDERS[model](tables)
    _add_tokens(tokenizer, tables)
    _add_template(tokenizer, tables, begins_with_bos)
    return tokenizer


def _byte_level(tables: _Tables) -> tuple[Tokenizer, bool]:
    name = tables.get("pre")
    if name not in PRE_TOKENIZERS:
        raise tables.fail(
            "pre",
            f"is {name!r}; known pre-tokenizers are {', '.join(PRE_TOKENIZERS)}",
            "use a file made by a current converter, or a checkpoint with a tokenizer.json",
        )
    rule = PRE_TOKENIZERS[name]
    tokenizer = Tokenizer(BPE(tables.ids, tables.merges(), ignore_merges=rule.whole_words))
    tokenizer.pre_tokenizer = rule.build()
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.begins_with_bos


def _sentencepiece(tables: _Tables) -> tuple[Tokenizer, bool]:
    """A character that no token spells becomes its bytes; without tokens for these, the unknown token."""
    unknown = tables.unknown()
    missing = _BYTE_TOKENS - tables.ids.keys()
    if missing and unknown is None:
        raise tables.fail("tokens", f"lacks {min(missing)}, and there is no unknown token: some text would be lost")
    merges = _merges_from_scores(tables)
    tokenizer = Tokenizer(BPE(tables.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    visible_spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if tables.flag("add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), visible_spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = visible_spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer, True


def _merges_from_scores(tables: _Tables) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best: the same as merges in falling order of score."""
    scores, ids = tables.scores(), tables.ids
    pieces = {text: token_id for text, token_id in ids.items() if tables.types[token_id] == _TokenType.NORMAL}
    ranked = []
    for text, token_id in pieces.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in pieces and right in pieces:
                ranked.append((-scores[token_id], token_id, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_tokens(tokenizer: Tokenizer, tables: _Tables) -> None:
    """Declare the tokens that are found in text before anything else; they keep their ids."""
    special, plain = [], []
    for text, kind in zip(tables.texts, tables.types, strict=True):
        if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN):
            special.append(AddedToken(text, special=True, normalized=False, rstrip=tables.swallows_space(text)))
        elif kind == _TokenType.USER_DEFINED:
            plain.append(AddedToken(text, special=False, normalized=False, rstrip=tables.swallows_space(text)))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_template(tokenizer: Tokenizer, tables: _Tables, begins_with_bos: bool) -> None:
    before = ["bos_token_id"] if tables.flag("add_bos_token", begins_with_bos) else []
    after = ["eos_token_id"] if tables.flag("add_eos_token", False) else []
    texts = {key: text for key in before + after if (text := tables.token(key)) is not None}
    if len(texts) < len(before + after):
        raise tables.fail((before + after)[0], "is missing, though the tokenizer adds this token")
    if texts:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*(texts[key] for key in before), "$A", *(texts[key] for key in after)],
            special_tokens=[(text, tables.ids[text]) for text in texts.values()],
        )


_BUILDERS: dict[str, Callable[[_Tables], tuple[Tokenizer, bool]]] = {"gpt2": _byte_level, "llama": _sentencepiece}
