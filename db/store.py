"""The store: what the rest of the program calls to keep things and to read them back.

Owns the file's life (open, migrate, close what a crash left open, close) and the list of what can be asked. Knows
nothing of SQL, which lives in the modules beside it. Invariants: every write goes through the one writer thread and
returns a future that is done once it is on disk; reads are short and use connections of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from db import conversations, presets, profiles, records, requests, rollup, samples, selftests, sizes
from db.alerts import AlertRecords
from db.connect import migrate, open_engine
from db.errors import StoreError, explain
from db.figures import SAMPLE_COLUMNS
from db.recovery import close_interrupted
from db.request_rows import RequestBodyRow, RequestFilter
from db.rows import (
    ConversationChanges,
    ConversationRow,
    DeviceSampleRow,
    EngineRunRow,
    EngineSampleRow,
    EventRow,
    JobRow,
    Latencies,
    LoadMeasurementRow,
    MaintenanceReport,
    MessageChanges,
    MessageRow,
    PresetRow,
    ProfileRow,
    RequestPage,
    RequestRow,
    SampleSeries,
    SelfTestRow,
)
from db.writer import Writer

T = TypeVar("T")


class Store:
    """The database of one data folder."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open or make the file at `path`. Raises StoreError, saying why, when that cannot be."""
        self.path = path
        self._clock = clock
        self._write_engine = open_engine(path, writes=True)
        self._read_engine = open_engine(path, writes=False)
        try:
            migrate(self._write_engine, path)
        except (SQLAlchemyError, StoreError) as error:
            self._write_engine.dispose()
            raise explain(path, error) from error
        self._writer = Writer(self._write_engine, path)
        self.alerts = AlertRecords(self._read, self._writer.submit)
        self.num_interrupted = self._writer.submit(lambda c: close_interrupted(c, clock())).result()

    def flush(self) -> None:
        """Wait until everything written so far is on disk or has failed."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is queued and let go of the file."""
        self._writer.close()
        self._read_engine.dispose()
        self._write_engine.dispose()

    def _read(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._read_engine.connect() as connection:
                return query(connection)
        except SQLAlchemyError as error:
            raise explain(self.path, error) from error

    # ---- engine runs and samples ------------------------------------------------------------------------------------

    def save_engine_run(self, row: EngineRunRow) -> Future[None]:
        """Insert or replace. Must come before the run's samples and requests."""
        return self._writer.submit(lambda c: records.save_engine_run(c, row))

    def end_engine_run(self, run_id: str, state: str, error: str | None = None) -> Future[None]:
        """Mark a run as ended now, as "stopped" or "failed"."""
        ended_at = self._clock()
        return self._writer.submit(lambda c: records.end_engine_run(c, run_id, state, ended_at, error))

    def get_engine_run(self, run_id: str) -> EngineRunRow | None:
        """One run."""
        return self._read(lambda c: records.get_engine_run(c, run_id))

    def list_engine_runs(
        self, limit: int = 100, since: float | None = None, until: float | None = None
    ) -> list[EngineRunRow]:
        """Newest first, those that lived at some time of [since, until)."""
        return self._read(lambda c: records.list_engine_runs(c, limit, since, until))

    def add_samples(self, device: DeviceSampleRow, engines: Sequence[EngineSampleRow] = ()) -> Future[None]:
        """One second's figures, all or none. Each engine's run was saved before."""
        return self._writer.submit(lambda c: records.add_samples(c, device, engines))

    def samples(
        self,
        since: float,
        until: float,
        step_s: int,
        engine_run_id: str | None = None,
        aggregate: samples.Aggregate = "mean",
        names: Sequence[str] | None = None,
        bands: Sequence[str] = (),
    ) -> SampleSeries:
        """These columns of `db.figures.SAMPLE_COLUMNS` over an even grid; without a run id, summed over all engines.

        `aggregate` says which figure of a gauge within a step is meant: "mean", "min" or "max"; of the gauges in
        `bands` the smallest and the largest come as well. Without `names`: all columns.
        """
        now, columns = self._clock(), SAMPLE_COLUMNS if names is None else tuple(names)
        query = samples.Query(since, until, step_s, engine_run_id, aggregate, columns, tuple(bands))
        return self._read(lambda c: samples.read(c, query, now))

    def latencies(self, since: float, until: float, engine_run_id: str | None = None) -> Latencies:
        """All latencies of that time together, of one run or of all."""
        now = self._clock()
        return self._read(lambda c: samples.latencies(c, since, until, engine_run_id, now))

    def maintain(self) -> Future[MaintenanceReport]:
        """One bounded round of upkeep: roll samples up, remove what is past its time. Call it once a minute."""
        now = self._clock()
        return self._writer.submit(lambda c: rollup.maintain(c, now))

    def size_bytes(self) -> int:
        """What the database takes on disk, its write-ahead log included."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def num_rows(self) -> dict[str, int]:
        """Table -> how many rows it has."""
        return self._read(sizes.num_rows)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def save_request(self, row: RequestRow) -> Future[None]:
        """Insert or replace; a request keeps its place in the list."""
        return self._writer.submit(lambda c: requests.save(c, row))

    def save_ended_request(
        self, row: RequestRow, timeline: Mapping[str, Any], body: RequestBodyRow | None = None
    ) -> Future[None]:
        """The same, with its course and, where they are to be kept, its texts."""
        return self._writer.submit(lambda c: requests.save_ended(c, row, timeline, body))

    def get_request(self, request_id: str) -> RequestRow | None:
        """One request."""
        return self._read(lambda c: requests.get(c, request_id))

    def request_timeline(self, request_id: str) -> dict[str, Any] | None:
        """The course of one that has ended; None where it is not known."""
        return self._read(lambda c: requests.timeline(c, request_id))

    def request_body(self, request_id: str) -> RequestBodyRow | None:
        """What was asked and answered, where that was kept."""
        return self._read(lambda c: requests.body(c, request_id))

    def list_requests(
        self,
        limit: int = 100,
        before: int | None = None,
        model: str | None = None,
        filters: RequestFilter | None = None,
    ) -> RequestPage:
        """Newest first. `before`: the `next_before` of the page in front of it. `filters` instead of `model`."""
        wanted = filters or RequestFilter(model_id=model)
        return self._read(lambda c: requests.find(c, limit, before, wanted))

    def prune_requests(self, before: float, limit: int) -> Future[int]:
        """Remove at most `limit` of the ended requests made before a time. Returned: how many went."""
        return self._writer.submit(lambda c: requests.prune(c, before, limit))

    def delete_request_body(self, request_id: str) -> Future[bool]:
        """Remove the texts of one; False when none were kept."""
        return self._writer.submit(lambda c: requests.delete_body(c, request_id))

    def delete_request_bodies(self, limit: int) -> Future[int]:
        """Remove the texts of at most `limit`. Returned: how many went."""
        return self._writer.submit(lambda c: requests.delete_bodies(c, limit))

    def count_request_bodies(self) -> int:
        """Of how many requests texts are kept."""
        return self._read(requests.count_bodies)

    # ---- self-tests -------------------------------------------------------------------------------------------------

    def add_selftest(self, row: SelfTestRow) -> Future[None]:
        """Keep the result of one."""
        return self._writer.submit(lambda c: selftests.add(c, row))

    def list_selftests(self, model_id: str | None = None, limit: int = 100) -> list[SelfTestRow]:
        """Newest first, of one model or of all."""
        return self._read(lambda c: selftests.find(c, model_id, limit))

    def standing_selftest(self, model_id: str, model_hash: str, drafter_hash: str) -> SelfTestRow | None:
        """The last result of these weights with this drafter."""
        return self._read(lambda c: selftests.standing(c, model_id, model_hash, drafter_hash))

    # ---- models -----------------------------------------------------------------------------------------------------

    def save_profile(self, row: ProfileRow) -> Future[None]:
        """Insert or replace; one that is the default takes that from the others of its model."""
        return self._writer.submit(lambda c: profiles.save_profile(c, row))

    def list_profiles(self, model_id: str) -> list[ProfileRow]:
        """All profiles of a model, whatever its weights were."""
        return self._read(lambda c: profiles.list_profiles(c, model_id))

    def delete_profile(self, model_id: str, model_hash: str, name: str) -> Future[bool]:
        """Remove one; False when there was none."""
        return self._writer.submit(lambda c: profiles.delete_profile(c, model_id, model_hash, name))

    def add_load_measurement(self, row: LoadMeasurementRow) -> Future[None]:
        """Keep what a load was seen to take."""
        return self._writer.submit(lambda c: profiles.add_measurement(c, row))

    def raise_load_measurement(self, run_id: str, measured_bytes: int) -> Future[None]:
        """It was seen to take more than was known."""
        return self._writer.submit(lambda c: profiles.raise_measurement(c, run_id, measured_bytes))

    def list_load_measurements(self, model_id: str, model_hash: str) -> list[LoadMeasurementRow]:
        """Of these weights, newest first."""
        return self._read(lambda c: profiles.list_measurements(c, model_id, model_hash))

    def last_used(self) -> dict[str, float]:
        """When each model was last loaded or asked."""
        return self._read(records.last_used)

    # ---- conversations ----------------------------------------------------------------------------------------------

    def create_conversation(
        self,
        conversation_id: str,
        *,
        title: str = "",
        system_prompt: str = "",
        model_id: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        folder: str = "",
    ) -> Future[ConversationRow]:
        """A new, empty conversation at version 1."""
        now = self._clock()
        values = {
            "title": title,
            "system_prompt": system_prompt,
            "model_id": model_id,
            "sampling": dict(sampling or {}),
            "folder": folder,
        }
        return self._writer.submit(lambda c: conversations.create(c, conversation_id, values, now))

    def get_conversation(self, conversation_id: str) -> ConversationRow | None:
        """One conversation, without its messages."""
        return self._read(lambda c: conversations.get(c, conversation_id))

    def list_conversations(self, query: str = "", limit: int = 100) -> list[ConversationRow]:
        """Last changed first; `query` is looked for in titles and messages."""
        return self._read(lambda c: conversations.search(c, query, limit))

    def patch_conversation(
        self, conversation_id: str, version: int, changes: ConversationChanges
    ) -> Future[ConversationRow]:
        """Change it and raise its version. StaleVersion when `version` is not the present one, NotFound."""
        now = self._clock()
        return self._writer.submit(lambda c: conversations.patch(c, conversation_id, version, changes, now))

    def delete_conversation(self, conversation_id: str) -> Future[bool]:
        """Remove it with its messages; False when there was none."""
        return self._writer.submit(lambda c: conversations.delete_conversation(c, conversation_id))

    def append_messages(
        self, conversation_id: str, rows: Sequence[MessageRow], version: int | None = None
    ) -> Future[ConversationRow]:
        """Add messages, all or none, make the last one the active leaf and raise the version.

        A parent comes before its child. With `version`, StaleVersion when it is not the present one; NotFound when
        the conversation or a parent in it does not exist.
        """
        now = self._clock()
        return self._writer.submit(lambda c: conversations.append(c, conversation_id, rows, version, now))

    def update_message(self, message_id: str, changes: MessageChanges) -> Future[MessageRow]:
        """Write to an answer being made: its text so far, or how it ended. The conversation's version stays."""
        now = self._clock()
        return self._writer.submit(lambda c: conversations.update_message(c, message_id, changes, now))

    def get_message(self, message_id: str) -> MessageRow | None:
        """One message."""
        return self._read(lambda c: conversations.get_message(c, message_id))

    def list_messages(self, conversation_id: str) -> list[MessageRow]:
        """The whole tree, oldest first."""
        return self._read(lambda c: conversations.list_messages(c, conversation_id))

    # ---- presets ----------------------------------------------------------------------------------------------------

    def list_presets(self) -> list[PresetRow]:
        """All, by name."""
        return self._read(presets.find)

    def save_preset(
        self, preset_id: str, name: str, system_prompt: str, sampling: Mapping[str, Any], *, new: bool
    ) -> Future[PresetRow]:
        """Add one, or change one that is there. NameTaken where another one has the name, NotFound."""
        now, values = self._clock(), {"name": name, "system_prompt": system_prompt, "sampling": dict(sampling)}
        return self._writer.submit(lambda c: (presets.add if new else presets.change)(c, preset_id, values, now))

    def delete_preset(self, preset_id: str) -> Future[bool]:
        """Remove it; False when there was none."""
        return self._writer.submit(lambda c: presets.remove(c, preset_id))

    # ---- jobs, events, settings -------------------------------------------------------------------------------------

    def save_job(self, row: JobRow) -> Future[None]:
        """Insert or replace."""
        return self._writer.submit(lambda c: records.save_job(c, row))

    def get_job(self, job_id: str) -> JobRow | None:
        """One job."""
        return self._read(lambda c: records.get_job(c, job_id))

    def list_jobs(self, limit: int = 100, before: str | None = None, kind: str | None = None) -> list[JobRow]:
        """Newest first; `before`: only those older than the job with this id; `kind`: only these."""
        return self._read(lambda c: records.list_jobs(c, limit, before, kind))

    def add_event(
        self,
        kind: str,
        severity: str,
        message: str,
        *,
        engine_run_id: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Future[EventRow]:
        """Note something that happened now. `severity`: "info", "warning" or "error"."""
        t, details = self._clock(), dict(data or {})
        return self._writer.submit(lambda c: records.add_event(c, t, kind, severity, message, engine_run_id, details))

    def list_events(
        self, limit: int = 100, before: int | None = None, since: float | None = None, until: float | None = None
    ) -> list[EventRow]:
        """Newest first, of [since, until); `before`: only those with a smaller id."""
        return self._read(lambda c: records.list_events(c, limit, before, since, until))

    def get_settings(self) -> dict[str, Any]:
        """All settings."""
        return self._read(records.get_settings)

    def set_settings(self, values: Mapping[str, Any], expected: Mapping[str, Any] | None = None) -> Future[None]:
        """Set several settings, all or none; others stay. `expected`: what the caller saw there, else StaleSettings."""
        now, copied, seen = self._clock(), dict(values), dict(expected or {})
        return self._writer.submit(lambda c: records.set_settings(c, copied, seen, now))
