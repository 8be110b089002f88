"""/metrics as a Prometheus server reads it, over a real request to a fake engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import REQUEST_BUCKETS, TOKEN_BUCKETS, TTFT_BUCKETS, kv_usage
from engine.protocol import EngineStats
from tests.app.harness import MODEL, Client, make_home, make_settings, serving

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": TTFT_BUCKETS,
    "vllm:inter_token_latency_seconds": TOKEN_BUCKETS,
    "vllm:request_time_per_output_token_seconds": TOKEN_BUCKETS,
    "vllm:e2e_request_latency_seconds": REQUEST_BUCKETS,
    "vllm:request_queue_time_seconds": REQUEST_BUCKETS,
}
COUNTERS = (
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
)
OURS = (
    "pizarra_kv_blocks_used", "pizarra_kv_blocks_cached", "pizarra_kv_blocks", "pizarra_steps", "pizarra_drafts",
    "pizarra_drafted_tokens", "pizarra_accepted_tokens", "pizarra_jobs_running", "pizarra_memory_bytes",
    "pizarra_draft_seconds", "pizarra_verify_seconds", "pizarra_proposer_drafts", "pizarra_proposer_drafted_tokens",
    "pizarra_proposer_accepted_tokens", "pizarra_proposer_draft_seconds", "pizarra_proposer_verify_seconds",
    "pizarra_proposer_on",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("metrics")))) as client:
        yield client


@pytest.fixture
def loaded(client: Client) -> Client:
    if client.get("/ready").json()["models"] != [MODEL]:
        assert client.load()["state"] == "succeeded"
    client.until(lambda: client.get("/api/engines").json()["engines"][0]["stats"])
    return client


def scrape(client: Client) -> dict[str, Metric]:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def value(families: dict[str, Metric], family: str, sample: str, **labels: str) -> float:
    """The one sample of this name with these labels among its own."""
    found = [
        each.value for each in families[family].samples if each.name == sample and labels.items() <= each.labels.items()
    ]
    assert len(found) == 1, f"{sample}{labels}: {found}"
    return float(found[0])


def complete(client: Client, prompt: str = "hi", **fields: object) -> None:
    assert client.post("/v1/completions", json={"prompt": prompt, **fields}).status_code in (200, 500)


def test_every_series_is_there_before_and_after_a_request(loaded: Client) -> None:
    for _ in range(2):
        found = scrape(loaded)
        for name in (*GAUGES, *COUNTERS, *HISTOGRAMS, *OURS):
            assert found[name].samples, name
        for name in (*GAUGES, *COUNTERS, *HISTOGRAMS):
            assert all({"model_name", "engine"} <= sample.labels.keys() for sample in found[name].samples), name
            assert {sample.labels["model_name"] for sample in found[name].samples} == {MODEL}
        complete(loaded, max_tokens=5)


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histograms_count_requests_in_vllms_buckets(loaded: Client, name: str) -> None:
    before = value(scrape(loaded), name, f"{name}_count")
    complete(loaded, max_tokens=5)
    found = scrape(loaded)
    assert value(found, name, f"{name}_count") == before + (4 if "inter_token" in name else 1)
    bounds = [float(each.labels["le"]) for each in found[name].samples if each.name.endswith("_bucket")]
    assert bounds == [*HISTOGRAMS[name], float("inf")]


def test_requests_are_counted_by_how_they_ended(loaded: Client) -> None:
    def ended(reason: str) -> float:
        return value(scrape(loaded), "vllm:request_success", "vllm:request_success_total", finished_reason=reason)

    def failed() -> float:
        return value(scrape(loaded), "pizarra_requests_failed", "pizarra_requests_failed_total")

    before = ended("length"), ended("stop"), failed()
    complete(loaded, max_tokens=5)
    complete(loaded, max_tokens=200)
    complete(loaded, "FAIL")
    assert (ended("length"), ended("stop"), failed()) == (before[0] + 1, before[1] + 1, before[2] + 1)


def test_counters_never_fall_within_a_run_and_a_run_takes_its_series_along(loaded: Client) -> None:
    def totals() -> dict[tuple[str, str], float]:
        return {
            (each.name, str(sorted(each.labels.items()))): each.value
            for family in scrape(loaded).values()
            for each in family.samples
            if each.name.endswith(("_total", "_count", "_bucket"))
        }

    before = totals()
    complete(loaded, max_tokens=20)
    loaded.until(lambda: totals() != before)
    after = totals()
    assert before.keys() == after.keys()
    assert all(after[key] >= before[key] for key in before)
    run = loaded.get("/api/engines").json()["engines"][0]["id"]
    assert loaded.unload()["state"] == "succeeded"
    assert run not in loaded.get("/metrics").text
    assert "pizarra_jobs_running" in scrape(loaded)


def test_speculation_is_told_in_vllms_words_and_per_proposer(loaded: Client) -> None:
    """Five tokens, each with three drafts, of which two were right: see the fake engine."""

    def figures() -> dict[str, float]:
        found = scrape(loaded)
        drafts = "vllm:spec_decode_num_drafts"
        accepted = "vllm:spec_decode_num_accepted_tokens_per_pos"
        told = {
            "drafts": value(found, drafts, f"{drafts}_total", model_name=MODEL),
            "drafted": value(found, "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_draft_tokens_total"),
            "accepted": value(
                found, "vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_accepted_tokens_total"
            ),
            "draft_s": value(found, "pizarra_draft_seconds", "pizarra_draft_seconds_total"),
            "verify_s": value(found, "pizarra_verify_seconds", "pizarra_verify_seconds_total"),
        }
        for sample in found[accepted].samples:
            told[f"accepted at {sample.labels['position']}"] = sample.value
        for sample in found["pizarra_drafted_tokens_per_pos"].samples:
            told[f"drafted at {sample.labels['position']}"] = sample.value
        for name in ("drafts", "drafted_tokens", "accepted_tokens", "draft_seconds"):
            for proposer in ("suffix", "ngram"):
                family = f"pizarra_proposer_{name}"
                told[f"{proposer} {name}"] = value(found, family, f"{family}_total", proposer=proposer)
        return told

    before = figures()
    complete(loaded, "DRAFT", max_tokens=5)
    loaded.until(lambda: figures()["drafts"] > before["drafts"])
    after = figures()
    grown = {name: round(after[name] - before.get(name, 0), 6) for name in after}
    assert [grown[name] for name in ("drafts", "drafted", "accepted")] == [5, 15, 10]
    assert [grown[f"accepted at {position}"] for position in range(3)] == [5, 5, 0]
    assert [grown[f"drafted at {position}"] for position in range(3)] == [5, 5, 5]
    assert (grown["draft_s"], grown["verify_s"]) == (0.005, 0.01)
    per_proposer = ("drafts", "drafted_tokens", "accepted_tokens", "draft_seconds")
    assert [grown[f"suffix {name}"] for name in per_proposer] == [5, 15, 10, 0.005]
    assert [grown[f"ngram {name}"] for name in per_proposer] == [0, 0, 0, 0]
    found = scrape(loaded)
    assert value(found, "pizarra_speculation_gain", "pizarra_speculation_gain", model_name=MODEL) == 1.25
    assert value(found, "pizarra_proposer_on", "pizarra_proposer_on", proposer="suffix") == 1


def test_the_machine_is_read(loaded: Client) -> None:
    loaded.until(lambda: "pizarra_engine_process_bytes" in scrape(loaded))
    loaded.until(lambda: scrape(loaded)["pizarra_engine_process_bytes"].samples)
    found = scrape(loaded)
    assert value(found, "pizarra_engine_process_bytes", "pizarra_engine_process_bytes", model_name=MODEL) > 0
    assert value(found, "pizarra_host_memory_total_bytes", "pizarra_host_memory_total_bytes") > 0


def test_usage_of_an_engine_without_blocks_is_zero() -> None:
    names = EngineStats.__struct_fields__[1 : EngineStats.__struct_fields__.index("step_s_total") + 1]
    stats = EngineStats(t_s=0.0, **dict.fromkeys(names, 0))
    assert kv_usage(stats) == 0.0
