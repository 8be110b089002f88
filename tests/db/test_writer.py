"""The writer thread: order, batches, failures that stay their own, errors in words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from db.connect import open_engine
from db.errors import StoreError
from db.rows import DeviceSampleRow, EngineSampleRow
from db.store import Store
from db.writer import Writer


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = open_engine(path, writes=True)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")
    yield engine
    engine.dispose()


@pytest.fixture
def writer(engine: Engine, path: Path) -> Iterator[Writer]:
    writer = Writer(engine, path)
    yield writer
    writer.close()


def _insert(text: str | None) -> Any:
    return lambda c: c.exec_driver_sql("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid


def _texts(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return [row[0] for row in connection.exec_driver_sql("SELECT text FROM notes ORDER BY id")]


def test_many_threads_one_writer(writer: Writer, engine: Engine) -> None:
    threads_seen: set[str] = set()

    def note(text: str) -> Any:
        def work(connection: Connection) -> Any:
            threads_seen.add(threading.current_thread().name)
            return _insert(text)(connection)

        return work

    def write(name: str) -> None:
        futures = [writer.submit(note(f"{name}-{i}")) for i in range(40)]
        assert [future.result() for future in futures] == sorted(future.result() for future in futures)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = _texts(engine)
    assert len(texts) == 320
    assert threads_seen == {"db-writer"}
    for name in "abcdefgh":
        assert [text for text in texts if text.startswith(name)] == [f"{name}-{i}" for i in range(40)]


def test_a_failing_job_fails_its_own_future_only(writer: Writer, engine: Engine) -> None:
    gate = threading.Event()
    writer.submit(lambda _c: gate.wait())  # keeps the thread busy, so that the next three are one batch

    def writes_then_fails(connection: Connection) -> None:
        _insert("undone")(connection)
        raise ValueError("half way")

    first, second, third = writer.submit(_insert("a")), writer.submit(writes_then_fails), writer.submit(_insert("b"))
    refused = writer.submit(_insert(None))
    gate.set()
    first.result()
    third.result()
    with pytest.raises(StoreError, match="half way"):
        second.result()
    with pytest.raises(StoreError, match=r"NOT NULL constraint failed: notes\.text"):
        refused.result()
    assert _texts(engine) == ["a", "b"]


def test_a_full_disk_is_said_and_survived(path: Path) -> None:
    engine = open_engine(path, writes=True)
    event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA max_page_count = 6"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")
    writer = Writer(engine, path)
    writer.submit(_insert("before")).result()
    gate = threading.Event()
    writer.submit(lambda _c: gate.wait())
    batch = [writer.submit(_insert("x" * 100_000)), writer.submit(_insert("same batch"))]
    gate.set()
    with pytest.raises(StoreError, match="the disk is full; free some space"):
        batch[0].result()
    batch[1].result()
    writer.submit(_insert("after")).result()
    assert _texts(engine) == ["before", "same batch", "after"]
    writer.close()
    engine.dispose()


def test_when_sqlite_gives_up_the_transaction_only_the_culprit_fails(writer: Writer, engine: Engine) -> None:
    gate = threading.Event()
    writer.submit(lambda _c: gate.wait())

    def lose_everything(connection: Connection) -> None:
        connection.exec_driver_sql("ROLLBACK")  # what SQLite does by itself on some disk errors
        raise OSError("disk I/O error")

    batch = [writer.submit(_insert("a")), writer.submit(lose_everything), writer.submit(_insert("b"))]
    gate.set()
    with pytest.raises(StoreError, match="the disk reports an I/O error"):
        batch[1].result()
    assert [batch[0].result(), batch[2].result()] == [1, 2]
    assert _texts(engine) == ["a", "b"]


def test_a_read_only_file_is_said(writer: Writer, engine: Engine) -> None:
    writer.submit(lambda c: c.exec_driver_sql("PRAGMA query_only = ON").close()).result()
    with pytest.raises(StoreError, match=r"pizarra\.db: the file is read-only; give this user write permission"):
        writer.submit(_insert("a")).result()


def test_nobody_waiting_does_not_undo_a_write(writer: Writer, engine: Engine) -> None:
    future = writer.submit(_insert("kept"))
    assert not future.cancel()
    writer.flush()
    assert _texts(engine) == ["kept"]


def test_close_writes_what_is_queued_and_refuses_what_comes_later(writer: Writer, engine: Engine) -> None:
    futures = [writer.submit(_insert(str(i))) for i in range(600)]  # more than one batch
    writer.close()
    writer.close()
    assert all(future.done() for future in futures)
    assert _texts(engine) == [str(i) for i in range(600)]
    with pytest.raises(StoreError, match="the store is closed"):
        writer.submit(_insert("late")).result()


def test_a_sample_without_its_engine_run_fails_alone(store: Store) -> None:
    bad = store.add_samples(DeviceSampleRow(t=1.5), [EngineSampleRow("nobody", 1.5)])
    good = store.add_samples(DeviceSampleRow(t=1.5, disk_free_bytes=1))
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        bad.result()
    good.result()
