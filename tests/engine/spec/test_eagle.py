"""EAGLE drafts, token for token, against the public drafter in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.speculation import SpeculationParams
from kernels.cpu_ops.tape import Tape
from tests.engine.spec.tiny_drafters import LAYERS, Oracle, eagle_config, eagle_tensors, write_drafter
from tests.engine.spec.watched import Watched
from tests.engine.stepping import complete, load, rows_until_done
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("target") / "tiny", num_hidden_layers=4)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "eagle", eagle_config(), eagle_tensors())


def prompt(seed: int, length: int = 21) -> list[int]:
    return torch.randint(3, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def check_drafts(watched: Watched, oracle: Oracle, least: int) -> None:
    """Every draft that was made is the oracle's, and there were enough of them."""
    drafted = [made for made in watched.made if made.draft.token_ids]
    assert len(drafted) >= least
    for made in drafted:
        scores = oracle.eagle_scores(made.tokens, made.wanted)
        assert list(made.draft.token_ids) == [oracle.target_id(int(line.argmax())) for line in scores], made
        chances = [float(line.softmax(0).max()) for line in scores]  # which tell more than tokens what was attended to
        assert made.draft.confidence == pytest.approx(chances, rel=5e-3), made


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("before", [False, True], ids=["", "norm_before_residual"])
def test_drafts_are_those_of_the_public_drafter(
    before: bool, dtype: str, target: Path, drafter: Path, tmp_path: Path
) -> None:
    """Over many turns, nearly all of whose drafts are rejected: three requests of different lengths at once."""
    if before:
        drafter = write_drafter(tmp_path / "eagle", eagle_config(norm_before_residual=True), eagle_tensors())
    watched = Watched(target, drafter, "eagle", dtype=dtype, max_num_seqs=4)
    plain = load(target, dtype=dtype, speculation="off")
    requests = {str(index): (prompt(index, 5 + 9 * index), GREEDY) for index in range(3)}
    assert complete(watched.engine, requests) == complete(plain.engine, requests)
    check_drafts(watched, Oracle(target, drafter), least=20)
    counts = watched.engine.speculator.total
    assert counts.drafted > counts.accepted


def test_some_drafts_are_accepted_and_the_next_ones_are_right(target: Path, tmp_path: Path) -> None:
    """With the target's own head over the hidden state of its last layer a drafter is right now and then."""
    tensors = eagle_tensors(draft_vocab=320)
    tensors["d2t"].zero_()
    tensors |= copying_layer(target, tensors)
    drafter = write_drafter(tmp_path / "eagle", eagle_config(draft_vocab_size=320), tensors)
    watched = Watched(target, drafter, "eagle", dtype="float64", k=6)
    complete(watched.engine, {str(index): (prompt(index), GREEDY) for index in range(4)})
    check_drafts(watched, Oracle(target, drafter), least=20)
    assert watched.engine.speculator.total.accepted > 0


