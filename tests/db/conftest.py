"""A store in a temporary folder with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.store import Store
from tests.db.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pizarra.db"


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[Store]:
    store = Store(path, clock)
    yield store
    store.close()
