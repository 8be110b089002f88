"""Conversations as files: what was exported comes back; what is no conversation is refused, with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.conversation_files import exported, imported
from app.conversation_schemas import MAX_IMPORTED_MESSAGES
from app.errors import ApiError
from db.rows import ConversationRow, MessageRow
from tests.app.harness import Client, make_home, make_settings, serving

AWKWARD = "A line.\n\n<!-- pizarra:user -->\nnot a turn\n\\<!-- pizarra:assistant -->\n```\ncode\n```\n\n"


def message(name: str, parent: str | None, role: str, content: str, **more: Any) -> MessageRow:
    return MessageRow(name, "c", parent, role, content, "complete", 5.0, **more)


MESSAGES = [
    message("q1", None, "user", AWKWARD, attachments=[{"name": "a.txt", "text": "alpha\n```\n"}]),
    message("a1", "q1", "assistant", AWKWARD, reasoning_content="Hm.", stats={"seed": 7}, model_id="tiny"),
    message("a2", "q1", "assistant", "Two.", finish_reason="stop", model_id="tiny"),
    message("q2", "a1", "user", "And?"),
    message("a3", "q2", "assistant", "  So. ", model_id="other"),
]
ROW = ConversationRow("c", "Títle", "tiny", "Be\nkind.", {"top_k": 3}, "a3", 4, 1.0, 2.0, 5, False, "work")


def test_json_brings_back_every_branch_text_and_figure() -> None:
    found = imported(exported(ROW, MESSAGES, "json"))
    assert (found.title, found.folder, found.system_prompt) == ("Títle", "work", "Be\nkind.")
    assert (found.sampling, found.model_id) == ({"top_k": 3}, "tiny")
    rows = found.rows("new")
    by_content = {row.id: place for place, row in enumerate(rows)}
    assert [row.parent_id and by_content[row.parent_id] for row in rows] == [None, 0, 0, 1, 3]
    assert not {row.id for row in rows} & {each.id for each in MESSAGES}
    assert found.active_leaf_id(rows) == rows[4].id
    for row, was in zip(rows, MESSAGES, strict=True):
        for name in ("role", "content", "reasoning_content", "stats", "model_id", "attachments", "finish_reason"):
            assert getattr(row, name) == getattr(was, name)
        assert (row.conversation_id, row.created_at) == ("new", 5.0)


def test_markdown_brings_back_the_branch_that_was_shown() -> None:
    text = exported(ROW, MESSAGES, "md")
    found = imported(text)
    assert (found.title, found.system_prompt, found.model_id) == ("Títle", "Be\nkind.", "other")
    rows = found.rows("new")
    assert [row.role for row in rows] == ["user", "assistant", "user", "assistant"]
    question = "a.txt:\n````\nalpha\n```\n````\n\n" + AWKWARD
    assert [row.content for row in rows] == [question, AWKWARD, "And?", "  So. "]
    assert "Two." not in text


def test_a_list_of_messages_is_taken_too() -> None:
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A", "refusal": None},
    ]
    for document in (turns, {"messages": turns, "model": "any"}):
        found = imported(json.dumps(document))
        assert (found.title, found.system_prompt) == ("Q", "S")
        assert [(row.role, row.content) for row in found.rows("c")] == [("user", "Q"), ("assistant", "A")]


def changed(**fields: Any) -> str:
    document = json.loads(exported(ROW, MESSAGES, "json"))
    for path, value in fields.items():
        *way, last = path.split("__")
        at = document
        for step in way:
            at = at[int(step) if step.isdigit() else step]
        at[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not usable JSON"),
        ("[" * 100_000, "not usable JSON"),
        ("Hello.", "none of the marks"),
        ("{}", "neither an exported chat nor a list"),
        ("[]", "no messages"),
        ('[{"role": "assistant", "content": "A"}]', "messages.0: has the role 'assistant' where 'user'"),
        ('[{"role": "user", "content": ["A"]}]', "messages.0: needs a role"),
        (changed(messages__3__parent_id="zz"), "messages.3.parent_id"),
        (changed(messages__2__id="a1"), "messages.2.id"),
        (changed(messages__2__role="user"), "messages.2.role"),
        (changed(sampling__top_p=7), "sampling.top_p"),
        (changed(version=2), "version"),
        (changed(messages__0__content="\ud800"), "messages.0.content"),
    ],
)
def test_what_is_no_conversation_is_refused(text: str, told: str) -> None:
    with pytest.raises(ApiError) as caught:
        imported(text)
    assert caught.value.status == 400
    assert told in caught.value.detail
    assert "exported" in (caught.value.remedy or "")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("files")))) as client:
        yield client


def test_over_the_api_a_chat_comes_back_as_it_was(client: Client) -> None:
    text = exported(ROW, MESSAGES, "json")
    made = client.post("/api/conversations/import", json={"text": text})
    assert made.status_code == 201, made.text
    assert (made.json()["folder"], made.json()["title"], len(made.json()["messages"])) == ("work", "Títle", 5)
    other = client.post("/api/conversations/import", json={"text": text, "folder": "elsewhere"}).json()
    assert other["folder"] == "elsewhere"
    answer = client.get(f"/api/conversations/{made.json()['id']}/export", params={"format": "json"})
    assert answer.headers["content-disposition"].endswith("filename*=UTF-8''T%C3%ADtle.json")
    again, was = imported(answer.text), imported(text)
    assert [each.content for each in again.messages] == [each.content for each in was.messages]
    assert again.leaf == was.leaf == 4
    shown = client.get(f"/api/conversations/{made.json()['id']}/export", params={"format": "md"})
    assert shown.headers["content-type"].startswith("text/markdown")
    assert shown.text == exported(ROW, MESSAGES, "md")
    assert client.get("/api/conversations/none/export").status_code == 404
    assert (
        client.post("/api/conversations/import", json={"text": "Hi"}).json()["detail"].startswith("the file has none")
    )


def test_a_file_of_too_many_messages_is_refused_in_every_form() -> None:
    turns = [{"role": ("user", "assistant")[place % 2], "content": "x"} for place in range(MAX_IMPORTED_MESSAGES + 2)]
    marked = "\n\n".join(f"<!-- pizarra:{turn['role']} -->\nx" for turn in turns)
    for text in (json.dumps(turns), marked):
        with pytest.raises(ApiError, match="no more than"):
            imported(text)
