"""The texts: the same keys and placeholders in each language, none missing, none dead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ui.i18n import languages, text, texts

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*sorted((ROOT / "assets/js").rglob("*.js")), *sorted((ROOT / "ui").rglob("*.py"))]
NAME = re.compile(r"\"([a-z0-9_]+)\"|\b([a-z0-9_]+):")  # a string, or the key of an object
FAMILY = re.compile(r"\bt\(\s*`([a-z0-9_]*)\$\{[^}]*\}([a-z0-9_]*)`|word\(\s*\"([a-z_]+)\"")
CALL = re.compile(r"\b(?:t|text)\(\s*\"([a-z0-9_]+)\"")


def _code() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)


def _families() -> list[re.Pattern[str]]:
    """Keys built at run time: `tile_${name}_spark` and word("state", ...) each stand for many."""
    found = []
    for match in FAMILY.finditer(_code()):
        before, after, prefix = match.groups()
        found.append(re.compile(f"{prefix}_.+" if prefix else f"{before}.+{after}"))
    return found


def test_there_is_english_and_spanish() -> None:
    assert set(languages()) >= {"en", "es"}


@pytest.mark.parametrize("language", languages())
def test_a_language_has_every_key_and_every_placeholder(language: str) -> None:
    assert texts(language).keys() == texts("en").keys()
    for key, english in texts("en").items():
        placeholders = re.findall(r"\{(\w+)\}", english)
        assert sorted(placeholders) == sorted(re.findall(r"\{(\w+)\}", texts(language)[key])), key


def test_every_key_that_the_code_names_exists() -> None:
    missing = {key for key in CALL.findall(_code()) if key not in texts("en")}
    assert not missing
    for family in _families():
        assert any(family.fullmatch(key) for key in texts("en")), family.pattern


def test_no_text_is_dead() -> None:
    named = {name for match in NAME.findall(_code()) for name in match}
    families = _families()
    dead = [key for key in texts("en") if key not in named and not any(f.fullmatch(key) for f in families)]
    assert not dead


def test_an_unknown_key_is_refused_when_the_page_is_built() -> None:
    with pytest.raises(KeyError, match="no_such_text"):
        text("no_such_text")
