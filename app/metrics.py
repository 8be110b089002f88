"""/metrics: what engines and the machine count, in Prometheus' words.

Owns names, labels and buckets. Counts nothing that an engine counts: those figures are read when they are asked for.
Invariant: every series of an engine bears its model and its run, so that counters of one series never fall; the series
of an engine that has ended are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as LiveCounter
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.devices import DeviceSample
from app.metrics_speculation import speculation_families
from app.recorder import EngineSnapshot
from db.rows import RequestRow
from engine.protocol import EngineStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
LABELS = ("model_name", "engine")
FINISHED_REASONS = ("stop", "length", "abort")

# the buckets of vLLM's histograms of the same names, so that quantiles can be compared
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip

GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("vllm:num_requests_running", "Requests in the running batch.", lambda s: s.num_requests_running),
    ("vllm:num_requests_waiting", "Requests in the engine's queue.", lambda s: s.num_requests_waiting),
    ("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", lambda s: kv_usage(s)),
    ("pizarra_kv_blocks_used", "KV blocks that running requests hold.", lambda s: s.kv_blocks_used),
    ("pizarra_kv_blocks_cached", "KV blocks kept for prompts that begin alike.", lambda s: s.kv_blocks_cached),
    ("pizarra_kv_blocks", "KV blocks there are.", lambda s: s.kv_blocks_total),
)
COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    (
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_cache_queries_total,
    ),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda s: s.prefix_cache_hits_total),
    ("vllm:num_preemptions", "Requests put back into the queue to make room.", lambda s: s.preemptions_total),
    ("vllm:prompt_tokens", "Prompt tokens computed.", lambda s: s.prompt_tokens_total),
    ("vllm:generation_tokens", "Tokens generated.", lambda s: s.generation_tokens_total),
    ("pizarra_requests_finished", "Requests that ended, for whatever reason.", lambda s: s.requests_finished_total),
    ("pizarra_steps", "Steps of the engine.", lambda s: s.steps_total),
    ("pizarra_step_seconds", "Time spent in steps.", lambda s: s.step_s_total),
    ("pizarra_drafts", "Drafts verified.", lambda s: s.drafts_total),
    ("pizarra_drafted_tokens", "Tokens proposed by drafts.", lambda s: s.drafted_total),
    ("pizarra_accepted_tokens", "Drafted tokens that were accepted.", lambda s: s.accepted_total),
)
MEMORY_PARTS = ("weights", "draft_weights", "kv", "workspace", "runtime")


def kv_usage(stats: EngineStats) -> float:
    return stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0


class Metrics:
    """Takes in requests as they end, and tells everything as text. All methods belong to the event loop."""

    def __init__(
        self,
        engines: Callable[[], list[EngineSnapshot]],
        device: Callable[[], DeviceSample | None],
        num_jobs: Callable[[], int],
    ) -> None:
        self._engines = engines
        self._registry = CollectorRegistry()
        self._registry.register(_Readings(engines, device, num_jobs))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=buckets, registry=self._registry)

        self._ttft = histogram("vllm:time_to_first_token_seconds", "Time to the first token.", TTFT_BUCKETS)
        self._itl = histogram("vllm:inter_token_latency_seconds", "Time from token to token.", TOKEN_BUCKETS)
        self._tpot = histogram(
            "vllm:request_time_per_output_token_seconds", "A request's mean time per token after the first.",
            TOKEN_BUCKETS,
        )  # fmt: skip
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "From request to last token.", REQUEST_BUCKETS)
        self._queue = histogram("vllm:request_queue_time_seconds", "Time in the engine's queue.", REQUEST_BUCKETS)
        self._histograms = (self._ttft, self._itl, self._tpot, self._e2e, self._queue)
        self._success = LiveCounter(
            "vllm:request_success", "Requests that ended without an error.", (*LABELS, "finished_reason"),
            registry=self._registry,
        )  # fmt: skip
        self._failed = LiveCounter("pizarra_requests_failed", "Requests that ended with an error.", LABELS,
                                   registry=self._registry)  # fmt: skip
        self._runs: set[tuple[str, str]] = set()

    def observe(self, row: RequestRow, token_gaps: Iterable[float]) -> None:
        """Count a request that has ended."""
        run = (row.model_id, row.engine_run_id or "")
        self._begin(run)
        if row.state == "failed":
            self._failed.labels(*run).inc()
            return
        self._success.labels(*run, row.finish_reason).inc()
        if row.e2e_s is not None:
            self._e2e.labels(*run).observe(row.e2e_s)
        if row.queue_s is not None:
            self._queue.labels(*run).observe(row.queue_s)
        if row.ttft_s is not None:
            self._ttft.labels(*run).observe(row.ttft_s)
        gaps = list(token_gaps)
        for gap in gaps:
            self._itl.labels(*run).observe(gap)
        if gaps:
            self._tpot.labels(*run).observe(sum(gaps) / len(gaps))

    def render(self) -> bytes:
        """All series in the text format."""
        alive = {(engine.model_id, engine.engine_run_id) for engine in self._engines()}
        for run in self._runs - alive:
            self._forget(run)
        for run in alive - self._runs:
            self._begin(run)
        return generate_latest(self._registry)

    def _begin(self, run: tuple[str, str]) -> None:
        """Series begin at zero, so that the first request already makes a difference."""
        self._runs.add(run)
        for histogram in self._histograms:
            histogram.labels(*run)
        self._failed.labels(*run)
        for reason in FINISHED_REASONS:
            self._success.labels(*run, reason)

    def _forget(self, run: tuple[str, str]) -> None:
        self._runs.discard(run)
        for metric in (*self._histograms, self._failed):
            metric.remove(*run)
        for reason in FINISHED_REASONS:
            self._success.remove(*run, reason)


class _Readings(Collector):
    """What is read at the moment of the question. A figure that is not known has no series."""

    def __init__(
        self,
        engines: Callable[[], list[EngineSnapshot]],
        device: Callable[[], DeviceSample | None],
        num_jobs: Callable[[], int],
    ) -> None:
        self._engines = engines
        self._device = device
        self._num_jobs = num_jobs

    def collect(self) -> Iterator[Metric]:
        engines = self._engines()
        counted = [((engine.model_id, engine.engine_run_id), engine.stats) for engine in engines]
        for name, text, read in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            for labels, stats in counted:
                if stats is not None:
                    gauge.add_metric(labels, read(stats))
            yield gauge
        for name, text, read in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for labels, stats in counted:
                if stats is not None:
                    counter.add_metric(labels, read(stats))
            yield counter
        yield from speculation_families([(run, stats) for run, stats in counted if stats is not None], LABELS)
        yield _memory_parts(engines)
        yield GaugeMetricFamily("pizarra_jobs_running", "Jobs that run.", value=self._num_jobs())
        device = self._device()
        if device is not None:
            yield from _machine(device, engines)


def _memory_parts(engines: list[EngineSnapshot]) -> GaugeMetricFamily:
    """What each engine's memory was for when it was ready."""
    family = GaugeMetricFamily("pizarra_memory_bytes", "An engine's memory, by purpose.", labels=(*LABELS, "part"))
    for engine in engines:
        for part in MEMORY_PARTS if engine.memory is not None else ():
            value = getattr(engine.memory, f"{part}_bytes")
            family.add_metric((engine.model_id, engine.engine_run_id, part), value)
    return family