def copying_layer(target: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A drafter that mostly says the last token again: little attention and MLP, the target's own embedding as head."""
    from safetensors.torch import load_file

    table = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    names = ("midlayer.self_attn.o_proj.weight", "midlayer.mlp.down_proj.weight")
    return {name: tensors[name] * 0.3 for name in names} | {
        "fc.weight": torch.cat([torch.zeros(64, 128), torch.eye(64)], dim=1),
        "lm_head.weight": table.clone(),
    }


def test_a_prefix_from_the_cache_needs_no_catching_up_but_where_nobody_drafted(target: Path, drafter: Path) -> None:
    watched = Watched(target, drafter, "eagle", dtype="float64")
    oracle, text = Oracle(target, drafter), prompt(7, 70)
    complete(watched.engine, {"a": (text, GREEDY)})
    watched.made.clear()
    sizes = first_pass_sizes(watched)
    complete(watched.engine, {"b": (text[:48] + prompt(8, 9), GREEDY)})
    assert watched.engine.scheduler.prefix_hits == 48
    assert sizes[0] == 57 + 1 - 48  # the shared blocks' entries are there
    check_drafts(watched, oracle, least=5)
    watched.skipping = 1000
    complete(watched.engine, {"c": (prompt(9, 64), GREEDY)})  # nobody drafts for it
    watched.skipping = 0
    watched.made.clear()
    complete(watched.engine, {"d": ([*prompt(9, 64), 5, 6], GREEDY)})
    assert watched.engine.scheduler.prefix_hits == 48 + 64
    assert sizes[-1] <= 5
    assert 66 + 1 in sizes
    check_drafts(watched, oracle, least=5)


def first_pass_sizes(watched: Watched) -> list[int]:
    """The rows of every first pass from now on."""
    sizes: list[int] = []
    batch: Any = watched.runner.drafter._batch  # type: ignore[union-attr]
    fill = batch.first

    def first(rows: Any) -> Any:
        sizes.append(len(rows.token_ids))
        return fill(rows)

    batch.first = first
    return sizes


def test_turns_without_drafts_are_caught_up_with(target: Path, drafter: Path) -> None:
    watched = Watched(target, drafter, "eagle", dtype="float64")
    watched.skipping = 6
    complete(watched.engine, {"a": (prompt(3), GREEDY), "b": (prompt(4, 40), GREEDY)})
    check_drafts(watched, Oracle(target, drafter), least=10)


def test_a_long_text_is_caught_up_with_in_parts(target: Path, drafter: Path) -> None:
    """A pass has 16 rows here, the prompts 70 and 90: no draft until everything before it is there."""
    watched = Watched(target, drafter, "eagle", dtype="float64", max_num_batched_tokens=16, max_num_seqs=3)
    sizes = first_pass_sizes(watched)
    complete(watched.engine, {"a": (prompt(3, 70), GREEDY), "b": (prompt(4, 90), GREEDY), "c": (prompt(5, 3), GREEDY)})
    assert max(sizes) == 16
    assert any(not made.draft.token_ids for made in watched.made)
    for name in "abc":
        assert any(made.draft.token_ids for made in watched.made if made.request_id == name)
    check_drafts(watched, Oracle(target, drafter), least=15)


def test_preempted_requests_begin_anew(target: Path, drafter: Path) -> None:
    """A pool for little more than one request, so that they take each other's blocks away."""
    block = 4 * 2 * 2 * 16 * 16 * 8
    watched = Watched(
        target, drafter, "eagle", dtype="float64", kv_cache_memory_bytes=9 * block, max_model_len=96, max_num_seqs=3
    )
    requests = {str(index): (prompt(index, 30), GREEDY) for index in range(3)}
    plain = load(target, dtype="float64", speculation="off")
    assert complete(watched.engine, requests) == complete(plain.engine, requests)
    assert watched.engine.scheduler.num_preemptions > 0
    check_drafts(watched, Oracle(target, drafter), least=10)


def test_an_aborted_request_leaves_nothing_behind(target: Path, drafter: Path) -> None:
    watched = Watched(target, drafter, "eagle", dtype="float64", enable_prefix_caching=False)
    for _ in range(2):
        assert watched.engine.add_request("a", prompt(1), GREEDY) is None
        for _ in range(4):
            watched.engine.step()
        watched.engine.abort_request("a")
    rows_until_done(watched.engine)
    complete(watched.engine, {"a": (prompt(2, 33), GREEDY)})
    check_drafts(watched, Oracle(target, drafter), least=8)


def test_windowed_layers_beside_full_ones(drafter: Path, tmp_path: Path) -> None:
    """The drafter's entries lie in the blocks of the full-attention group, which no window passes."""
    settings: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 32,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "attention_bias": False,
    }
    target = tiny_llama_checkpoint(tmp_path / "qwen", num_hidden_layers=4, **settings)
    add_biases(target)
    watched = Watched(target, drafter, "eagle", dtype="float32")
    assert len(watched.loaded.plan.kv.groups) > 1
    plain = load(target, dtype="float32", speculation="off")
    requests = {"a": (prompt(1, 90), GREEDY), "b": (prompt(2, 20), GREEDY)}
    assert complete(watched.engine, requests) == complete(plain.engine, requests)
    assert sum(len(made.draft.token_ids) == made.wanted for made in watched.made) > 10


