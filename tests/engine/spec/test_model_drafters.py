"""Draft models and Medusa heads: what they draft, how they sample, and whose tokens they know."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from engine.core.sampling_params import SamplingParams
from engine.vocab import load_vocab
from engine.vocab_map import NOTHING, VocabMapError, map_vocabs
from tests.engine.spec.tiny_drafters import (
    Oracle,
    eagle_config,
    eagle_tensors,
    medusa_tensors,
    write_drafter,
)
from tests.engine.spec.watched import Watched
from tests.engine.stepping import complete, load
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint, tiny_tokenizer

GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("target") / "tiny", num_hidden_layers=4)


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft") / "tiny"
    return tiny_llama_checkpoint(folder, seed=5, num_hidden_layers=1, hidden_size=32, head_dim=8)


def prompt(seed: int, length: int = 21) -> list[int]:
    return torch.randint(3, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def sampled(seed: int, **wishes: float) -> SamplingParams:
    return SamplingParams(max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True, **wishes)  # type: ignore[arg-type]


WISHES = [GREEDY, sampled(1), sampled(2, top_p=0.8, top_k=40), sampled(3, min_p=0.05)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_drafter_that_is_the_target_is_always_right(dtype: str, target: Path) -> None:
    """Greedy and sampled, under the rule "match": the same scores and the same noise give the same tokens."""
    watched = Watched(target, target, "draft_model", dtype=dtype, max_num_seqs=4)
    complete(watched.engine, {str(i): (prompt(i, 5 + 11 * i), wish) for i, wish in enumerate(WISHES)})
    counts = watched.engine.speculator.total
    assert counts.drafted == counts.accepted > 60
    assert watched.made[0].wanted == 4


def test_rejection_accepts_a_drafter_that_is_the_target(target: Path) -> None:
    """p and q are the same there, but for what the filters round: p / q is 1 for every draft."""
    watched = Watched(target, target, "draft_model", dtype="float32", speculation_rule="rejection", max_num_seqs=4)
    complete(watched.engine, {str(i): (prompt(i), wish) for i, wish in enumerate(WISHES)})
    counts = watched.engine.speculator.total
    assert counts.drafted == counts.accepted > 60


def test_a_smaller_model_drafts_its_own_greedy_continuation(target: Path, smaller: Path) -> None:
    watched = Watched(target, smaller, "draft_model", dtype="float32", max_num_seqs=4)
    requests = {str(i): (prompt(i, 5 + 11 * i), GREEDY) for i in range(3)}
    plain = load(target, dtype="float32", speculation="off")
    assert complete(watched.engine, requests) == complete(plain.engine, requests)
    alone = load(smaller, dtype="float32", speculation="off", max_num_seqs=16)
    made = [one for one in watched.made if one.draft.token_ids][::5]
    assert len(made) >= 8
    for start in range(0, len(made), 8):
        part = made[start : start + 8]
        asked = {
            str(i): (one.tokens, SamplingParams(max_tokens=one.wanted, temperature=0, ignore_eos=True))
            for i, one in enumerate(part)
        }
        found = complete(alone.engine, asked)
        assert [list(one.draft.token_ids) for one in part] == [found[str(i)] for i in range(len(part))]


def test_a_draft_model_drafts_as_far_as_it_reads(target: Path, tmp_path: Path) -> None:
    """The same weights under a shorter context: no draft reaches beyond it, the text goes on, and the load tells."""
    shorter = tiny_llama_checkpoint(tmp_path / "short", num_hidden_layers=4, max_position_embeddings=32)
    watched = Watched(target, shorter, "draft_model", dtype="float32")
    texts = complete(watched.engine, {"a": (prompt(1, 21), GREEDY)})
    plain = load(target, dtype="float32", speculation="off")
    assert texts == complete(plain.engine, {"a": (prompt(1, 21), GREEDY)})
    reaches = [len(one.tokens) + len(one.draft.token_ids) for one in watched.made]
    assert 28 < max(reaches) <= 32 < 21 + len(texts["a"])
    setting = next(each for each in watched.loaded.settings if each.name == "drafter context")
    assert (setting.effective, "32 tokens" in setting.reason) == ("32 tokens", True)


def test_a_draft_model_with_windows_of_its_own(target: Path, tmp_path: Path) -> None:
    """Mistral's layers have one; the drafter keeps all keys, and sees as many as the model alone would."""
    windowed: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24}
    model = tiny_llama_checkpoint(tmp_path / "mistral", seed=6, **windowed)
    watched = Watched(target, model, "draft_model", dtype="float32")
    complete(watched.engine, {"a": (prompt(1, 60), GREEDY)})
    alone = load(model, dtype="float32", speculation="off")
    one = next(made for made in reversed(watched.made) if made.draft.token_ids)
    asked = SamplingParams(max_tokens=one.wanted, temperature=0, ignore_eos=True)
    assert complete(alone.engine, {"a": (one.tokens, asked)})["a"] == list(one.draft.token_ids)


