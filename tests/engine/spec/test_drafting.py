"""Loading a drafter: what is chosen, refused, dropped or told, and whether its memory is as planned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import CheckpointError, read_checkpoint
from engine.checkpoint import drafting as drafting_module
from engine.checkpoint.drafter_files import read_drafter, shipped_drafter
from engine.checkpoint.drafting import Drafting, decide
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.config import MIB, ConfigError, LoadOptions
from engine.core.memory_plan import plan_memory
from engine.core.sampling_params import SamplingParams
from engine.loading import LoadedEngine, LoadError
from kernels.group_quant import GroupQuant
from tests.engine.spec.tiny_drafters import eagle_config, eagle_tensors, medusa_tensors, write_drafter
from tests.engine.spec.watched import Watched
from tests.engine.stepping import complete, load
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint
from tests.engine.tiny_foreign import foreign_checkpoint

PROMPT = list(range(5, 40))
SHORT = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("target") / "tiny", num_hidden_layers=4)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "eagle", eagle_config(), eagle_tensors())


def told(loaded: LoadedEngine) -> dict[str, Any]:
    return {setting.name: setting for setting in loaded.settings}


def for_target(target: Path, **overrides: Any) -> dict[str, Any]:
    """config.json with what Pizarra adds."""
    own = {
        "version": 1,
        "kind": "eagle",
        "feature_layers": [0, 2, 3],
        "target": {"fingerprint": weights_fingerprint(read_checkpoint(target))},
    }
    return eagle_config(pizarra=own) | overrides


# ---- which --------------------------------------------------------------------------------------------------------


def test_the_choice_by_option(target: Path, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, path = read_checkpoint(target), str(drafter)
    monkeypatch.setattr(drafting_module, "shipped_drafter", lambda info, kind: shipped_drafter(info, tmp_path, kind))

    def chosen(**options: Any) -> tuple[str, str]:
        found = decide(info, LoadOptions(**options))
        return found.speculation, "" if found.drafter is None else found.drafter.kind

    assert chosen() == ("suffix", "")
    assert chosen(speculation="hybrid") == ("suffix", "")
    assert chosen(drafter=path) == ("hybrid", "eagle")
    assert chosen(speculation="eagle", drafter=path) == ("eagle", "eagle")
    assert chosen(speculation="off", drafter=path) == ("off", "")
    assert chosen(speculation="ngram", drafter=path) == ("ngram", "")
    write_drafter(tmp_path / "other", for_target(tiny_llama_checkpoint(tmp_path / "t", seed=4)), eagle_tensors())
    assert chosen() == ("suffix", "")
    ours = for_target(target)
    write_drafter(tmp_path / "ours", ours, eagle_tensors())
    assert chosen() == ("suffix", "")
    assert "has not beaten suffix" in decide(info, LoadOptions()).settings[0].reason
    assert chosen(speculation="hybrid") == ("hybrid", "eagle")
    write_drafter(tmp_path / "ours", ours | {"pizarra": ours["pizarra"] | {"wins": True}}, eagle_tensors())
    assert chosen() == ("hybrid", "eagle")
    assert chosen(speculation="eagle") == ("eagle", "eagle")
    assert decide(info, LoadOptions()).settings == []
    medusa = {"pizarra": ours["pizarra"] | {"kind": "medusa"}, "medusa_num_heads": 2, "medusa_num_layers": 1}
    write_drafter(tmp_path / "heads", medusa, medusa_tensors(2))  # comes first by its name
    assert chosen(speculation="eagle") == ("eagle", "eagle")
    assert chosen(speculation="medusa") == ("medusa", "medusa")
    shutil.rmtree(tmp_path / "heads")
    (tmp_path / "ours" / "model.safetensors").write_bytes(b"rubbish")
    broken = decide(info, LoadOptions())
    assert broken.speculation == "suffix"
    assert "cannot be read" in broken.settings[0].reason


def test_an_unused_drafter_is_told(target: Path, drafter: Path) -> None:
    settings = decide(read_checkpoint(target), LoadOptions(speculation="off", drafter=str(drafter))).settings
    assert [(one.name, one.requested, one.effective) for one in settings] == [("drafter", str(drafter), "none")]


def test_hybrid_without_a_drafter_is_told(target: Path) -> None:
    (setting,) = decide(read_checkpoint(target), LoadOptions(speculation="hybrid")).settings
    assert (setting.requested, setting.effective) == ("hybrid", "suffix")


def test_a_loaded_engine_drafts_by_every_name(target: Path, drafter: Path) -> None:
    loaded = load(target, drafter=str(drafter), speculation="auto", dtype="float32")
    assert loaded.plan.drafting.speculation == loaded.engine.speculator.default == "hybrid"
    assert set(loaded.engine.speculator.proposers) == {"ngram", "suffix", "eagle", "hybrid"}
    plain = load(target, speculation="off", dtype="float32")
    assert complete(loaded.engine, {"a": (PROMPT, SHORT)}) == complete(plain.engine, {"a": (PROMPT, SHORT)})
    assert plain.engine.speculator.proposers == {}


# ---- what is refused ------------------------------------------------------------------------------------------------


def refused(target: Path, drafter: Path, match: str, **options: Any) -> str:
    with pytest.raises(LoadError, match=match) as error:
        load(target, drafter=str(drafter), **{"speculation": "auto"} | options)
    return error.value.kind


def changed(
    folder: Path, config: dict[str, Any] | None = None, tensors: Mapping[str, torch.Tensor | None] | None = None
) -> Path:
    """The tiny EAGLE drafter, changed; None leaves a tensor out."""
    found: dict[str, torch.Tensor | None] = {**eagle_tensors(), **(tensors or {})}
    kept = {name: tensor for name, tensor in found.items() if tensor is not None}
    return write_drafter(folder, eagle_config() | (config or {}), kept)


def test_what_does_not_fit_the_target_is_refused(target: Path, tmp_path: Path) -> None:
    other = tiny_llama_checkpoint(tmp_path / "wide", num_hidden_layers=4, hidden_size=128)
    eagle = changed(tmp_path / "eagle")
    assert refused(other, eagle, r"fc\.weight reads 192 numbers, 3 hidden states .* have 384") == "bad_checkpoint"
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}}
    refused(target, changed(tmp_path / "layers", layers), r"\[0, 2, 4\]; the model has layers 0 to 3")
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 2, 3]}}
    refused(target, changed(tmp_path / "twice", layers), r"feature layers are \[2, 2, 3\]")
    far = eagle_tensors()["d2t"].clone()
    far[-1] = 5000
    refused(target, changed(tmp_path / "far", tensors={"d2t": far}), "outside the model's vocabulary of 320")
    far = eagle_tensors()["d2t"].clone()
    far[1] = far[0] - 1
    refused(target, changed(tmp_path / "same", tensors={"d2t": far}), "two drafted ids stand for one token")
    heads = medusa_tensors(2)
    wide = {
        name: torch.zeros(*(128 if size == 64 else size for size in one.shape))
        for name, one in heads.items()
        if "medusa" in name
    }
    folder = write_drafter(tmp_path / "medusa", {}, wide | {"d2t": heads["d2t"]})
    refused(target, folder, "hidden states of 128 numbers, the model's have 64")
    many = write_drafter(
        tmp_path / "many",
        {},
        {
            name: one
            for name, one in medusa_tensors(1, draft_vocab=320).items()
            if "d2" not in name and "t2" not in name
        },
    )
    small = tiny_llama_checkpoint(tmp_path / "small", vocab_size=310)
    refused(small, many, "drafts 320 tokens, the model knows 310")


def test_damaged_and_unknown_drafters_are_refused(target: Path, tmp_path: Path) -> None:
    refused(target, tmp_path / "nowhere", "there is no such file or folder")
    refused(target, changed(tmp_path / "a", tensors={"norm.weight": None}), r"tensor norm\.weight \(64,\) is missing")
    refused(
        target, changed(tmp_path / "b", tensors={"norm.weight": torch.ones(63)}), r"the shape \(63,\), expected \(64,\)"
    )
    refused(
        target, changed(tmp_path / "c", tensors={"odd.weight": torch.ones(4)}), r"odd\.weight is not part of a drafter"
    )
    refused(target, changed(tmp_path / "d", tensors={"d2t": torch.zeros(7, dtype=torch.int64)}), r"d2t is I64 \(7,\)")
    refused(target, changed(tmp_path / "e", {"pizarra": {"kind": "oracle"}}), "kind is 'oracle', expected one of eagle")
    refused(target, changed(tmp_path / "f", {"pizarra": {"kind": "eagle", "feature_layers": ["x"]}}), "a list of layer")
    refused(target, changed(tmp_path / "g", tensors={"lm_head.weight": None}), r"lm_head\.weight is missing")
    pickled = changed(tmp_path / "h")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    refused(target, pickled, "pickle")


def test_wishes_that_contradict_are_refused(target: Path, drafter: Path, tmp_path: Path) -> None:
    assert refused(target, drafter, "is a drafter of the kind 'eagle'", speculation="medusa") == "bad_options"
    for name in ("eagle", "medusa", "draft_model"):
        with pytest.raises(ConfigError, match="set drafter to the folder"):
            decide(read_checkpoint(target), LoadOptions(speculation=name))
    for name, value in (("speculation", "oracle"), ("num_speculative_tokens", 16), ("num_speculative_tokens", 0)):
        with pytest.raises(ConfigError, match=name):
            LoadOptions(**{name: value})  # type: ignore[arg-type]
    windowed = tiny_llama_checkpoint(
        tmp_path / "mistral", architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=64,
        num_hidden_layers=4,
    )  # fmt: skip
    assert refused(windowed, drafter, "every layer of .* has a window") == "bad_options"


def test_transformers_targets_take_draft_models_only(target: Path, drafter: Path, tmp_path: Path) -> None:
    foreign = foreign_checkpoint(tmp_path / "gpt2", "gpt2")
    assert refused(foreign, drafter, "does not hand out the hidden states that eagle reads") == "bad_options"
    assert refused(target, foreign, "transformers would have to compute its layers") == "bad_options"


# ---- what is told ---------------------------------------------------------------------------------------------------


def test_a_drafter_for_other_weights_is_told_and_loaded(target: Path, tmp_path: Path) -> None:
    other = tiny_llama_checkpoint(tmp_path / "other", seed=3, num_hidden_layers=4)
    ours = write_drafter(tmp_path / "ours", for_target(target), eagle_tensors())
    theirs = write_drafter(tmp_path / "theirs", for_target(other), eagle_tensors())
    assert "drafter" not in told(load(target, drafter=str(ours), speculation="auto"))
    loaded = load(target, drafter=str(theirs), speculation="auto")
    assert "other weights" in told(loaded)["drafter"].reason
    assert loaded.runner.drafter is not None


def test_a_fingerprint_is_of_the_weights_alone(target: Path, tmp_path: Path) -> None:
    first = weights_fingerprint(read_checkpoint(target))
    moved = shutil.copytree(target, tmp_path / "moved")
    assert weights_fingerprint(read_checkpoint(moved)) == first
    tensors = load_file(moved / "model.safetensors")
    tensors["model.norm.weight"][3] += 0.001
    save_file(tensors, moved / "model.safetensors")
    assert weights_fingerprint(read_checkpoint(moved)) != first
    info = read_checkpoint(target)
    lost = {name: replace(tensor, file=tmp_path / "gone") for name, tensor in info.tensors.items()}
    with pytest.raises(CheckpointError, match="cannot be read"):
        weights_fingerprint(replace(info, tensors=lost))


def test_the_layouts_of_other_writers_are_read(target: Path, tmp_path: Path) -> None:
    """speculators calls the layer layers.0 and nests the configuration; Medusa's own files leave a prefix out."""
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in eagle_tensors().items()}
    table = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    flat = eagle_config()
    nested = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "eagle_aux_hidden_state_layer_ids": [0, 2, 3],
        "transformer_layer_config": {
            name: flat[name] for name in flat if name not in ("architectures", "eagle_config")
        },
    }
    ours = write_drafter(tmp_path / "ours", eagle_config(), eagle_tensors())
    theirs = write_drafter(tmp_path / "theirs", nested, tensors | {"embed_tokens.weight": table})
    found = [drafts_of(target, path) for path in (ours, theirs)]
    assert found[0] == found[1]
    bare = {name.removeprefix("medusa_head."): tensor for name, tensor in medusa_tensors(2).items()}
    assert read_drafter(write_drafter(tmp_path / "bare", {}, bare)).num_heads == 2


