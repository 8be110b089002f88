"""A chat template is tried when its model is loaded: what it does not take is known before the first chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.template_check import ChatSupport, chat_support
from engine.vocab import Vocab, load_vocab
from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.engine.tiny_checkpoint import CHAT_TEMPLATE, tiny_llama_checkpoint

EACH = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}" + EACH
DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ONE_TURN = "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}" + EACH
TOOLS = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + EACH.replace("\n", "{{ m.tool_calls }}\n")
UNKNOWN_TOOLS = "{% if tools %}say TOOL: name{% endif %}" + EACH
BROKEN: list[tuple[str | None, str]] = [
    (None, "the model has no chat template"),
    ("{% for %}", "does not parse: line 1"),
    ("{{ raise_exception('never') }}", "refuses these messages: never"),
    ("{{ messages[0].content.shout() }}", "has no attribute 'shout'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("templates") / MODEL)


def vocab_with(folder: Path, template: str | None) -> Vocab:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}), encoding="utf-8")
    return load_vocab(folder)


def support(folder: Path, template: str | None) -> ChatSupport:
    return chat_support(vocab_with(folder, template))


def test_a_template_that_takes_everything_leaves_nothing_to_tell(folder: Path) -> None:
    for template in (CHAT_TEMPLATE, EACH, TOOLS):
        found = support(folder, template)
        assert found.encoder is not None
        assert (found.error, found.settings) == ("", ())


@pytest.mark.parametrize(("template", "says"), BROKEN)
def test_what_is_wrong_with_a_template_is_said(folder: Path, template: str | None, says: str) -> None:
    found = support(folder, template)
    assert found.encoder is None
    assert says in found.error
    assert "chat_template.jinja" in found.error, "the remedy"
    [setting] = found.settings
    assert (setting.name, setting.effective, setting.reason) == ("chat_template", "none", found.error)


@pytest.mark.parametrize(
    ("template", "name", "says"),
    [
        (DROPS_SYSTEM.replace("system", "user"), "chat_template:user", "a conversation (user): 'Which"),
        (NO_SYSTEM, "chat_template:system", "no system role here"),
        (DROPS_SYSTEM, "chat_template:system", "leaves out part of a conversation (system, user)"),
        (ONE_TURN, "chat_template:turns", "one turn only"),
        (TOOLS.replace("| tojson", "[1]"), "chat_template:tools", "leaves out part of a conversation (user)"),
        (UNKNOWN_TOOLS, "chat_template:tools", "a form that is not known"),
    ],
)
def test_what_a_template_does_not_take_is_said(folder: Path, template: str, name: str, says: str) -> None:
    found = support(folder, template)
    assert found.encoder is not None
    [setting] = found.settings
    assert setting.name == name
    assert says in setting.reason


# ---- over HTTP ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    models: dict[str, str | None] = {"none": None, "broken": "{{ messages[0].content.shout() }}", "shy": NO_SYSTEM}
    home = make_home(tmp_path_factory.mktemp("served"), *models)
    for name, template in models.items():
        vocab_with(home / "models" / name, template)
    with serving(make_settings(home)) as client:
        for name in models:
            job = client.load(name)
            assert job["state"] == "succeeded", job
        yield client


def settings_of(client: Client, model: str) -> list[dict[str, Any]]:
    engine = next(each for each in client.get("/api/engines").json()["engines"] if each["model_id"] == model)
    found: list[dict[str, Any]] = engine["effective_settings"]
    return found


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [("none", "no_chat_template", "has no chat template"), ("broken", "chat_template_error", "no attribute 'shout'")],
)
def test_a_model_that_cannot_chat_loads_and_says_so(client: Client, model: str, code: str, says: str) -> None:
    [setting] = settings_of(client, model)
    assert says in setting["reason"]
    messages = [{"role": "user", "content": "hi"}]
    response = client.post("/v1/chat/completions", json={"model": model, "messages": messages})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == code
    assert says in error["message"]
    assert "/v1/completions" in error["message"]
    completion = client.post("/v1/completions", json={"model": model, "prompt": "hi", "max_tokens": 3})
    assert completion.status_code == 200


def test_a_model_that_takes_no_system_message_chats_and_says_so(client: Client) -> None:
    [setting] = settings_of(client, "shy")
    assert (setting["name"], setting["requested"]) == ("chat_template:system", "system messages")
    user, system = ({"role": role, "content": "hi"} for role in ("user", "system"))
    assert client.post("/v1/chat/completions", json={"model": "shy", "messages": [user]}).status_code == 200
    refused = client.post("/v1/chat/completions", json={"model": "shy", "messages": [system, user]})
    assert refused.status_code == 400
    assert "no system role here" in refused.json()["error"]["message"]