@pytest.mark.parametrize("padding", [-64, 64], ids=["fewer rows", "more rows"])
def test_padded_vocabularies_are_one(padding: int, tmp_path: Path) -> None:
    """The larger embedding has rows for no token; what they score is never drafted, and never read as an input."""
    folder = tiny_llama_checkpoint(tmp_path / "short")
    size = 320 + abs(padding)
    padded = tiny_llama_checkpoint(tmp_path / "padded", vocab_size=size)
    table = load_file(folder / "model.safetensors")
    more = table["model.embed_tokens.weight"][:64] * 3  # scores that would often be the largest
    table["model.embed_tokens.weight"] = torch.cat([table["model.embed_tokens.weight"], more])
    save_file(table, padded / "model.safetensors")
    target, draft = (folder, padded) if padding > 0 else (padded, folder)
    watched = Watched(target, draft, "draft_model", dtype="float32")
    complete(watched.engine, {str(i): (prompt(i), wish) for i, wish in enumerate(WISHES)})
    drafted = [token for made in watched.made for token in made.draft.token_ids]
    assert max(drafted) < 320
    assert len(drafted) > 60


# ---- other tokenizers -----------------------------------------------------------------------------------------------


def with_tokenizer(folder: Path, order: list[int], kept: int | None = None) -> Path:
    """The checkpoint with its tokens' ids in another order, and its embedding with them: the same model of text.

    order[new id] = old id. kept: only so many of the new ids are tokens of the target's; the rest is renamed.
    """
    path = folder / "tokenizer.json"
    values = json.loads(tiny_tokenizer().to_str())
    texts = {token_id: text for text, token_id in values["model"]["vocab"].items()}
    new = {texts[old]: position for position, old in enumerate(order)}
    values["model"]["vocab"] = new
    for added in values["added_tokens"]:
        added["id"] = new[added["content"]]
    path.write_text(json.dumps(values), encoding="utf-8")
    if kept is not None:
        path.write_text(renamed(kept).to_str(), encoding="utf-8")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][order].clone()
    save_file(weights, folder / "model.safetensors")
    return folder


def renamed(kept: int) -> Tokenizer:
    """The tiny tokenizer, all tokens but the first `kept` called otherwise."""
    values = json.loads(tiny_tokenizer().to_str())
    values["model"]["vocab"] = {
        (text if number < kept else f"other{number}"): number
        for number, text in enumerate(sorted(values["model"]["vocab"], key=values["model"]["vocab"].__getitem__))
    }
    values["model"]["merges"] = []
    return Tokenizer.from_str(json.dumps(values))


def test_another_order_of_the_same_tokens_is_mapped(target: Path, tmp_path: Path) -> None:
    """The draft model is the target under other ids: greedily it is always right, and sampled as often as by its
    own."""
    order = [0, 1, 2, *reversed(range(3, 320))]
    draft = with_tokenizer(tiny_llama_checkpoint(tmp_path / "draft", num_hidden_layers=4), order)
    watched = Watched(target, draft, "draft_model", dtype="float32", max_num_seqs=4)
    told = {setting.name: setting.reason for setting in watched.loaded.settings}
    assert "320 tokens that both have" in told["drafter tokens"]
    complete(watched.engine, {str(i): (prompt(i), wish) for i, wish in enumerate(WISHES)})
    counts = watched.engine.speculator.total
    assert counts.drafted == counts.accepted > 60


def test_tokens_that_only_one_has_are_never_drafted(target: Path, tmp_path: Path) -> None:
    draft = with_tokenizer(tiny_llama_checkpoint(tmp_path / "draft", seed=9), list(range(320)), kept=250)
    watched = Watched(target, draft, "draft_model", dtype="float32", speculation_rule="rejection", max_num_seqs=4)
    complete(watched.engine, {str(i): (prompt(i), wish) for i, wish in enumerate(WISHES)})
    drafted = [token for made in watched.made for token in made.draft.token_ids]
    assert max(drafted) < 250
    assert len(drafted) > 60