def _machine(device: DeviceSample, engines: list[EngineSnapshot]) -> Iterator[Metric]:
    """The newest reading of the machine."""
    process = GaugeMetricFamily("pizarra_engine_process_bytes", "Memory of the engine's processes.", labels=LABELS)
    on_gpu = GaugeMetricFamily("pizarra_engine_gpu_bytes", "GPU memory of the engine's processes.", labels=LABELS)
    for engine in engines:
        labels = (engine.model_id, engine.engine_run_id)
        for family, readings in ((process, device.engine_process_bytes), (on_gpu, device.engine_gpu_bytes)):
            if (value := readings.get(engine.engine_run_id)) is not None:
                family.add_metric(labels, value)
    yield from (process, on_gpu)
    for name, text, reading in (
        ("pizarra_app_process_bytes", "Memory of the app's process.", device.app_process_bytes),
        ("pizarra_host_memory_total_bytes", "Memory this machine may use.", device.host_memory_total_bytes),
        ("pizarra_host_memory_used_bytes", "Memory in use on this machine.", device.host_memory_used_bytes),
        ("pizarra_disk_free_bytes", "Free space where the data folder is.", device.disk_free_bytes),
    ):
        if reading is not None:
            yield GaugeMetricFamily(name, text, value=reading)
    used = GaugeMetricFamily("pizarra_gpu_memory_used_bytes", "Memory in use on a GPU.", labels=("gpu",))
    total = GaugeMetricFamily("pizarra_gpu_memory_total_bytes", "Memory of a GPU.", labels=("gpu",))
    for gpu in device.gpus:
        for family, value in ((used, gpu.memory_used_bytes), (total, gpu.memory_total_bytes)):
            if value is not None:
                family.add_metric((str(gpu.index),), value)
    yield from (used, total)
