"""The tables, as the newest migration leaves them.

Owns the names and types of columns. Knows nothing of reading, writing or upkeep.
Invariant: a test compares this file with what the migrations build from nothing; they never differ.
Rollup tables are wide, five columns a gauge's figures and two a counter's, so that merging is plain SQL.
"""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text, text

from db.figures import DEVICE, ENGINE, Figures

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
    }
)

engine_runs = Table(
    "engine_runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("pid", Integer),
    Column("device", Text),
    Column("device_name", Text),
    Column("dtype", Text),
    Column("exactness", Text),
    Column("exactness_reason", Text),
    Column("load_s", Float),
    Column("ended_at", Float),
    Column("error", Text),
    Column("num_kv_blocks", Integer),
    Column("block_size", Integer),
    Column("max_model_len", Integer),
    Column("options", JSON, nullable=False),
    Column("effective_settings", JSON, nullable=False),
    Column("memory", JSON, nullable=False),
    Column("kernels", JSON, nullable=False),
    Column("model_hash", Text),
    Column("drafter_hash", Text),
    Column("speculation", Text),
)

requests = Table(
    "requests",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("model_id", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Float, nullable=False, index=True),
    Column("engine_run_id", Text, ForeignKey("engine_runs.id")),
    Column("finished_at", Float),
    Column("num_prompt_tokens", Integer),
    Column("num_output_tokens", Integer),
    Column("num_cached_tokens", Integer),
    Column("num_preemptions", Integer),
    Column("queue_s", Float),
    Column("ttft_s", Float),
    Column("e2e_s", Float),
    Column("itl_p95_s", Float),
    Column("tokens_per_s", Float),
    Column("drafts", Integer),
    Column("drafted", Integer),
    Column("accepted", Integer),
    Column("finish_reason", Text),
    Column("error", Text),
    Column("seed", Text),  # an unsigned 64-bit number, which SQLite's integers cannot hold
    Column("accepted_per_position", JSON(none_as_null=True)),
    Column("drafted_per_position", JSON(none_as_null=True)),
    Column("draft_s", Float),
    Column("verify_s", Float),
    Column("proposer", Text),
    Column("stop_cause", Text),
    Column("slow", Integer),
    Index("ix_requests_model_id_seq", "model_id", "seq"),
    Index("ix_requests_state_seq", "state", "seq"),
    Index("ix_requests_source_seq", "source", "seq"),
    Index("ix_requests_slow", "seq", sqlite_where=text("slow = 1")),
)

request_details = Table(
    "request_details",
    metadata,
    Column("request_id", Text, ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True),
    Column("timeline", JSON, nullable=False),
)

