"""The pieces of a model's chat template between which the texts of a conversation stand, as token ids.

Owns the finding of the pieces: marks are rendered in the texts' places and the rendering is cut at them. Knows no
engine. Invariant: opening + user text + to_answer + answer + to_user + user text + ... is the rendered conversation,
but for merges of the tokenizer across the joints.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.train.prompts import compile_template, render
from engine.vocab import Vocab

_MARKS = ("QXQFIRSTQXQ", "QXQSECONDQXQ", "QXQTHIRDQXQ")  # letters alone: a template may strip anything else
_PLAIN = "\n\n"


@dataclass(frozen=True, slots=True)
class Turns:
    """opening: up to the first user text, with what the system is told. to_answer, to_user: from a user's text to the
    answer and from an answer to the next user text. has_template: False where plain text has to do."""

    opening: tuple[int, ...]
    to_answer: tuple[int, ...]
    to_user: tuple[int, ...]
    has_template: bool = False


def turns_of(vocab: Vocab, system: str = "") -> Turns:
    """The pieces with this system prompt; with the template's own where `system` is empty or not taken by it."""
    template = compile_template(vocab)
    if template is not None:
        user, assistant, again = _MARKS
        messages = [{"role": role, "content": mark} for role, mark in zip(_ROLES, _MARKS, strict=True)]
        for before in ([{"role": "system", "content": system}] if system else [], []):
            try:
                text = render(template, vocab, [*before, *messages])
            except Exception:  # a template is a program, and can raise anything
                continue
            if all(text.count(mark) == 1 for mark in _MARKS) and (not before or system in text):
                opening, rest = text.split(user)
                to_answer, rest = rest.split(assistant)
                to_user = rest.split(again)[0]
                return Turns(_ids(vocab, opening), _ids(vocab, to_answer), _ids(vocab, to_user), has_template=True)
    opening_ids = vocab.encode("", add_special_tokens=True)
    return Turns(tuple(opening_ids), _ids(vocab, _PLAIN), _ids(vocab, _PLAIN))


_ROLES = ("user", "assistant", "user")


def _ids(vocab: Vocab, text: str) -> tuple[int, ...]:
    return tuple(vocab.encode(text))
