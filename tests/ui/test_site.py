"""The site on a bare app: every page and asset is served, from here alone, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ui.pages import PAGES, page_path
from ui.shell import pane
from ui.site import mount_site
from ui.static import SERVED_FOLDERS

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SCRIPTS = sorted((ASSETS / "js").glob("*.js"))
MAX_LINES = 400
HARMLESS_URLS = re.compile(r"https?://(www\.w3\.org/|127\.0\.0\.1|localhost)")


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = FastAPI()
    app.add_api_route("/api/models", lambda: {"models": []})
    with TestClient(mount_site(app)) as client:
        yield client


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_served_with_our_styles(client: TestClient, name: str) -> None:
    answer = client.get(page_path(name))
    assert answer.status_code == 200
    assert "/assets/css/tokens.css" in answer.text
    assert "/assets/js/frame.js" in answer.text


def test_the_apps_own_routes_win(client: TestClient) -> None:
    assert client.get("/api/models").json() == {"models": []}


@pytest.mark.parametrize("folder", SERVED_FOLDERS)
def test_every_asset_is_served_and_revalidated(client: TestClient, folder: str) -> None:
    paths = [path for path in (ASSETS / folder).iterdir() if path.is_file()]
    assert paths
    for path in paths:
        answer = client.get(f"/assets/{folder}/{path.name}")
        assert answer.status_code == 200, path
        assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/assets/catalog.toml", "/assets/js/../catalog.toml", "/assets/js/%2e%2e/catalog.toml"]
)
def test_what_lies_beside_the_served_folders_is_not(client: TestClient, path: str) -> None:
    assert "sha256" not in client.get(path).text


def test_plotly_comes_from_the_installed_package_and_is_kept(client: TestClient) -> None:
    answer = client.get("/assets/plotly.min.js")
    assert answer.status_code == 200
    assert answer.headers["content-encoding"] == "gzip"
    assert "plotly.js" in answer.text[:300]
    again = client.get("/assets/plotly.min.js", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    plain = client.get("/assets/plotly.min.js", headers={"accept-encoding": "identity"})
    assert plain.text == answer.text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_only_what_exists_and_stays_short(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_LINES
    assert source.startswith("// ")
    for target in re.findall(r"from \"([^\"]+)\"", source):
        assert target.startswith("./")
        assert (script.parent / target).is_file(), f"{script.name} imports {target}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_turns_text_into_markup(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function", source
    )


def test_nothing_names_another_host() -> None:
    for folder in SERVED_FOLDERS:
        for path in (ASSETS / folder).iterdir():
            urls = re.findall(r"https?://[\w.-]+", path.read_text(encoding="utf-8"))
            assert [url for url in urls if not HARMLESS_URLS.match(url + "/")] == [], path


def test_every_icon_that_is_named_exists() -> None:
    source = "\n".join(script.read_text(encoding="utf-8") for script in SCRIPTS)
    named = re.findall(r"(?:icon\(|iconButton\(|iconName:)\s*\"([a-z]+)\"", source)
    assert named
    assert [name for name in sorted(set(named)) if not (ASSETS / "icons" / f"{name}.svg").is_file()] == []


def test_a_pane_takes_no_module_name_that_could_be_code() -> None:
    with pytest.raises(ValueError, match="pane module"):
        pane("x'); alert(1); ('")