request_bodies = Table(
    "request_bodies",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("request_id", Text, ForeignKey("requests.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("messages", JSON(none_as_null=True)),
    Column("sampling", JSON, nullable=False),
    Column("answers", JSON, nullable=False),
    Column("truncated", Integer, nullable=False),
)

conversations = Table(
    "conversations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("model_id", Text),
    Column("system_prompt", Text, nullable=False),
    Column("sampling", JSON, nullable=False),
    Column("active_leaf_id", Text),
    Column("version", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False, index=True),
    Column("folder", Text, nullable=False, server_default=""),
)

messages = Table(
    "messages",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("conversation_id", Text, ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("parent_id", Text, ForeignKey("messages.id", ondelete="CASCADE"), index=True),
    Column("role", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("finish_reason", Text),
    Column("error", Text),
    Column("model_id", Text),
    Column("request_id", Text),
    Column("stats", JSON(none_as_null=True)),
    Column("reasoning_content", Text, nullable=False, server_default=""),
    Column("attachments", JSON(none_as_null=True)),
)

presets = Table(
    "presets",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("system_prompt", Text, nullable=False),
    Column("sampling", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Float, nullable=False, index=True),
    Column("stage", Text, nullable=False),
    Column("done", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("unit", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("error", Text),
    Column("result", JSON(none_as_null=True)),
    Column("log", JSON, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("t", Float, nullable=False, index=True),
    Column("kind", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("engine_run_id", Text),
    Column("data", JSON, nullable=False),
)

settings = Table(
    "settings",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", JSON, nullable=False),
    Column("updated_at", Float, nullable=False),
)

selftests = Table(
    "selftests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model_id", Text, nullable=False),
    Column("engine_run_id", Text, nullable=False),
    Column("model_hash", Text, nullable=False),
    Column("drafter_hash", Text, nullable=False),
    Column("proposer", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("finished_at", Float, nullable=False),
    Column("versions", JSON, nullable=False),
    Column("parts", JSON, nullable=False),
    Index("ix_selftests_model_id_finished_at", "model_id", "finished_at"),
)

alert_rules = Table(
    "alert_rules",
    metadata,
    Column("id", Text, primary_key=True),
    Column("metric", Text, nullable=False),
    Column("comparison", Text, nullable=False),
    Column("threshold", Float, nullable=False),
    Column("for_s", Float, nullable=False),
    Column("severity", Text, nullable=False),
    Column("webhook", Text),
    Column("enabled", Boolean, nullable=False),
    Column("muted_until", Float),
    Column("version", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("rule_id", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("comparison", Text, nullable=False),
    Column("threshold", Float, nullable=False),
    Column("severity", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("state", Text, nullable=False, index=True),
    Column("value", Float, nullable=False),
    Column("worst", Float, nullable=False),
    Column("pending_at", Float, nullable=False),
    Column("fired_at", Float, nullable=False),
    Column("resolved_at", Float),
    Column("resolved_by", Text),
    Column("acknowledged_at", Float),
    Column("muted", Boolean, nullable=False),
)

model_profiles = Table(
    "model_profiles",
    metadata,
    Column("model_id", Text, primary_key=True),
    Column("model_hash", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("options", JSON, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("updated_at", Float, nullable=False),
)

load_measurements = Table(
    "load_measurements",
    metadata,
    Column("engine_run_id", Text, primary_key=True),
    Column("model_id", Text, nullable=False),
    Column("model_hash", Text, nullable=False),
    Column("t", Float, nullable=False),
    Column("load_s", Float, nullable=False),
    Column("estimated_bytes", Integer, nullable=False),
    Column("measured_bytes", Integer, nullable=False),
    Index("ix_load_measurements_model_id_t", "model_id", "t"),
)

# Up to where (epoch seconds, exclusive) rollups of each step are complete.
rollup_marks = Table(
    "rollup_marks",
    metadata,
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("t", Float, nullable=False),
)


def _run_key(figures: Figures) -> list[Column[str]]:
    if not figures.per_run:
        return []
    return [Column("engine_run_id", Text, ForeignKey("engine_runs.id"), primary_key=True)]


def _samples_table(figures: Figures) -> Table:
    """One row a second: one column a figure."""
    counted = [Column("counted_at", Float)] if figures.counters else []
    return Table(
        f"{figures.name}_samples",
        metadata,
        *_run_key(figures),
        Column("t", Float, primary_key=True),
        *counted,
        *(Column(name, Float) for name in (*figures.gauges, *figures.counters)),
        *(Column(name, Text) for name in figures.histograms),
        *([Index(f"ix_{figures.name}_samples_t", "t")] if figures.per_run else []),
    )


def _rollups_table(figures: Figures) -> Table:
    """One row a bucket of `step_s` that starts at `t` and holds samples from `first_t` to `last_t`."""
    counted = ("counted_first", "counted_last") if figures.counters else ()
    return Table(
        f"{figures.name}_rollups",
        metadata,
        Column("step_s", Integer, primary_key=True, autoincrement=False),
        Column("t", Float, primary_key=True),
        *_run_key(figures),
        Column("first_t", Float, nullable=False),
        Column("last_t", Float, nullable=False),
        Column("num_samples", Integer, nullable=False),
        *(Column(name, Float) for name in counted),
        *(Column(f"{name}_{part}", Float) for name in figures.gauges for part in ("min", "max", "sum")),
        *(Column(f"{name}_count", Integer, nullable=False) for name in figures.gauges),
        *(Column(f"{name}_{part}", Float) for name in figures.counters for part in ("first", "last")),
        *(Column(name, Text) for name in figures.histograms),
    )


SAMPLES = {figures.name: _samples_table(figures) for figures in (ENGINE, DEVICE)}
ROLLUPS = {figures.name: _rollups_table(figures) for figures in (ENGINE, DEVICE)}
