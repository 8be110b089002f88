"""Where text is cut before byte-level BPE, by the names that llama.cpp gives the rules in `tokenizer.ggml.pre`.

Owns the expressions and what goes with a name: composed accents, whole words, a BOS in front. Knows no vocabulary.
Invariant: each rule is the one in the tokenizer.json of the model that the name was made for; where llama.cpp
rewrote an expression for its own matcher, the original stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One rule.

    cuts: each expression cuts what the one before it left whole; what it matches and what lies between are pieces.
    composes: accents are joined to their letters first (NFC).
    whole_words: a piece that is a token is taken as such, whatever the merges say.
    begins_with_bos: what holds where the file does not say.
    """

    cuts: tuple[str, ...]
    composes: bool = False
    whole_words: bool = False
    begins_with_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The rule for the `tokenizers` library, bytes spelled as GPT-2 does."""
        cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in self.cuts]
        spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, spelling])


def _words(digits: str, contractions: str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|") -> str:
    """Llama 3's expression and its kin, which differ in how many digits stay together."""
    return (
        rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _cased_words(digits: str, contractions: str = "") -> str:
    """A word ends where a small letter is followed by a capital; `contractions` may hang on it."""
    before, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = f"{before}{upper}*{lower}+{contractions}|{before}{upper}+{lower}*{contractions}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_DIGIT, _UP_TO_THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SEED_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_MARKS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
# Letters with case, as DeepSeek's tokenizer lists them: neither \p{L} nor any Unicode version's cased letters.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)

_GPT2 = PreTokenizer((_GPT2_WORDS,))
_GPT2_SINGLE_DIGITS = PreTokenizer((_DIGIT, _GPT2_WORDS))
_LLAMA3 = PreTokenizer((_words(_UP_TO_THREE_DIGITS),), whole_words=True, begins_with_bos=True)
_CL100K = PreTokenizer((_words(_UP_TO_THREE_DIGITS),))
_QWEN2 = PreTokenizer((_words(_DIGIT),), composes=True)
_GPT4O = PreTokenizer((_cased_words(_UP_TO_THREE_DIGITS, "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    # GPT-2's words
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "gigachat": _GPT2,
    "a.x-4.0": _GPT2,
    "mellum": _GPT2,
    "trillion": _GPT2,
    "granite-docling": _GPT2,
    "mpt": PreTokenizer((_GPT2_WORDS,), composes=True),  # GPT-NeoX's tokenizer, which composes
    "olmo": PreTokenizer((_GPT2_WORDS,), composes=True),  # the same
    # the same after every digit was set apart
    "smollm": _GPT2_SINGLE_DIGITS,
    "starcoder": _GPT2_SINGLE_DIGITS,
    "refact": _GPT2_SINGLE_DIGITS,  # Granite 3's name too
    "codeshell": _GPT2_SINGLE_DIGITS,
    "exaone": _GPT2_SINGLE_DIGITS,
    "minerva-7b": _GPT2_SINGLE_DIGITS,
    "command-r": PreTokenizer((_DIGIT, _GPT2_WORDS), composes=True),
    # Llama 3 and its kin
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "smaug-bpe": PreTokenizer((_words(_UP_TO_THREE_DIGITS),), whole_words=True),  # Llama 3's vocabulary: SmolLM3
    "dbrx": _CL100K,  # OLMo 2 and Phi 4
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "kormo": _QWEN2,
    "seed-coder": PreTokenizer((_SEED_WORDS,)),
    # words that end where capitals begin
    "tekken": PreTokenizer((_cased_words(_DIGIT),), whole_words=True, begins_with_bos=True),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    # DeepSeek
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", rf"\s?[{_DEEPSEEK_MARKS}]+", r"\s+$", _HAN_AND_HANGUL, _DIGIT)
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, _DIGIT)),
    "deepseek-v3": PreTokenizer((_UP_TO_THREE_DIGITS, _HAN_AND_KANA, _DEEPSEEK3_WORDS)),
}
