"""The registry of pages: each entry leads to a builder, has its icon and its name in every language."""

from __future__ import annotations

from pathlib import Path

import pytest

from ui.i18n import languages, texts
from ui.pages import PAGES, page_path, resolve_page
from ui.static import ASSETS
from ui.theme import modules_of, page_head

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_resolves_and_can_be_shown(name: str) -> None:
    assert callable(resolve_page(name))
    assert (ROOT / "assets/icons" / f"{name}.svg").is_file()
    assert (ROOT / "assets/js" / f"{name}.js").is_file()
    assert all(f"nav_{name}" in texts(language) for language in languages())


def test_the_first_page_is_the_front_page() -> None:
    paths = [page_path(name) for name in PAGES]
    assert paths[0] == "/"
    assert len(set(paths)) == len(PAGES)


def test_an_unknown_page_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="overview, chat, playground, models, monitor"):
        resolve_page("nowhere")


def test_a_page_loads_ahead_what_it_runs_and_no_other_pages_scripts() -> None:
    chat = modules_of("chat")
    assert {"frame", "header", "chat", "chat_tree", "dom"} <= set(chat)
    assert not {"models", "monitor", "settings"} & set(chat)
    head = page_head()
    for page in PAGES:
        assert f'"{page_path(page)}": ' in head
        assert all((ASSETS / "js" / f"{name}.js").is_file() for name in modules_of(page))
