"""Bodies of the calls around a load: what-if estimates, saved profiles, unloads, idle time, benchmarks.

Owns field names, types and ranges at the edge, as app.schemas does.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from app.schemas import Estimate, Incoming, Outgoing, Text
from engine.config import MAX_IDLE_S, MIN_IDLE_S


class LoadBody(Incoming):
    """The wishes for a load, or for its estimate; absent ones are those of `profile`, and else LoadOptions' defaults.

    profile: a saved profile's name; "default": the default one, else what the last load had. unload_first: loaded
    models that make room before; the model's own id among them loads it anew.
    """

    options: dict[str, Any] = Field(default_factory=dict)
    profile: Text | None = Field(default=None, max_length=100)
    unload_first: list[str] = Field(default_factory=list, max_length=16)


class UnloadBody(Incoming):
    """force: end running requests at once. drain_s: how long they may take; absent: as PIZARRA_DRAIN_TIMEOUT_S says."""

    force: bool = False
    drain_s: float | None = Field(default=None, ge=0, le=86400)


class Learned(Outgoing):
    """Earlier loads of these weights: measured bytes over estimated ones, the lowest and the highest (`low`, `high`),
    and those ratios times this estimate. `load_s`: the median of how long they took."""

    loads: int
    low: float
    high: float
    low_bytes: int
    high_bytes: int
    load_s: float


class AfterUnload(Outgoing):
    """What the load would find if this loaded model were unloaded first."""

    model_id: str
    engine_id: str
    frees_bytes: int
    available_bytes: int
    fits: bool


class WayOut(Outgoing):
    """A change that makes the load fit: options to change, or models to unload first. It was estimated and fits."""

    kind: Literal["shorter_context", "fewer_sequences", "kv_8bit", "without_drafter", "no_limit", "unload"]
    options: dict[str, Any]
    unload: list[str]
    total_bytes: int


class Refusal(Outgoing):
    """kind: "does_not_fit": memory is short by `short_by_bytes`; "options": memory would do, an option does not."""

    kind: Literal["does_not_fit", "options"]
    message: str
    short_by_bytes: int


class WhatIf(Estimate):
    """An estimate of a load, against the memory that is free now.

    `free_bytes`: what nobody has of the device; `available_bytes`: what the load may take of it, by limits and shares.
    `learned`: the error bar, null without an earlier load. `refusal`: null where it fits. There is no way to load
    what does not fit: the engine refuses it by the same arithmetic.
    """

    learned: Learned | None
    after_unload: list[AfterUnload]
    refusal: Refusal | None
    ways_out: list[WayOut]


class ProfileBody(Incoming):
    """Load options to keep under a name. default: a load without options takes them from now on."""

    options: dict[str, Any] = Field(default_factory=dict)
    default: bool = False


class Profile(Outgoing):
    """`options`: those that differ from the built-in values. "last used" is kept by each load."""

    name: str
    options: dict[str, Any]
    is_default: bool
    updated_at: float


class Value(Outgoing):
    """What a load with `profile: "default"` takes, and where from: a profile's name, or "built-in"."""

    name: str
    value: Any
    built_in: Any
    source: str


class Difference(Outgoing):
    """An option that the loaded engine has otherwise than the profile: it takes a reload to apply."""

    name: str
    loaded: Any
    saved: Any


class Profiles(Outgoing):
    """`chosen`: the profile that `profile: "default"` means now. `other_weights`: profiles of the same id that were
    saved for other weights, and are not used. `reload_to_apply`: how the loaded engine differs from `chosen`."""

    model_id: str
    model_hash: str
    profiles: list[Profile]
    chosen: str | None
    values: list[Value]
    other_weights: int
    reload_to_apply: list[Difference]


class EngineBody(Incoming):
    """What a loaded engine takes without a reload. idle_unload_s: unload it after so many seconds without a request;
    null: keep it loaded."""

    idle_unload_s: int | None = Field(ge=MIN_IDLE_S, le=MAX_IDLE_S)


class Blocker(Outgoing):
    """A request that an unload would wait for, or end. `source` is null for one of a self-test or a benchmark."""

    id: str
    source: str | None
    state: str | None
    age_s: float | None


class EngineNow(Outgoing):
    """What stands between an engine and its end: its idle time, and the requests that run.

    `idle_unload_at`: epoch seconds, null while it is busy or is to stay. `drain_timeout_s`: how long an unload waits
    for the blockers unless it is told otherwise.
    """

    id: str
    model_id: str
    idle_unload_s: float | None
    idle_unload_at: float | None
    blockers: list[Blocker]
    drain_timeout_s: float


class BenchmarkBody(Incoming):
    """What to measure on a loaded engine. `batches`: how many requests decode at once; those that the engine does not
    run at once are left out, with the reason. `repeats`: of each figure; the median is told with the lowest and the
    highest. `wait_s`: how long to wait for others' requests to end."""

    prompt_tokens: int = Field(default=128, ge=8, le=32768)
    output_tokens: int = Field(default=64, ge=8, le=4096)
    repeats: int = Field(default=3, ge=1, le=20)
    batches: list[int] = Field(default=[1, 4, 16], min_length=1, max_length=8)
    speculation: Literal["both", "on", "off"] = "both"
    wait_s: float = Field(default=120.0, ge=0, le=3600)