def drafts_of(target: Path, drafter: Path) -> list[Any]:
    watched = Watched(target, drafter, "eagle", dtype="float32")
    complete(watched.engine, {"a": (PROMPT, SHORT)})
    return [made.draft for made in watched.made]


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["eagle", "medusa", "draft_model"])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_a_drafter_takes_what_was_planned(kind: str, rule: str, target: Path, drafter: Path, tmp_path: Path) -> None:
    path = {
        "eagle": drafter,
        "medusa": write_drafter(tmp_path / "medusa", {}, medusa_tensors(3)),
        "draft_model": tiny_llama_checkpoint(tmp_path / "draft", seed=2),
    }[kind]
    wishes: dict[str, Any] = {"speculation_rule": rule, "max_num_batched_tokens": 64, "max_num_seqs": 16}
    loaded = Watched(target, path, kind, **wishes).loaded
    assert loaded.runner.drafter is not None
    sampling = SamplingParams(max_tokens=6, temperature=1.0, seed=1, top_k=50, ignore_eos=True)
    complete(loaded.engine, {str(index): (PROMPT[: 5 + index], sampling) for index in range(16)})
    options = LoadOptions(drafter=str(path), speculation=kind, num_speculative_tokens=4, **wishes)
    needs = loaded.plan.drafting.needs(loaded.info, options, 2)
    assert sum(weight.nbytes for weight in loaded.runner.drafter.weights()) == needs.weights
    pool = loaded.plan.kv.drafter_bytes
    assert pool == loaded.plan.kv.num_blocks * needs.per_block
    used = loaded.runner.drafter.nbytes - pool
    assert (0.5 * needs.buffers if rule == "rejection" else 0) < used <= needs.buffers


