"""A month of history in a database: fills one, and times what the Monitor page asks of it.

`python -m bench.history HOME` makes HOME/pizarra.db with 24 h of seconds and 30 days of rollups of two engines, then
reads what each tab reads. Owns the made-up figures; the reading is the product's own. Invariant: the rows lie where the
recorder and the upkeep would have put them.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from sqlalchemy import insert, text

from db.connect import open_engine
from db.figures import DEVICE, ENGINE, QUANTILES
from db.histogram import LatencyHistogram
from db.rollup import TIERS
from db.rows import EngineRunRow
from db.store import Store
from db.tables import ROLLUPS, SAMPLES

DAY_S = 86_400
NUM_DAYS = 30
HOLE_S = (8 * 3600, 10 * 3600)  # of each day: nothing was running
GIB = 2**30


def fill(path: Path, end: float) -> None:
    """A day of seconds before `end`, rolled up by the product, and copies of its rollups for the days before."""
    start = end - DAY_S
    store = Store(path, lambda: end)
    for day in range(NUM_DAYS):
        run = EngineRunRow(f"day-{day}", "tiny", "stopped", start - day * DAY_S, ended_at=end - day * DAY_S)
        store.save_engine_run(run).result()
    engine = open_engine(path, writes=True)
    seconds = [t for t in range(DAY_S) if not HOLE_S[0] <= t < HOLE_S[1]]
    with engine.begin() as connection:
        connection.execute(insert(SAMPLES[DEVICE.name]), [_device(start + t + 0.5) for t in seconds])
        connection.execute(insert(SAMPLES[ENGINE.name]), [_engine(start + t + 0.5, t) for t in seconds])
    while store.maintain().result().rolled_up:
        pass
    with engine.begin() as connection:
        for figures in (ENGINE, DEVICE):
            table = ROLLUPS[figures.name]
            names = ", ".join(column.name for column in table.columns)
            for day in range(1, NUM_DAYS):
                shifted = names.replace("engine_run_id", f"'day-{day}'").replace(
                    "step_s, t,", f"step_s, t - {day * DAY_S},"
                )
                kept = " OR ".join(f"step_s = {tier.step_s}" for tier in TIERS if day * DAY_S < tier.keep_s)
                of_first = f" AND t >= {start} AND ({kept})"
                of_run = " AND engine_run_id = 'day-0'" if figures.per_run else ""
                copied = (
                    f"INSERT INTO {table.name} ({names}) SELECT {shifted} FROM {table.name} WHERE 1{of_first}{of_run}"
                )
                connection.execute(text(copied))
    engine.dispose()
    store.close()


def _device(t: float) -> dict[str, float | None]:
    wave = math.sin(t / 700)
    known: dict[str, float] = {
        "host_memory_total_bytes": 16 * GIB,
        "host_memory_used_bytes": (6 + wave) * GIB,
        "host_memory_available_bytes": (10 - wave) * GIB,
        "host_cpu_percent": 100.0 if int(t) % 7200 == 11 else 40 + 20 * wave,  # a peak of one second
        "app_process_bytes": 0.2 * GIB,
        "disk_free_bytes": 90 * GIB,
    }
    return {"t": t, **dict.fromkeys(DEVICE.gauges), **known}


def _engine(t: float, second: int) -> dict[str, float | str | None]:
    wave = 0.5 + 0.5 * math.sin(t / 300)
    ttft, itl = LatencyHistogram(), LatencyHistogram()
    ttft.add(0.08 + 0.4 * wave)
    for token in range(5):
        itl.add(0.01 * (1 + wave) * (1 + token / 5))
    gauges = {
        "num_requests_running": 3,
        "kv_blocks_used": round(400 * wave),
        "kv_blocks_cached": 100,
        "kv_blocks_total": 1000,
        "engine_process_bytes": 2.2 * GIB,
        "weights_bytes": 0.3 * GIB,
        "kv_bytes": GIB,
        "kv_used_bytes": 0.4 * wave * GIB,
        "kv_cached_bytes": 0.1 * GIB,
        "workspace_bytes": 0.2 * GIB,
        "runtime_bytes": 0.5 * GIB,
    }
    return {
        "engine_run_id": "day-0",
        "t": t,
        "counted_at": t - 0.1,
        **dict.fromkeys(ENGINE.gauges),
        **gauges,
        **dict.fromkeys(ENGINE.counters, 20 * second),
        "ttft_histogram": ttft.dumps(),
        "itl_histogram": itl.dumps(),
    }


def measure(path: Path, end: float) -> None:
    """How long a tab's figures take to read, by range."""
    store = Store(path, lambda: end)
    memory = [name for name in (*ENGINE.gauges, *DEVICE.gauges) if name.endswith("_bytes")]
    latency = [*QUANTILES, "generation_tokens_per_s", "num_requests_running", "num_requests_waiting", "requests_per_s"]
    for span, step in ((300, 1), (3600, 5), (DAY_S, 60), (7 * DAY_S, 600), (30 * DAY_S, 1800)):
        line = [f"{span / DAY_S:8.3f} days, step {step:4d} s:"]
        for name, names, bands in (("memory", memory, memory), ("latency", latency, []), ("all", None, [])):
            begin = time.perf_counter()
            series = store.samples(end - span, end, step, names=names, bands=bands)
            line.append(f"{name} {1000 * (time.perf_counter() - begin):6.0f} ms")
        begin = time.perf_counter()
        store.latencies(end - span, end)
        line.append(f"histograms {1000 * (time.perf_counter() - begin):5.0f} ms, {len(series.t)} points")
        print(*line)
    store.close()


def main() -> None:
    """Fill where nothing is yet, then measure."""
    home = Path(sys.argv[1])
    home.mkdir(parents=True, exist_ok=True)
    path = home / "pizarra.db"
    end = float(math.floor(time.time() / 600) * 600)
    if not path.exists():
        fill(path, end)
    print(f"{path}: {path.stat().st_size / 2**20:.0f} MiB")
    measure(path, end)


if __name__ == "__main__":
    main()
