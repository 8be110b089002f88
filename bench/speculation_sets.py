"""The prompts that speculation is measured with: bench/prompts/*.toml, one set a file.

Owns the files' layout and how a prompt is put together and encoded. Knows nothing of engines. Invariant: every prompt
of a set is another text; a schema that is given is a JSON schema. The texts were written for this repository and are
under its licence.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.text import ChatTemplate
from engine.vocab import Vocab

FOLDER = Path(__file__).resolve().parent / "prompts"
TASKS = 2  # of each text
ORDER = ("open_chat", "summarise_quote", "code_edit", "json_extraction", "repeat_changes")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user says. begin: the answer's first words, given so that a very small model does what is asked for.
    schema: of the answer, as JSON; empty: it is free."""

    name: str
    text: str
    begin: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """copies: whether answers repeat much of their prompts. max_tokens: of an answer."""

    key: str
    title: str
    copies: bool
    max_tokens: int
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model takes it."""

    prompt: Prompt
    token_ids: tuple[int, ...]


def read_sets(keys: Sequence[str] = ORDER) -> list[PromptSet]:
    """These sets. ValueError names the file that is not as it should be."""
    return [_read(FOLDER / f"{key}.toml") for key in keys]


def encode(prompts: Sequence[Prompt], vocab: Vocab) -> list[EncodedPrompt]:
    """With the model's chat template, and the opening of the answer. ValueError where the model has none."""
    if vocab.chat_template is None:
        raise ValueError("the model has no chat template, and the prompt sets are written for a chat model")
    template = ChatTemplate(vocab.chat_template, bos_token=vocab.bos_token, eos_token=vocab.eos_token)
    return [EncodedPrompt(prompt, tuple(vocab.encode(_rendered(template, prompt)))) for prompt in prompts]


def _rendered(template: ChatTemplate, prompt: Prompt) -> str:
    return template.render([{"role": "user", "content": prompt.text}]) + prompt.begin


def _read(path: Path) -> PromptSet:
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.toml")))
        raise ValueError(f"no prompt set {path.stem!r}: known are {known}")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        texts = found["texts"]
        prompts = tuple(
            _prompt(text, (place + turn) % TASKS) for turn in range(TASKS) for place, text in enumerate(texts)
        )
        return PromptSet(path.stem, found["title"], found["copies"], found["max_tokens"], prompts)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def _prompt(text: dict[str, Any], index: int) -> Prompt:
    """Neighbours in a set have other texts, and their kinds of tasks alternate."""
    if len(text["tasks"]) != TASKS:
        raise ValueError(f"{text['name']!r} has {len(text['tasks'])} tasks, not {TASKS}")
    task = text["tasks"][index]
    schema = task.get("schema", "").strip()
    if schema:
        json.loads(schema)
    body = text.get("text", "").strip()
    whole = f"{task['ask']}\n\n{body}" if body else task["ask"]
    return Prompt(f"{text['name']} {index + 1}", whole, task.get("begin", ""), schema)
