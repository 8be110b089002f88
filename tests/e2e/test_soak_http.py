"""A short `make soak` over HTTP: clients of every kind, those who leave among them, with fewer requests."""

from __future__ import annotations

import pytest

from bench.soak_http import soak


@pytest.mark.timeout(300)  # a server starts and ends in it
def test_clients_who_leave_leave_nothing_behind() -> None:
    assert soak(100, seed=1) == []