def test_codes_beside_codes(tmp_path: Path) -> None:
    """Beside a model in codes the drafter's matrices become codes; it drafts much the same."""
    target = tiny_llama_checkpoint(tmp_path / "q8", format="gguf", dtype="Q8_0", num_hidden_layers=4)
    drafter = write_drafter(tmp_path / "eagle", eagle_config(), eagle_tensors())
    loaded = load(target, drafter=str(drafter), speculation="eagle", dtype="float32")
    assert "8-bit codes" in told(loaded)["drafter dtype"].effective
    model = loaded.runner.drafter
    assert model is not None
    weights = list(model.weights())
    assert sum(isinstance(weight, GroupQuant) for weight in weights) == 6
    options = LoadOptions(drafter=str(drafter), speculation="eagle")
    planned = loaded.plan.drafting.needs(loaded.info, options, 4).weights
    padding = 64  # rows that the kernels' layout adds to a matrix, at most
    assert planned <= sum(weight.nbytes for weight in weights) <= planned + 6 * padding * 192 * 2
    complete(loaded.engine, {"a": (PROMPT, SHORT)})


def test_a_drafter_that_does_not_fit_is_dropped_and_told(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.runner import load_plan
    from engine.runner.device import DeviceInfo

    info = read_checkpoint(target)
    wishes: dict[str, Any] = {"max_model_len": 256, "kv_cache_memory_bytes": MIB, "max_num_seqs": 2}
    whole = decide(info, LoadOptions(drafter=str(drafter), **wishes))
    needed = []
    for drafting in (whole, Drafting("suffix")):
        options = LoadOptions(drafter=str(drafter), **wishes)
        plan = plan_memory(
            info.config, info.weights_bytes(2), options, 1 << 33, 2, "cpu", 0, 0, drafting.needs(info, options, 2)
        )
        needed.append(plan.fixed_bytes + plan.pool_bytes)
    assert needed[0] > needed[1]
    for available, has_drafter in ((needed[0], True), (needed[0] - 1, False), (needed[1], False)):
        device = DeviceInfo(torch.device("cpu"), "cpu", 1 << 34, available)
        monkeypatch.setattr(load_plan, "pick_device", lambda options, device=device: device)
        loaded = load(target, drafter=str(drafter), speculation="auto", **wishes)
        assert (loaded.runner.drafter is not None) == has_drafter
        if not has_drafter:
            assert loaded.plan.drafting.speculation == "suffix"
            setting = told(loaded)["drafter"]
            assert setting.effective == "none"
            assert "does not fit beside the model" in setting.reason
            assert "drafter" in setting.reason
            complete(loaded.engine, {"a": (PROMPT, SHORT)})


def test_the_pool_is_shared_with_the_drafter(target: Path, drafter: Path) -> None:
    info = read_checkpoint(target)
    options = LoadOptions(drafter=str(drafter), max_num_seqs=4)
    needs = decide(info, options).needs(info, options, 2)
    plan = plan_memory(info.config, info.weights_bytes(2), options, 64 * MIB, 2, "cpu", 0, 0, needs)
    assert plan.kv is not None
    assert plan.kv.drafter_bytes == plan.kv.num_blocks * needs.per_block > 0
    assert plan.fixed_bytes + plan.pool_bytes <= 64 * MIB
    assert "drafter" in plan.items()
    exact = replace(options, kv_cache_memory_bytes=MIB)
    plan = plan_memory(info.config, info.weights_bytes(2), exact, 64 * MIB, 2, "cpu", 0, 0, needs)
    assert plan.kv is not None
    assert 0 <= MIB - plan.kv.kv_bytes < 16 * 1024


def test_the_configuration_is_what_was_written(drafter: Path) -> None:
    found = read_drafter(drafter)
    values = json.loads((drafter / "config.json").read_text())
    assert found.info.config.vocab_size == values["draft_vocab_size"]
    assert (found.kind, found.feature_layers, found.norm_before_residual) == ("eagle", (0, 2, 3), False)


# ---- what checkpoints bring along ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [["mtp.fc.weight", "mtp.layers.0.input_layernorm.weight"], ["model.layers.4.eh_proj.weight"]]
)
def test_multi_token_prediction_weights_are_left_out_and_told(names: list[str], target: Path, tmp_path: Path) -> None:
    plain = load(target, speculation="off")
    folder = shutil.copytree(target, tmp_path / "mtp")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: torch.ones(8, 8) for name in names}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load(folder, speculation="off")
    setting = told(loaded)["multi-token prediction"]
    assert setting.effective == "not loaded"
    assert names[0] in setting.reason
    assert loaded.info.num_parameters == plain.info.num_parameters
    assert complete(loaded.engine, {"a": (PROMPT, SHORT)}) == complete(plain.engine, {"a": (PROMPT, SHORT)})


def test_a_layer_too_many_that_nothing_speaks_of_is_refused(target: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(target, tmp_path / "more")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.4.input_layernorm.weight": torch.ones(64)}, folder / "model.safetensors")
    with pytest.raises(LoadError, match=r"model\.layers\.4\.input_layernorm\.weight is not part"):
        load(folder, speculation="off")