def test_too_few_common_tokens_are_refused_by_name(target: Path) -> None:
    ours = load_vocab(target)
    other = type(ours)(renamed(100))
    with pytest.raises(VocabMapError, match=r"Only 100 of 320 tokens .* 50%.*100 is .* in the model and 'other100'"):
        map_vocabs(ours, 320, other, 320)


def test_the_map_is_one_to_one_and_reads_every_token(target: Path) -> None:
    ours = load_vocab(target)
    found = map_vocabs(ours, 320, type(ours)(renamed(250)), 400)
    mapped = [token for token in found.target_ids if token != NOTHING]
    assert mapped == list(range(250))
    assert len(found.target_ids) == 400
    assert found.inputs is not None
    assert len(found.inputs) == 320
    assert found.inputs[:250] == list(range(250))
    assert all(0 <= token < 400 for token in found.inputs)


# ---- heads ----------------------------------------------------------------------------------------------------------


def test_medusa_drafts_are_those_of_the_heads(target: Path, tmp_path: Path) -> None:
    heads = write_drafter(tmp_path / "medusa", {"architectures": ["MedusaModel"]}, medusa_tensors(3))
    watched = Watched(target, heads, "medusa", dtype="float64", k=5, max_num_seqs=4)
    requests = {str(i): (prompt(i, 5 + 11 * i), GREEDY) for i in range(3)}
    plain = load(target, dtype="float64", speculation="off")
    assert complete(watched.engine, requests) == complete(plain.engine, requests)
    oracle = Oracle(target, heads)
    assert len(watched.made) > 20
    for made in watched.made:
        count = min(made.wanted, 3)
        assert list(made.draft.token_ids) == oracle.medusa_drafts(made.tokens, count)


# ---- how drafts are sampled -----------------------------------------------------------------------------------------


def test_kept_scores_are_the_filtered_ones_over_the_targets_ids(target: Path, tmp_path: Path) -> None:
    """Under "rejection" the distribution of each draft is kept: the drafter's own, filtered as the request wants."""
    drafter = write_drafter(tmp_path / "eagle", eagle_config(), eagle_tensors())
    watched = Watched(target, drafter, "eagle", dtype="float64", speculation_rule="rejection")
    oracle, sampling = Oracle(target, drafter), sampled(4, top_k=5)
    runner, seen = watched.runner, list[tuple[list[int], list[int], torch.Tensor]]()
    inner = runner.drafter
    assert inner is not None
    original = runner.verifier._draft_scores

    def spy(share):  # type: ignore[no-untyped-def]
        found = original(share)
        made = watched.made[-1]
        assert found is not None
        seen.append((made.tokens, list(made.draft.token_ids), found.clone()))
        return found

    runner.verifier._draft_scores = spy
    complete(watched.engine, {"a": (prompt(1), sampling)})
    assert len(seen) >= 4
    for tokens, drafted, scores in seen:
        first = oracle.eagle_scores(tokens, 1)[0]
        kept = first.topk(5)
        wanted = torch.full((320,), -math.inf, dtype=torch.float64)
        wanted[kept.indices + oracle.drafter["d2t"][kept.indices]] = kept.values
        torch.testing.assert_close(scores[0], wanted, atol=1e-4, rtol=1e-5)  # angles are fp32 here
        for token, line in zip(drafted, scores, strict=False):
            assert line[token] > -math.inf


def test_the_noise_of_match_is_the_targets_at_the_targets_ids(target: Path, tmp_path: Path) -> None:
    from kernels.noise import Stream, gumbel_vocabulary

    drafter = write_drafter(tmp_path / "eagle", eagle_config(), eagle_tensors())
    watched = Watched(target, drafter, "eagle", dtype="float64")
    oracle = Oracle(target, drafter)
    complete(watched.engine, {"a": (prompt(1), sampled(11))})
    ids = torch.arange(200) + oracle.drafter["d2t"]
    checked = 0
    for made in watched.made:
        if not made.draft.token_ids:
            continue
        noise = gumbel_vocabulary(320, 11, len(made.tokens), 0, Stream.TARGET, torch.device("cpu"))[ids]
        best = int((oracle.eagle_scores(made.tokens, 1)[0] + noise).argmax())
        assert made.draft.token_ids[0] == int(ids[best])
        checked += 1
    assert checked > 10
