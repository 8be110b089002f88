"""Opening: from nothing, again, after a crash, from the future, and when it cannot be."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from db.connect import MIGRATIONS, open_engine
from db.errors import StoreError
from db.rows import DeviceSampleRow, EngineRunRow, EngineSampleRow, JobRow, MessageRow, RequestRow
from db.store import Store
from db.tables import metadata


def test_migrations_from_nothing_build_the_tables_of_the_code(store: Store, path: Path) -> None:
    engine = open_engine(path, writes=False)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_answers_of_before_have_no_thoughts(path: Path) -> None:
    engine = open_engine(path, writes=True)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.exec_driver_sql(
            "INSERT INTO conversations (id, title, system_prompt, sampling, version, created_at, updated_at)"
            " VALUES ('c', '', '', '{}', 1, 0, 0)"
        )
        connection.exec_driver_sql(
            "INSERT INTO messages (id, conversation_id, role, content, state, created_at)"
            " VALUES ('m', 'c', 'assistant', '<think>Hm.</think>Yes.', 'complete', 0)"
        )
    engine.dispose()
    with closing(Store(path)) as store:
        assert store.get_message("m") == MessageRow(
            "m", "c", None, "assistant", "<think>Hm.</think>Yes.", "complete", 0.0, reasoning_content=""
        )


def test_what_was_recorded_before_speculation_stays_without_its_figures(path: Path) -> None:
    engine = open_engine(path, writes=True)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        connection.exec_driver_sql(
            "INSERT INTO engine_runs (id, model_id, state, started_at, ended_at, options, effective_settings, memory,"
            " kernels) VALUES ('r', 'tiny', 'stopped', 1, 9, '{}', '[]', '{}', '{}')"
        )
        connection.exec_driver_sql(
            "INSERT INTO requests (id, model_id, source, state, created_at, drafts) VALUES ('q', 'tiny', 'chat',"
            " 'finished', 2, 0)"
        )
        connection.exec_driver_sql(
            "INSERT INTO engine_samples (engine_run_id, t, counted_at, drafts_total) VALUES ('r', 5.5, 5.4, 3)"
        )
    engine.dispose()
    with closing(Store(path, clock=lambda: 10.0)) as store:
        run, request = store.get_engine_run("r"), store.get_request("q")
        assert run is not None
        assert (run.model_hash, run.drafter_hash, run.speculation) == (None, None, None)
        assert request == RequestRow("q", "tiny", "chat", "finished", 2.0, drafts=0)
        columns = store.samples(5, 6, 1).columns
        assert (columns["drafts_total"], columns["draft_s_total"]) == ([3], [None])
        assert columns["accepted_per_position_0_total"] == columns["speculation_gain"] == [None]


def test_connections_have_our_settings(store: Store, path: Path) -> None:
    engine = open_engine(path, writes=True)
    with engine.connect() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    engine.dispose()
    assert found == {"journal_mode": "wal", "synchronous": 1, "busy_timeout": 5000, "foreign_keys": 1}


def test_reading_connections_cannot_write(store: Store, path: Path) -> None:
    engine = open_engine(path, writes=False)
    with engine.connect() as connection, pytest.raises(Exception, match="readonly"):
        connection.exec_driver_sql("DELETE FROM events")
    engine.dispose()


def test_a_second_open_keeps_everything(path: Path) -> None:
    store = Store(path)
    run = EngineRunRow("r", "tiny", "ready", 1.0, pid=7, options={"dtype": "auto"}, kernels={"linear": "cpu"})
    store.save_engine_run(run)
    store.end_engine_run("r", "stopped")
    store.add_samples(DeviceSampleRow(t=5.5, host_cpu_percent=3.0), [EngineSampleRow("r", 5.5, steps_total=9)])
    store.save_request(RequestRow("q", "tiny", "chat", "finished", 2.0, engine_run_id="r", seed=2**64 - 1))
    store.create_conversation("c", title="Hola", sampling={"temperature": 0.5})
    store.append_messages("c", [MessageRow("m", "c", None, "user", "¿qué tal?", "complete", 3.0)])
    store.save_job(JobRow("j", "pull", "tiny", "succeeded", 4.0, log=["one", "two"], result={"bytes": 3}))
    store.add_event("start", "info", "up", data={"port": 7860})
    store.set_settings({"theme": "dark", "sampling": {"top_k": 40}})
    store.flush()
    before = _everything(store)
    store.close()

    again = Store(path)
    assert _everything(again) == before
    assert again.num_interrupted == 0
    assert again.get_request("q") == RequestRow("q", "tiny", "chat", "finished", 2.0, engine_run_id="r", seed=2**64 - 1)
    again.close()


def _everything(store: Store) -> list[object]:
    return [
        store.list_engine_runs(),
        store.samples(5, 7, 1),
        store.list_requests(),
        store.list_conversations(),
        store.list_messages("c"),
        store.list_jobs(),
        store.list_events(),
        store.get_settings(),
    ]


def test_what_a_crash_left_open_is_closed_and_partial_text_stays(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    store.save_engine_run(EngineRunRow("seen", "tiny", "ready", 10.0))
    store.save_engine_run(EngineRunRow("unseen", "tiny", "loading", 20.0))
    store.add_samples(DeviceSampleRow(t=15.5), [EngineSampleRow("seen", 15.5)])
    store.save_request(RequestRow("running", "tiny", "chat", "running", 1.0))
    store.save_request(RequestRow("done", "tiny", "chat", "finished", 1.0))
    store.save_job(JobRow("j", "pull", "tiny", "running", 1.0, stage="download", done=5, total=10))
    store.create_conversation("c")
    asked = MessageRow("m1", "c", None, "user", "hi", "complete", 1.0)
    store.append_messages("c", [asked, MessageRow("m2", "c", "m1", "assistant", "", "streaming", 1.0)])
    store.update_message("m2", {"content": "half an ans"})
    store.flush()
    crashed = tmp_path / "crashed.db"  # the file and its log as a killed process leaves them
    shutil.copy(path, crashed)
    shutil.copy(path.with_name(path.name + "-wal"), crashed.with_name(crashed.name + "-wal"))
    store.close()

    again = Store(crashed, clock=lambda: 99.0)
    assert again.num_interrupted == 5
    runs = {run.id: (run.state, run.ended_at) for run in again.list_engine_runs()}
    assert runs == {"seen": ("interrupted", 15.5), "unseen": ("interrupted", 20.0)}
    request, job, done = again.get_request("running"), again.get_job("j"), again.get_request("done")
    assert request is not None
    assert (request.state, request.finished_at) == ("interrupted", 99.0)
    assert job is not None
    assert (job.state, job.stage, job.done, job.finished_at) == ("interrupted", "download", 5, 99.0)
    assert "ended while" in str(job.error)
    assert done is not None
    assert done.state == "finished"
    question, answer = again.list_messages("c")
    assert question == asked
    assert (answer.content, answer.state) == ("half an ans", "interrupted")
    conversation = again.get_conversation("c")
    assert conversation is not None
    assert not conversation.generating
    again.close()


def test_a_database_of_a_newer_program_is_refused_and_left_alone(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"pizarra\.db: written by a newer Pizarra .*9999.*PIZARRA_HOME"):
        Store(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"this is a text, and rather a long one for that" * 50)
    with pytest.raises(StoreError, match="not an SQLite database; move it away"):
        Store(path)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere.*check that the folder exists"):
        Store(tmp_path / "nowhere" / "pizarra.db")


def test_size_counts_the_write_ahead_log(store: Store, path: Path) -> None:
    store.set_settings({"blob": "x" * 100_000}).result()
    assert store.size_bytes() >= path.stat().st_size + 100_000
