"""What a load would take: what-if questions, bad ones, and who has the memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.devices import DeviceSample
from app.memory_holders import MemoryHolder, in_words, memory_holders
from app.recorder import EngineSnapshot
from engine.config import GIB
from engine.protocol import EngineMemory
from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

OTHER, SMALLER, STRANGE = "second", "smaller", "strange"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("estimate"), MODEL, OTHER)
    tiny_llama_checkpoint(home / "models" / SMALLER, num_hidden_layers=1)
    strange = tiny_llama_checkpoint(home / "models" / STRANGE, num_hidden_layers=1) / "tokenizer.json"
    vocabulary = json.loads(strange.read_text())
    vocabulary["model"]["vocab"] = {f"{word}~": number for word, number in vocabulary["model"]["vocab"].items()}
    vocabulary["model"]["merges"] = []
    strange.write_text(json.dumps(vocabulary))
    with serving(make_settings(home)) as client:
        yield client


def estimate(client: Client, **options: Any) -> dict[str, Any]:
    response = client.post(f"/api/models/{MODEL}/estimate", json={"options": options})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    parts = ("weights_bytes", "drafter_bytes", "kv_bytes", "workspace_bytes", "runtime_bytes")
    assert found["total_bytes"] == sum(found[part] for part in parts)
    assert found["workspace_bytes"] == sum(found["workspace_parts"].values())
    assert found["short_by_bytes"] == max(0, found["total_bytes"] - found["available_bytes"])
    return found


def test_what_if_questions_have_different_answers(client: Client) -> None:
    plain = estimate(client)
    assert plain["fits"]
    longest = plain["max_model_len"]
    short = estimate(client, max_model_len=64)
    assert (short["max_model_len"], longest > 64) == (64, True)
    assert short["kv_bytes"] < plain["kv_bytes"]
    many = estimate(client, max_num_seqs=64)
    assert many["kv_bytes"] > plain["kv_bytes"]
    few, many = (estimate(client, max_num_seqs=count, speculation="off") for count in (16, 64))
    assert many["workspace_parts"]["logits"] == 4 * few["workspace_parts"]["logits"]
    assert plain["workspace_parts"]["logits"] == 9 * few["workspace_parts"]["logits"]  # a token and eight drafts each
    wide = estimate(client, dtype="float32")
    assert wide["weights_bytes"] == 2 * plain["weights_bytes"]
    assert wide["kv_bytes_per_token"] == 2 * plain["kv_bytes_per_token"]
    coded = estimate(client, dtype="float32", kv_cache_dtype="int8")
    assert coded["kv_bytes_per_token"] < wide["kv_bytes_per_token"] / 2
    assert (coded["weights_bytes"], coded["kv_bytes"] < wide["kv_bytes"]) == (wide["weights_bytes"], True)
    exact = estimate(client, kv_cache_memory_bytes=1 << 20)
    assert 0 < exact["kv_bytes"] <= 1 << 20
    longer_steps = estimate(client, max_num_batched_tokens=2048)
    assert longer_steps["workspace_parts"]["activations"] == 4 * plain["workspace_parts"]["activations"]


def test_a_drafter_is_a_part_of_its_own(client: Client) -> None:
    plain = estimate(client)
    assert (plain["drafter_bytes"], plain["speculation"], plain["drafter_note"]) == (0, "suffix", "")
    drafted = estimate(client, drafter=SMALLER)
    assert (drafted["speculation"], drafted["drafter_note"]) == ("hybrid", "")
    assert drafted["drafter_bytes"] > plain["weights_bytes"] / 2
    assert drafted["weights_bytes"] == plain["weights_bytes"]
    assert "drafter" in drafted["message"]
    assert estimate(client, speculation="draft_model", drafter=SMALLER)["speculation"] == "draft_model"
    unused = estimate(client, speculation="suffix", drafter=SMALLER)
    assert unused["drafter_bytes"] == 0
    assert "drafts without one" in unused["drafter_note"]


def test_a_drafter_that_cannot_serve_is_refused_with_the_reason(client: Client) -> None:
    for options, code, says in (
        ({"drafter": STRANGE}, "unfit_drafter", "tokenizer"),
        ({"drafter": SMALLER, "speculation": "eagle"}, "unfit_drafter", "'draft_model'; name that instead"),
        ({"speculation": "medusa"}, "unfit_drafter", "there is no drafter for this model"),
        ({"drafter": "nobody"}, "unknown_drafter", "there is no drafter, model or path of this name"),
    ):
        response = client.post(f"/api/models/{MODEL}/estimate", json={"options": options})
        found = response.json()
        assert (response.status_code, found["type"], found["param"]) == (400, f"urn:pizarra:{code}", "options.drafter")
        assert says in found["detail"], found["detail"]
    job = client.load(drafter=STRANGE)
    assert (job["state"], "tokenizer" in job["error"]) == ("failed", True)


def test_what_does_not_fit_is_answered_with_what_would(client: Client) -> None:
    client.until(lambda: any(holder["kind"] == "app" for holder in estimate(client)["held"]))  # the first sample is in
    tight = estimate(client, max_model_len=512, kv_cache_memory_bytes=1 << 16)
    assert not tight["fits"]
    assert 0 < tight["max_model_len_that_fits"] < 512
    assert f"at most {tight['max_model_len_that_fits']}, the longest that fits" in tight["message"]
    assert "In use already: this server" in tight["message"]
    retry = estimate(client, max_model_len=tight["max_model_len_that_fits"], kv_cache_memory_bytes=1 << 16)
    assert retry["fits"]
    beyond = estimate(client, max_model_len=100_000)
    assert (beyond["fits"], beyond["max_model_len_that_fits"]) == (False, 512)
    assert "the model's own context is 512 tokens" in beyond["message"]
    huge = estimate(client, kv_cache_memory_bytes=1 << 50)
    assert huge["short_by_bytes"] > 0
    assert "At most 512 tokens would fit" in huge["message"]


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        ({"dtype": "int3"}, 400, "known are auto, bfloat16, float32, float64"),
        ({"kv_cache_dtype": "int4"}, 400, "known are auto, int8, fp8"),
        ({"kv_cache_dtype": "fp8", "device": "cpu"}, 400, 'the device is a CPU; use "int8"'),
        ({"kernel_backend": "cuda"}, 400, "known are auto, cpu_ops, triton_ops, reference"),
        ({"kernel_backend": "triton_ops", "device": "cpu"}, 400, "run in Triton's interpreter alone"),
        ({"recorded_steps": "no"}, 400, "recorded_steps"),
        ({"max_model_len": 0}, 400, "max_model_len=0: must lie between"),
        ({"max_model_len": "long"}, 400, "max_model_len"),
        ({"max_num_seqs": 4096}, 400, "must lie between 1 and 1024"),
        ({"kv_cache_memory_bytes": -1}, 400, "kv_cache_memory_bytes=-1"),
        ({"gpu_memory_utilization": 2}, 400, "(0, 1]"),
        ({"max_len": 5}, 422, "unknown load option 'max_len'"),
    ],
)
def test_bad_values_are_named(client: Client, options: dict[str, Any], status: int, says: str) -> None:
    response = client.post(f"/api/models/{MODEL}/estimate", json={"options": options})
    assert response.status_code == status
    assert says in response.json()["detail"]


def test_a_load_that_this_device_cannot_serve_fails_with_the_reason(client: Client) -> None:
    job = client.load(MODEL, kv_cache_dtype="fp8", device="cpu")
    assert job["state"] == "failed"
    assert 'kv_cache_dtype="fp8": needs a CUDA device' in job["error"]


def test_a_loaded_model_and_the_rest_of_the_machine_are_told_by_name(client: Client) -> None:
    before = {each["name"]: each for each in estimate(client)["held"]}
    assert client.load(OTHER)["state"] == "succeeded"
    found = estimate(client)
    held = {each["name"]: each for each in found["held"]}
    assert set(held) - set(before) <= {OTHER, "this server"}
    assert held[OTHER]["kind"] == "engine"
    assert held[OTHER]["bytes"] > 1 << 20
    assert held["other programs"]["kind"] == "other"
    client.until(lambda: {"this server", OTHER} <= {each["name"] for each in estimate(client)["held"]})
    assert sum(each["bytes"] for each in found["held"]) <= found["memory_total_bytes"]


def test_a_refused_load_says_what_the_estimate_said(client: Client) -> None:
    options = {"max_model_len": 512, "kv_cache_memory_bytes": 1 << 16}
    job = client.load(MODEL, **options)
    assert job["state"] == "failed"
    for words in ("the longest that fits", "Beside the KV cache the load needs weights", "other programs"):
        assert words in job["error"]


# ---- the division ---------------------------------------------------------------------------------------------------


def sample(**changes: Any) -> DeviceSample:
    values: dict[str, Any] = {
        "t": 0.0,
        "host_memory_total_bytes": 16 * GIB,
        "host_memory_available_bytes": 8 * GIB,
        "host_memory_used_bytes": 8 * GIB,
        "host_cpu_percent": None,
        "app_process_bytes": GIB,
        "engine_process_bytes": {"run": 2 * GIB},
        "engine_gpu_bytes": {"run": None},
        "disk_free_bytes": None,
        "gpus": (),
        "gpu_unavailable": None,
    }
    return DeviceSample(**(values | changes))


def engine(device: str | None = "cuda:0", memory: EngineMemory | None = None) -> EngineSnapshot:
    stated = EngineMemory(weights_bytes=3, kv_bytes=4, workspace_bytes=5, process_bytes=GIB)
    return EngineSnapshot("run", "smollm2", 1, None, memory or stated, device)


def test_on_the_host_the_shares_add_up() -> None:
    assert memory_holders("cpu", 8 * GIB, sample(), [engine("cpu")]) == [
        MemoryHolder("smollm2", "engine", 2 * GIB),
        MemoryHolder("this server", "app", GIB),
        MemoryHolder("other programs", "other", 5 * GIB),
    ]


def test_an_engine_that_was_not_read_counts_by_its_own_word() -> None:
    holders = memory_holders("cpu", 8 * GIB, None, [engine("cpu")])
    assert holders == [
        MemoryHolder("smollm2", "engine", GIB, measured=False),
        MemoryHolder("other programs", "other", 7 * GIB),
    ]
    loading = EngineSnapshot("new", "big", 2, None, None)
    assert memory_holders("cpu", GIB, sample(), [loading])[-1].bytes == 0, "less is in use than the app alone holds"


def test_on_a_gpu_only_what_lies_there_counts() -> None:
    listed = sample(engine_gpu_bytes={"run": 6 * GIB})
    assert memory_holders("cuda", 8 * GIB, listed, [engine()]) == [
        MemoryHolder("smollm2", "engine", 6 * GIB),
        MemoryHolder("other programs", "other", 2 * GIB),
    ]
    hidden = memory_holders("cuda", GIB, sample(), [engine()])
    assert hidden[0] == MemoryHolder("smollm2", "engine", 12, measured=False)
    assert [each.name for each in memory_holders("cuda", GIB, sample(), [engine("cpu")])] == ["other programs"]


def test_in_words() -> None:
    shares = [MemoryHolder("smollm2", "engine", 2 * GIB), MemoryHolder("other programs", "other", 0)]
    assert in_words(shares) == "In use already: smollm2 2.00 GiB"
    assert in_words([]) == ""
