"""Conversations: versions, the tree of messages, search, and that a stale tab overwrites nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from db.errors import NotFound, StaleVersion, StoreError
from db.rows import ConversationRow, MessageRow
from db.store import Store
from tests.db.clock import Clock


def _message(message_id: str, parent: str | None, role: str = "user", **more: str) -> MessageRow:
    content, state = more.get("content", message_id), more.get("state", "complete")
    return MessageRow(message_id, "c", parent, role, content, state, created_at=1.0)


@pytest.fixture
def conversation(store: Store) -> ConversationRow:
    return store.create_conversation("c", title="Trees", system_prompt="Be brief.", sampling={"top_k": 5}).result()


def test_a_new_conversation(store: Store, conversation: ConversationRow) -> None:
    assert (conversation.version, conversation.num_messages, conversation.generating) == (1, 0, False)
    assert conversation.sampling == {"top_k": 5}
    assert store.get_conversation("c") == conversation
    assert store.get_conversation("other") is None


def test_every_change_of_a_client_raises_the_version(store: Store, conversation: ConversationRow) -> None:
    patched = store.patch_conversation("c", 1, {"title": "Woods"}).result()
    assert (patched.title, patched.system_prompt, patched.version) == ("Woods", "Be brief.", 2)
    appended = store.append_messages("c", [_message("m1", None)], version=2).result()
    assert (appended.version, appended.active_leaf_id, appended.num_messages) == (3, "m1", 1)
    assert store.patch_conversation("c", 3, {"active_leaf_id": None}).result().active_leaf_id is None


def test_a_stale_version_changes_nothing(store: Store, conversation: ConversationRow) -> None:
    kept = store.patch_conversation("c", 1, {"title": "Woods"}).result()
    attempts: list[Callable[[], object]] = [
        lambda: store.patch_conversation("c", 1, {"title": "Stale"}).result(),
        lambda: store.append_messages("c", [_message("m1", None)], version=1).result(),
    ]
    for attempt in attempts:
        with pytest.raises(StaleVersion, match="reload it and try again") as caught:
            attempt()
        assert caught.value.current == 2
    assert store.get_conversation("c") == kept
    assert store.list_messages("c") == []


def test_streaming_writes_leave_the_version_alone(store: Store, conversation: ConversationRow) -> None:
    begun = store.append_messages(
        "c", [_message("q", None), _message("a", "q", "assistant", content="", state="streaming")], version=1
    ).result()
    assert begun.generating
    for text in ("Oak", "Oaks and pines"):
        assert store.update_message("a", {"content": text}).result().content == text
    stats = {"num_output_tokens": 3}
    done = store.update_message("a", {"state": "complete", "finish_reason": "stop", "stats": stats}).result()
    assert (done.content, done.state, done.stats, done.parent_id) == ("Oaks and pines", "complete", stats, "q")
    after = store.get_conversation("c")
    assert after is not None
    assert (after.version, after.generating) == (begun.version, False)
    assert store.get_message("a") == done


def test_messages_form_a_tree_oldest_first(store: Store, conversation: ConversationRow) -> None:
    store.append_messages("c", [_message("q", None), _message("a1", "q", "assistant")])
    store.append_messages("c", [_message("a2", "q", "assistant")])
    store.append_messages("c", [_message("edited", None), _message("a3", "edited", "assistant")])
    store.flush()
    found = [(message.id, message.parent_id) for message in store.list_messages("c")]
    assert found == [("q", None), ("a1", "q"), ("a2", "q"), ("edited", None), ("a3", "edited")]


def test_a_parent_must_be_in_the_conversation(store: Store, conversation: ConversationRow) -> None:
    store.create_conversation("other")
    store.append_messages("other", [MessageRow("far", "other", None, "user", "x", "complete", 1.0)])
    for parent in ("far", "nobody"):
        with pytest.raises(NotFound, match=f"message {parent} does not exist in conversation c"):
            store.append_messages("c", [_message("q", None), _message("a", parent)]).result()
    with pytest.raises(NotFound, match="message far does not exist"):
        store.patch_conversation("c", 1, {"active_leaf_id": "far"}).result()
    unchanged = store.get_conversation("c")
    assert unchanged is not None
    assert (unchanged.version, unchanged.num_messages) == (1, 0)


def test_an_id_is_used_once(store: Store, conversation: ConversationRow) -> None:
    store.append_messages("c", [_message("q", None)]).result()
    with pytest.raises(StoreError, match=r"UNIQUE constraint failed: messages\.id"):
        store.append_messages("c", [_message("q", None)]).result()


def test_deleting_takes_the_messages_along(store: Store, conversation: ConversationRow) -> None:
    store.append_messages("c", [_message("q", None), _message("a", "q", "assistant")]).result()
    assert store.delete_conversation("c").result()
    assert not store.delete_conversation("c").result()
    assert store.list_messages("c") == []
    with pytest.raises(NotFound, match="does not exist"):
        store.patch_conversation("c", 1, {"title": "x"}).result()
    with pytest.raises(NotFound, match="does not exist"):
        store.update_message("a", {"content": "x"}).result()


def test_search_looks_in_titles_and_messages(store: Store, conversation: ConversationRow) -> None:
    store.create_conversation("d", title="ÁRBOL 100%")
    store.append_messages("c", [_message("q", None, content="¿Dónde está el NIÑO?")])
    store.flush()

    def found(query: str, limit: int = 10) -> list[str]:
        return [each.id for each in store.list_conversations(query, limit)]

    assert found("") == ["c", "d"]
    assert found("", limit=1) == ["c"]
    assert found("árbol") == ["d"]
    assert found("niño") == ["c"]
    assert found("0%") == ["d"]
    assert found("1%0") == []


def test_the_list_starts_with_what_changed_last(store: Store, clock: Clock, conversation: ConversationRow) -> None:
    clock.now += 10
    store.create_conversation("d").result()
    assert [each.id for each in store.list_conversations()] == ["d", "c"]
    clock.now += 10
    store.patch_conversation("c", 1, {"title": "again"}).result()
    assert [each.id for each in store.list_conversations()] == ["c", "d"]
