"""Thoughts in conversations: kept apart from the answer, live and after a reload, told to templates that want them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.harness import Client, give_templates, make_home, make_settings, serving

TURN = "{# <think> #}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
REMEMBERS = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
TEMPLATES = {
    "forgetful": f"{{% for m in messages %}}{TURN}{{% endfor %}}{OPENING}",
    "mindful": f"{{% for m in messages %}}{REMEMBERS}{TURN}{{% endfor %}}{OPENING}",
    "opener": f"{{% for m in messages %}}{TURN}{{% endfor %}}{OPENING.replace('{% endif %}', '<think>{% endif %}')}",
}
THOUGHTS, ANSWER = "Is it 3 < 4?\n\nIt is. 🦊", "Yes: **it is**."
SAID = f"SAY«<think>\n{THOUGHTS}\n</think>\n\n{ANSWER}»"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = give_templates(make_home(tmp_path_factory.mktemp("thoughts"), "tiny", *TEMPLATES), TEMPLATES)
    with serving(make_settings(home)) as client:
        for model in ("tiny", *TEMPLATES):
            assert client.load(model)["state"] == "succeeded"
        yield client


def ask(client: Client, content: str, model: str, conversation: dict[str, Any] | None = None) -> dict[str, Any]:
    """The conversation with an answer begun; a new one unless it is given."""
    conversation = conversation or client.post("/api/conversations").json()
    body = {"version": conversation["version"], "content": content, "model_id": model}
    started = client.post(f"/api/conversations/{conversation['id']}/generate", json=body)
    assert started.status_code == 202, started.text
    return conversation


def get(client: Client, conversation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/conversations/{conversation['id']}").json()
    return found


def finished(client: Client, conversation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.until(lambda: c if not (c := get(client, conversation))["generating"] else None)
    return found


@pytest.mark.parametrize(
    ("model", "said"),
    [("forgetful", SAID), ("mindful", SAID), ("opener", SAID.replace("<think>\n", ""))],
)
def test_thoughts_are_kept_apart_from_the_answer(client: Client, model: str, said: str) -> None:
    answer = finished(client, ask(client, said, model))["messages"][-1]
    assert (answer["reasoning_content"], answer["content"]) == (THOUGHTS, ANSWER)
    assert (answer["state"], answer["finish_reason"]) == ("complete", "stop")
    assert 0 <= answer["stats"]["reasoning_s"] <= answer["stats"]["e2e_s"]


def test_without_thoughts_there_are_none(client: Client) -> None:
    answer = finished(client, ask(client, "SAY«Plain.»", "forgetful"))["messages"][-1]
    assert (answer["reasoning_content"], answer["content"]) == ("", "Plain.")
    assert answer["stats"]["reasoning_s"] is None


def test_a_template_that_shows_no_thoughts_has_no_parser(client: Client) -> None:
    answer = finished(client, ask(client, "SAY«<think>Hm.</think>Yes.»", "tiny"))["messages"][-1]
    assert (answer["reasoning_content"], answer["content"]) == ("", "<think>Hm.</think>Yes.")


def test_pieces_of_both_add_up_on_the_live_topic_and_after_a_reload(client: Client) -> None:
    conversation = client.post("/api/conversations").json()
    topic = f"conversation:{conversation['id']}"
    texts = {"message.reasoning_delta": "", "message.delta": ""}
    with client.live(topic) as socket:
        ask(client, f"SLOW {SAID}", "forgetful", conversation)
        while (data := json.loads(socket.recv(timeout=30))["data"])["type"] != "message.done":
            if data["type"] in texts:
                assert data["offset"] == len(texts[data["type"]])
                texts[data["type"]] += data["text"]
                now = get(client, conversation)["messages"][-1]
                assert now["reasoning_content"].startswith(texts["message.reasoning_delta"])
                assert now["content"].startswith(texts["message.delta"])
    assert list(texts.values()) == [THOUGHTS, ANSWER]
    assert (data["message"]["reasoning_content"], data["message"]["content"]) == (THOUGHTS, ANSWER)


def test_stopped_within_its_thoughts_it_keeps_them(client: Client) -> None:
    conversation = ask(client, "SLOW ENDLESS SAY«<think>Well, let me see.»", "forgetful")
    client.until(lambda: get(client, conversation)["messages"][-1]["reasoning_content"])
    assert client.post(f"/api/conversations/{conversation['id']}/stop").status_code == 202
    answer = finished(client, conversation)["messages"][-1]
    assert (answer["state"], answer["content"]) == ("interrupted", "")
    assert answer["reasoning_content"]
    assert "Well, let me see.".startswith(answer["reasoning_content"][:17])
    assert answer["stats"]["reasoning_s"] > 0


def test_an_unfinished_mark_is_not_lost(client: Client) -> None:
    answer = finished(client, ask(client, "SAY«<think>So</thi»", "forgetful"))["messages"][-1]
    assert (answer["reasoning_content"], answer["content"]) == ("So</thi", "")


@pytest.mark.parametrize(("model", "is_told"), [("forgetful", False), ("mindful", True)])
def test_later_turns_tell_thoughts_only_to_templates_that_want_them(client: Client, model: str, is_told: bool) -> None:
    conversation = finished(client, ask(client, SAID, model))
    finished(client, ask(client, "And now?", model, conversation))
    turns = [
        {"role": "user", "content": SAID},
        {"role": "assistant", "content": ANSWER, **({"reasoning_content": THOUGHTS} if is_told else {})},
        {"role": "user", "content": "And now?"},
    ]
    expected = client.post("/tokenize", json={"model": model, "messages": turns}).json()["count"]
    answer = get(client, conversation)["messages"][-1]
    assert answer["stats"]["num_prompt_tokens"] == expected


def test_thoughts_survive_the_end_of_the_server(tmp_path: Path) -> None:
    home = give_templates(make_home(tmp_path, "forgetful"), {"forgetful": TEMPLATES["forgetful"]})
    with serving(make_settings(home)) as client:
        client.load("forgetful")
        conversation = ask(client, "SLOW ENDLESS SAY«<think>Well, let me see.»", "forgetful")
        client.until(lambda: len(get(client, conversation)["messages"][-1]["reasoning_content"]) > 3)
    with serving(make_settings(home)) as client:
        answer = get(client, conversation)["messages"][-1]
    assert (answer["state"], answer["content"]) == ("interrupted", "")
    assert answer["reasoning_content"]
    assert "Well, let me see.".startswith(answer["reasoning_content"][:17])
