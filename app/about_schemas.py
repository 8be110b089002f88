"""Bodies of /api/about and /api/storage.

Owns field names and types. Knows nothing of where they come from.
"""

from __future__ import annotations

from pydantic import Field

from app.schema_base import Outgoing


class Library(Outgoing):
    """version: null where it is not installed."""

    name: str
    version: str | None
    license: str | None


class Processor(Outgoing):
    """cores: those this process may use. features: of its instruction sets, those that kernels here may use."""

    name: str | None
    architecture: str
    cores: int
    features: list[str]


class EngineKernels(Outgoing):
    """backends: which kernels serve a loaded engine, with how many ops each."""

    model_id: str
    device: str
    dtype: str
    backends: str | None


class Paths(Outgoing):
    home: str
    database: str
    models: str
    logs: str


class About(Outgoing):
    """documents: names of texts under /api/about/documents/{name}."""

    version: str
    python: str
    system: str
    libraries: list[Library]
    processor: Processor
    engines: list[EngineKernels]
    paths: Paths
    documents: list[str]


class RetentionChoice(Outgoing):
    """A setting of that name. value: null where the standard holds."""

    name: str
    value: int | None
    default: int
    least: int
    most: int
    unit: str


class Storage(Outgoing):
    """database_bytes: the file with its write-ahead log. rows: by table. store_bodies: null where it was never set."""

    database_bytes: int
    disk_free_bytes: int
    rows: dict[str, int]
    retention: list[RetentionChoice] = Field(default_factory=list)
    store_bodies: bool | None
