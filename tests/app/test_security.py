"""Host, Origin, the API key, and where the server may listen."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from app.server import create_app
from app.settings import BindError, Settings
from tests.app.harness import Client, make_home, make_settings, serving

KEY = "a-key-of-this-test"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = make_settings(make_home(tmp_path_factory.mktemp("open")), allowed_hosts=["box.lan"])
    with serving(settings) as client:
        yield client


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("locked"))
    with serving(make_settings(home, api_key=SecretStr(KEY), host="0.0.0.0")) as client:
        yield client


def own_origin(client: Client) -> str:
    return str(client.base_url).rstrip("/")


@pytest.mark.parametrize("path", ["/health", "/api/models", "/v1/models", "/nothing", "/docs"])
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost@evil.example", "[::1"]
)
def test_a_foreign_host_is_refused_everywhere(client: Client, path: str, host: str) -> None:
    response = client.get(path, headers={"host": host})
    assert response.status_code == 403
    assert "PIZARRA_ALLOWED_HOSTS" in response.text


@pytest.mark.parametrize("host", ["localhost:7860", "127.0.0.1", "[::1]:7860", "BOX.lan", "box.lan:80"])
def test_known_hosts_are_served(client: Client, host: str) -> None:
    assert client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "http://[::1"]
)
def test_a_foreign_origin_is_refused_also_on_the_socket(client: Client, origin: str) -> None:
    response = client.post("/v1/completions", headers={"origin": origin}, json={"prompt": "x"})
    assert response.status_code == 403
    assert "error" in response.json()
    assert client.delete("/api/models/tiny", headers={"origin": origin}).status_code == 403
    url = own_origin(client).replace("http", "ws") + "/api/live"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, origin=Origin(origin), proxy=None).__enter__()
    assert refused.value.response.status_code == 403


def test_our_own_pages_are_served(client: Client) -> None:
    assert client.get("/api/models", headers={"origin": own_origin(client)}).status_code == 200
    with connect(
        own_origin(client).replace("http", "ws") + "/api/live", origin=Origin(own_origin(client)), proxy=None
    ) as live:
        live.send("{}")


@pytest.mark.parametrize("path", ["/proxy=http://10.0.0.1/", "/gradio_api/proxy=https://x.hf.space/"])
def test_the_proxy_route_of_gradio_is_closed(client: Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 403
    assert "no proxy" in response.text


@pytest.mark.parametrize("path", ["/api/models", "/v1/models", "/docs", "/openapi.json", "/nothing", "/ready"])
def test_with_a_key_nothing_is_open_without_it(locked: Client, path: str) -> None:
    response = locked.get(path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert locked.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert locked.get(path, headers={"authorization": f"Bearer {KEY}"}).status_code != 401
    assert locked.get(path, headers={"x-api-key": "wrong"}).status_code == 401
    assert locked.get(path, headers={"x-api-key": KEY}).status_code != 401


def test_the_socket_needs_the_key_too(locked: Client) -> None:
    url = own_origin(locked).replace("http", "ws") + "/api/live"
    with pytest.raises(InvalidStatus):
        connect(url, proxy=None).__enter__()
    with connect(url, additional_headers={"authorization": f"Bearer {KEY}"}, proxy=None) as socket:
        socket.send("{}")


def test_health_is_open_and_login_gives_a_session(locked: Client) -> None:
    assert locked.get("/health").status_code == 200
    page = locked.get("/", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    assert "password" in locked.get("/login").text
    wrong = locked.post("/login", data={"key": "wrong"})
    assert wrong.status_code == 401
    right = locked.post("/login", data={"key": KEY})
    assert right.status_code == 303
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert KEY not in cookie
    assert httpx.get(f"{own_origin(locked)}/api/models", cookies=right.cookies, trust_env=False).status_code == 200


def test_a_session_that_is_none_is_refused(locked: Client) -> None:
    for cookie in (b'pizarra_session="\xe9"', b"pizarra_session="):
        assert locked.get("/api/models", headers={b"cookie": cookie}).status_code == 401


@pytest.mark.parametrize("key", ["", "  "])
def test_a_blank_key_is_no_key(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIZARRA_API_KEY", key)
    assert Settings().api_key is None
    with pytest.raises(BindError):
        Settings(host="0.0.0.0").check_bind()


def test_on_a_wildcard_bind_any_address_but_no_foreign_name_is_served(locked: Client) -> None:
    assert locked.get("/health", headers={"host": "192.168.1.20:7860"}).status_code == 200
    assert locked.get("/health", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.20", "box.lan"])
def test_a_public_bind_without_a_key_is_refused(host: str) -> None:
    settings = Settings(host=host)
    with pytest.raises(BindError, match="PIZARRA_API_KEY"):
        create_app(settings)
    settings.model_copy(update={"api_key": SecretStr(KEY)}).check_bind()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_loopback_needs_no_key(host: str) -> None:
    Settings(host=host).check_bind()
