"""A second's samples as the live feed sends them, with the columns and definitions of the history.

Owns the one remembered row per engine run that rates need. Knows nothing of the database or of sockets.
Invariant: what is sent for a second is what `Store.samples` later returns for it (a test holds the two together).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from db.figures import DEVICE, ENGINE, QUANTILES, RATES, SAMPLE_COLUMNS, of_several
from db.histogram import LatencyHistogram
from db.rows import DeviceSampleRow, EngineSampleRow

Columns = dict[str, float | None]


class LiveColumns:
    """Turns rows into messages of the topic `samples`."""

    def __init__(self) -> None:
        self._before: dict[str, EngineSampleRow] = {}

    def messages(self, device: DeviceSampleRow, engines: Sequence[EngineSampleRow]) -> list[dict[str, Any]]:
        """All engines together (`engine_run_id` None), then each engine, all with the machine's columns."""
        machine: Columns = {name: getattr(device, name) for name in DEVICE.gauges}
        each = {row.engine_run_id: self._engine_columns(row) for row in engines}
        self._before = {row.engine_run_id: row for row in engines}
        quantiles = _quantiles(engines)
        together = {
            name: of_several(name, (columns[name] for columns in each.values())) for name in _JOINED
        } | quantiles
        t = float(math.floor(device.t))
        return [
            {"engine_run_id": run_id, "t": t, "columns": {name: columns[name] for name in SAMPLE_COLUMNS}}
            for run_id, columns in [
                (None, together | machine),
                *((row_id, columns | machine) for row_id, columns in each.items()),
            ]
        ]

    def _engine_columns(self, row: EngineSampleRow) -> Columns:
        columns: Columns = row.figures()
        columns |= {name: self._rate(counter, row) for name, counter in RATES.items()}
        return columns | _quantiles([row])

    def _rate(self, counter: str, row: EngineSampleRow) -> float | None:
        """Growth per second since the row of the second before; None after a gap."""
        before = self._before.get(row.engine_run_id)
        if before is None or math.floor(row.t) - math.floor(before.t) != 1:
            return None
        if row.counted_at is None or before.counted_at is None or row.counted_at <= before.counted_at:
            return None
        growth: float = (getattr(row, counter) - getattr(before, counter)) / (row.counted_at - before.counted_at)
        return growth


_JOINED = (*ENGINE.gauges, *ENGINE.counters, *RATES)


def _quantiles(rows: Iterable[EngineSampleRow]) -> Columns:
    merged = {name: LatencyHistogram() for name in ENGINE.histograms}
    for row in rows:
        for name, histogram in merged.items():
            histogram.merge(getattr(row, name) or LatencyHistogram())
    return {name: merged[histogram].quantile(q) for name, (histogram, q) in QUANTILES.items()}
