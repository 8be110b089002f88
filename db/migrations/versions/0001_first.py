"""The first tables: runs, samples and rollups, requests, conversations, jobs, events, settings.

Owns revision 0001. Knows nothing of `db.tables`, which moves on while this file stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ENGINE_GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_blocks_used",
    "kv_blocks_cached",
    "kv_blocks_total",
    "engine_process_bytes",
    "engine_gpu_bytes",
)
ENGINE_COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "requests_finished_total",
    "preemptions_total",
    "steps_total",
    "step_s_total",
    "drafts_total",
    "drafted_total",
    "accepted_total",
)
ENGINE_HISTOGRAMS = ("ttft_histogram", "itl_histogram")
DEVICE_GAUGES = (
    "host_memory_total_bytes",
    "host_memory_used_bytes",
    "host_memory_available_bytes",
    "host_cpu_percent",
    "app_process_bytes",
    "disk_free_bytes",
    "gpu_memory_total_bytes",
    "gpu_memory_used_bytes",
    "gpu_utilization_percent",
    "gpu_temperature_c",
    "gpu_power_w",
)


def _texts(*names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=nullable) for name in names]


def _integers(*names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Integer(), nullable=nullable) for name in names]


def _floats(*names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Float(), nullable=nullable) for name in names]


def _jsons(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.JSON(), nullable=nullable) for name in names]


def _primary(table: str, *names: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*names, name=f"pk_{table}")


def _foreign(table: str, name: str, target: str, ondelete: str | None = None) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([name], [target], name=f"fk_{table}_{name}", ondelete=ondelete)


def upgrade() -> None:
    """Make everything."""
    _engine_runs()
    _requests()
    _conversations()
    _jobs_events_settings()
    _samples("engine_samples", ENGINE_GAUGES, ENGINE_COUNTERS, ENGINE_HISTOGRAMS)
    _samples("device_samples", DEVICE_GAUGES, (), ())
    _rollups("engine_rollups", ENGINE_GAUGES, ENGINE_COUNTERS, ENGINE_HISTOGRAMS)
    _rollups("device_rollups", DEVICE_GAUGES, (), ())
    op.create_table(
        "rollup_marks",
        *_integers("step_s", nullable=False),
        *_floats("t", nullable=False),
        _primary("rollup_marks", "step_s"),
    )


def _engine_runs() -> None:
    op.create_table(
        "engine_runs",
        *_texts("id", "model_id", "state", nullable=False),
        *_floats("started_at", nullable=False),
        *_integers("pid"),
        *_texts("device", "device_name", "dtype", "exactness", "exactness_reason"),
        *_floats("load_s", "ended_at"),
        *_texts("error"),
        *_integers("num_kv_blocks", "block_size", "max_model_len"),
        *_jsons("options", "effective_settings", "memory", "kernels"),
        _primary("engine_runs", "id"),
    )


def _requests() -> None:
    op.create_table(
        "requests",
        *_integers("seq", nullable=False),
        *_texts("id", "model_id", "source", "state", nullable=False),
        *_floats("created_at", nullable=False),
        *_texts("engine_run_id"),
        *_floats("finished_at"),
        *_integers("num_prompt_tokens", "num_output_tokens", "num_cached_tokens", "num_preemptions"),
        *_floats("queue_s", "ttft_s", "e2e_s", "itl_p95_s", "tokens_per_s"),
        *_integers("drafts", "drafted", "accepted"),
        *_texts("finish_reason", "error", "seed"),
        _primary("requests", "seq"),
        sa.UniqueConstraint("id", name="uq_requests_id"),
        _foreign("requests", "engine_run_id", "engine_runs.id"),
    )
    op.create_index("ix_requests_created_at", "requests", ["created_at"])
    op.create_index("ix_requests_model_id_seq", "requests", ["model_id", "seq"])


def _conversations() -> None:
    op.create_table(
        "conversations",
        *_texts("id", "title", nullable=False),
        *_texts("model_id"),
        *_texts("system_prompt", nullable=False),
        *_jsons("sampling"),
        *_texts("active_leaf_id"),
        *_integers("version", nullable=False),
        *_floats("created_at", "updated_at", nullable=False),
        _primary("conversations", "id"),
    )
    op.create_index("ix_conversations_updated_at", "conversations", ["updated_at"])
    op.create_table(
        "messages",
        *_integers("seq", nullable=False),
        *_texts("id", "conversation_id", nullable=False),
        *_texts("parent_id"),
        *_texts("role", "content", "state", nullable=False),
        *_floats("created_at", nullable=False),
        *_texts("finish_reason", "error", "model_id", "request_id"),
        *_jsons("stats", nullable=True),
        _primary("messages", "seq"),
        sa.UniqueConstraint("id", name="uq_messages_id"),
        _foreign("messages", "conversation_id", "conversations.id", "CASCADE"),
        _foreign("messages", "parent_id", "messages.id", "CASCADE"),
    )
    op.create_index("ix_messages_conversation_id", "messages", ["conversation_id"])
    op.create_index("ix_messages_parent_id", "messages", ["parent_id"])


def _jobs_events_settings() -> None:
    op.create_table(
        "jobs",
        *_texts("id", "kind", "subject", "state", nullable=False),
        *_floats("created_at", nullable=False),
        *_texts("stage", nullable=False),
        *_integers("done", "total", nullable=False),
        *_texts("unit", "message", nullable=False),
        *_floats("started_at", "finished_at"),
        *_texts("error"),
        *_jsons("result", nullable=True),
        *_jsons("log"),
        _primary("jobs", "id"),
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"])
    op.create_table(
        "events",
        *_integers("id", nullable=False),
        *_floats("t", nullable=False),
        *_texts("kind", "severity", "message", nullable=False),
        *_texts("engine_run_id"),
        *_jsons("data"),
        _primary("events", "id"),
    )
    op.create_index("ix_events_t", "events", ["t"])
    op.create_table(
        "settings",
        *_texts("key", nullable=False),
        *_jsons("value"),
        *_floats("updated_at", nullable=False),
        _primary("settings", "key"),
    )


def _samples(table: str, gauges: tuple[str, ...], counters: tuple[str, ...], histograms: tuple[str, ...]) -> None:
    per_run = bool(counters)
    op.create_table(
        table,
        *_texts(*(["engine_run_id"] if per_run else []), nullable=False),
        *_floats("t", nullable=False),
        *_floats(*(["counted_at"] if per_run else []), *gauges, *counters),
        *_texts(*histograms),
        _primary(table, *(["engine_run_id"] if per_run else []), "t"),
        *([_foreign(table, "engine_run_id", "engine_runs.id")] if per_run else []),
    )
    if per_run:
        op.create_index(f"ix_{table}_t", table, ["t"])


def _rollups(table: str, gauges: tuple[str, ...], counters: tuple[str, ...], histograms: tuple[str, ...]) -> None:
    per_run = bool(counters)
    op.create_table(
        table,
        *_integers("step_s", nullable=False),
        *_floats("t", nullable=False),
        *_texts(*(["engine_run_id"] if per_run else []), nullable=False),
        *_floats("first_t", "last_t", nullable=False),
        *_integers("num_samples", nullable=False),
        *_floats(*(["counted_first", "counted_last"] if per_run else [])),
        *_floats(*(f"{name}_{part}" for name in gauges for part in ("min", "max", "sum"))),
        *_integers(*(f"{name}_count" for name in gauges), nullable=False),
        *_floats(*(f"{name}_{part}" for name in counters for part in ("first", "last"))),
        *_texts(*histograms),
        _primary(table, "step_s", "t", *(["engine_run_id"] if per_run else [])),
        *([_foreign(table, "engine_run_id", "engine_runs.id")] if per_run else []),
    )


def downgrade() -> None:
    """Never: an older program refuses the file instead, so that nothing it does not know is lost."""
    raise NotImplementedError("the database cannot go back; keep a copy of pizarra.db before an update")
