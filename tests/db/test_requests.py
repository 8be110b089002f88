"""The list of requests: its filters, its pages, the way SQLite takes to them, and what is removed when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from db import requests
from db.connect import open_engine
from db.request_rows import RequestBodyRow, RequestFilter
from db.rows import RequestRow
from db.store import Store
from tests.db.clock import NOON, Clock

BODY = RequestBodyRow("q1", NOON, "Hi", [{"role": "user", "content": "Hi"}], {"temperature": 0.5}, ["Ho"])


def row(index: int, **changes: Any) -> RequestRow:
    values: dict[str, Any] = {"model_id": "ab"[index % 2], "source": "chat", "state": "finished"}
    return RequestRow(f"q{index}", **{**values, "created_at": NOON + index, **changes})


@pytest.fixture
def connection(store: Store, path: Path) -> Iterator[Connection]:
    engine = open_engine(path, writes=False)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def ids(store: Store, **filters: Any) -> list[str]:
    return [each.id for each in store.list_requests(filters=RequestFilter(**filters)).rows]


def test_each_filter_and_all_together(store: Store) -> None:
    store.save_request(row(0, state="failed", source="completion"))
    store.save_request(row(1, slow=True))
    store.save_request(row(2, state="failed", slow=False))
    store.save_request(row(3)).result()
    assert ids(store) == ["q3", "q2", "q1", "q0"]
    assert ids(store, model_id="b") == ["q3", "q1"]
    assert ids(store, state="failed") == ["q2", "q0"]
    assert ids(store, source="completion") == ["q0"]
    assert ids(store, slow=True) == ["q1"]
    assert ids(store, id_prefix="q2") == ["q2"]
    assert ids(store, id_prefix="q") == ["q3", "q2", "q1", "q0"]
    assert ids(store, since=NOON + 1, until=NOON + 2) == ["q2", "q1"]
    assert ids(store, until=NOON - 1) == ids(store, since=NOON + 9) == []
    assert ids(store, model_id="a", state="failed", source="chat", since=NOON, until=NOON + 5) == ["q2"]


@pytest.mark.parametrize(
    ("filters", "plan"),
    [
        ({}, "SEARCH requests USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ({"model_id": "a"}, "SEARCH requests USING INDEX ix_requests_model_id_seq (model_id=? AND seq>? AND seq<?)"),
        ({"state": "failed"}, "SEARCH requests USING INDEX ix_requests_state_seq (state=? AND seq>? AND seq<?)"),
        ({"source": "chat"}, "SEARCH requests USING INDEX ix_requests_source_seq (source=? AND seq>? AND seq<?)"),
        ({"slow": True}, "SEARCH requests USING INDEX ix_requests_slow (seq>? AND seq<?)"),
        ({"since": 1.0, "until": 2.0}, "SEARCH requests USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ({"id_prefix": "ab"}, "SEARCH requests USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    ],
)
def test_a_page_walks_along_an_index_and_sorts_nothing(
    connection: Connection, filters: dict[str, Any], plan: str
) -> None:
    statement = requests.page(100, 0, 10**6, RequestFilter(**filters))
    assert explained(connection, statement) == [plan]


def test_the_beginning_of_an_id_is_looked_up(connection: Connection) -> None:
    statement = requests.page(100, 0, 10**6, RequestFilter(id_prefix="abc", state="failed", slow=True))
    steps = explained(connection, statement)
    assert steps[0] == "SEARCH requests USING INDEX sqlite_autoindex_requests_1 (id>? AND id<?)"


@pytest.mark.parametrize("filters", [{"model_id": "a", "state": "failed", "slow": True}, {"source": "x", "since": 1.0}])
def test_several_filters_are_looked_for_along_an_index_too(connection: Connection, filters: dict[str, Any]) -> None:
    steps = explained(connection, requests.page(100, 0, 10**6, RequestFilter(**filters)))
    assert len(steps) == 1
    assert steps[0].startswith("SEARCH requests USING")


def explained(connection: Connection, statement: Any) -> list[str]:
    compiled = statement.compile(connection, compile_kwargs={"literal_binds": False})
    values = tuple(compiled.params[name] for name in compiled.positiontup)
    return [step[3] for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values)]


def test_several_filters_look_at_a_bounded_part_and_say_where_to_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SEARCHED", 10)
    store.save_request(row(0, state="failed"))
    for index in range(1, 25):
        store.save_request(row(index))
    store.flush()
    wanted = RequestFilter(model_id="a", state="failed")
    page = store.list_requests(filters=wanted)
    pages = 1
    while page.next_before is not None:
        assert page.rows == []
        page = store.list_requests(before=page.next_before, filters=wanted)
        pages += 1
    assert [each.id for each in page.rows] == ["q0"]
    assert pages == 3
    assert store.list_requests(filters=RequestFilter(state="failed")).rows == page.rows, "one index needs no bound"


def test_a_request_has_its_course_and_its_texts_until_it_goes(store: Store, clock: Clock) -> None:
    ended = row(1, finished_at=NOON + 9, stop_cause="end_token", slow=False)
    store.save_ended_request(ended, {"end_s": 8.0}, BODY)
    store.save_ended_request(replace(row(2), seed=2**64 - 1), {"end_s": 1.0})
    store.save_request(row(3, state="running")).result()
    assert store.get_request("q1") == ended
    assert store.request_timeline("q1") == {"end_s": 8.0}
    assert (store.request_body("q1"), store.request_body("q2")) == (BODY, None)
    assert store.count_request_bodies() == 1
    store.save_ended_request(ended, {"end_s": 8.5}).result()
    assert store.request_timeline("q1") == {"end_s": 8.5}
    assert store.request_body("q1") == BODY
    assert [store.prune_requests(NOON + 9, limit=1).result() for _ in range(3)] == [1, 1, 0]
    assert ids(store) == ["q3"], "what still runs stays"
    assert (store.request_timeline("q1"), store.request_body("q1")) == (None, None)


def test_texts_go_one_by_one_all_at_once_and_by_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_BODIES", 3)
    for index in range(5):
        store.save_ended_request(row(index), {}, replace(BODY, request_id=f"q{index}"))
    store.flush()
    kept = [index for index in range(5) if store.request_body(f"q{index}") is not None]
    assert kept == [2, 3, 4]
    assert store.delete_request_body("q3").result() is True
    assert store.delete_request_body("q3").result() is False
    assert [store.delete_request_bodies(1).result() for _ in range(3)] == [1, 1, 0]
    assert len(ids(store)) == 5
