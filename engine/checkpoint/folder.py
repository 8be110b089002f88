"""Reads the small JSON files of a Hugging Face model folder that more than one reader needs.

Owns the forms in which such folders spell a chat template, end-of-text ids and special tokens. Knows no weights.
Invariant: an absent file is None or empty; a present but unreadable one is an error that names it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.checkpoint.info import CheckpointError

_MAX_JSON_BYTES = 64 * 1024 * 1024


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`."""
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: {size} bytes is too much for a settings file; is it the right file?")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not valid JSON ({error}); download the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(value).__name__}; download the file again")
    return value


def read_optional_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or an empty one where there is no such file."""
    return read_json_object(path) if path.is_file() else {}


def read_chat_template(folder: Path) -> str | None:
    """The folder's chat template: chat_template.jinja, else the entry (or the one named default) of a JSON file."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{jinja}: cannot be read ({error})") from error
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = _choose_template(folder / name, read_optional_object(folder / name).get("chat_template"))
        if template is not None:
            return template
    return None


def _choose_template(path: Path, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    named: dict[str, str] = {}
    entries = value if isinstance(value, list) else []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
            named[entry["name"]] = entry["template"]
    if "default" in named:
        return named["default"]
    if len(named) == 1:
        return next(iter(named.values()))
    raise CheckpointError(
        f"{path}: chat_template has no entry named default (found: {', '.join(named) or 'none'}); "
        "put the wanted one into chat_template.jinja"
    )


def read_eos_token_ids(folder: Path, fallback: Any = None) -> tuple[int, ...]:
    """End-of-text ids: generation_config.json's, else `fallback` (config.json's). A whole number, a list, or none."""
    path = folder / "generation_config.json"
    value = read_optional_object(path).get("eos_token_id")
    if value is None:
        path, value = folder / "config.json", fallback
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(item) is int and item >= 0 for item in ids):
        raise CheckpointError(f"{path}: eos_token_id is {value!r}, expected a token id or a list of them")
    return tuple(dict.fromkeys(ids))


def read_special_token(folder: Path, name: str) -> str | None:
    """The text of `bos_token` or `eos_token`, written as text or as an object with `content`."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        value = read_optional_object(folder / file).get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            return value
    return None