def add_biases(target: Path) -> None:
    """Qwen 2 wants biases of q, k and v; these are 0."""
    from safetensors.torch import load_file, save_file

    path = target / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        tensors[name.replace("weight", "bias")] = torch.zeros(len(tensors[name]))
    save_file(tensors, path)


def test_passes_are_replayed_and_draft_the_same(target: Path, drafter: Path) -> None:
    recorded = Watched(target, drafter, "eagle", dtype="bfloat16")
    eager = Watched(target, drafter, "eagle", dtype="bfloat16", recorded_steps=False)
    requests = {str(index): (prompt(index), GREEDY) for index in range(3)}
    for watched in (recorded, eager):
        complete(watched.engine, requests)
    assert [made.draft for made in recorded.made] == [made.draft for made in eager.made]
    tape = recorded.runner.drafter.recorder  # type: ignore[union-attr]
    assert isinstance(tape, Tape)
    assert tape.num_replays > 10
    assert not tape.faults()


def test_the_confidence_is_the_drafters_probability(target: Path, drafter: Path) -> None:
    watched = Watched(target, drafter, "eagle", dtype="float64")
    complete(watched.engine, {"a": (prompt(1), GREEDY)})
    made = next(made for made in watched.made if len(made.draft.token_ids) == 4)
    scores = Oracle(target, drafter).eagle_scores(made.tokens, 4)
    wanted = [float(line.softmax(0).max()) for line in scores]
    assert made.draft.confidence == pytest.approx(wanted, rel=1e-6)


def test_leaving_features_behind_changes_no_bit(target: Path, drafter: Path) -> None:
    plain, tapped = load(target, speculation="off"), load(target, speculation="eagle", drafter=str(drafter))
    tap = tapped.runner.drafter.tap  # type: ignore[union-attr]
    assert tap is not None
    assert sorted(tap.columns) == list(LAYERS)
    sampling = SamplingParams(max_tokens=12, temperature=0, logprobs=5, ignore_eos=True)
    found = []
    for loaded in (plain, tapped):
        loaded.engine.add_request("a", prompt(1), sampling)
        found.append([(row.token_ids, row.logprobs) for row in rows_until_done(loaded.engine)])
    tokens = [[token for row in rows for token in row[0]] for rows in found]
    values = [[value for row in rows for value in row[1].logprobs] for rows in found]  # type: ignore[union-attr]
    assert tokens[0] == tokens[1]
    assert values[0] == values[1]


def test_requests_that_want_different_numbers_of_drafts(target: Path, drafter: Path) -> None:
    watched = Watched(target, drafter, "eagle", dtype="float64")
    for index, wanted in enumerate((1, 4, 2)):
        wish = SpeculationParams(num_speculative_tokens=wanted)
        assert watched.engine.add_request(str(index), prompt(index), GREEDY, speculation=wish) is None
    rows_until_done(watched.engine)
    assert {(made.request_id, len(made.draft.token_ids)) for made in watched.made} >= {("0", 1), ("1", 4), ("2", 2)}
    check_drafts(watched, Oracle(target, drafter), least=20)


def test_drafts_end_where_nothing_is_left_to_keep_scores_in(target: Path, drafter: Path) -> None:
    """Room for five tokens' scores: the first request takes four, the next one, and a greedy one needs none."""
    watched = Watched(target, drafter, "eagle", dtype="float64", speculation_rule="rejection")
    watched.runner.drafter._sampler._kept_rows = 5  # type: ignore[union-attr]
    sampled = SamplingParams(max_tokens=24, temperature=1.0, seed=3, ignore_eos=True)
    wishes = {"0": sampled, "1": sampled, "2": GREEDY}
    complete(watched.engine, {name: (prompt(int(name)), wish) for name, wish in wishes.items()})
    found = [len(made.draft.token_ids) for made in watched.made]
    assert found[:3] == [4, 1, 4]
    greedy = Watched(target, drafter, "eagle", dtype="float64")
    greedy.made = [made for made in watched.made if made.request_id == "2"]
    check_drafts(greedy, Oracle(target, drafter), least=5)
