"""Fields of a quantization_config that make no sense: every one is refused by name, and none ends in another error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import CheckpointError, read_checkpoint
from engine.checkpoint.packed import quantization_notes
from tests.engine.tiny_packed import Recipe, awq_gemm, configure, gptq_recipe, int8_recipe, packed_recipe, packed_tiny


def refused(folder: Path, finding: str) -> None:
    with pytest.raises(CheckpointError, match=finding) as caught:
        read_checkpoint(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "changes", "finding"),
    [
        (awq_gemm, {"quant_method": 4}, "quant_method is 4, expected one of awq, gptq"),
        (awq_gemm, {"quant_method": None}, "quant_method is None, expected one of"),
        (awq_gemm, {"bits": "4"}, "bits is '4', expected a positive whole number"),
        (awq_gemm, {"bits": 4.0}, "bits is 4.0, expected a positive whole number"),
        (awq_gemm, {"bits": -4}, "bits is -4"),
        (awq_gemm, {"bits": 10**30}, "bits is 1000000"),
        (awq_gemm, {"w_bit": 8}, "bits 4 and w_bit 8 are one setting with two values"),
        (awq_gemm, {"group_size": 0}, "group_size is 0, expected a positive whole number, or -1"),
        (awq_gemm, {"group_size": -2}, "group_size is -2"),
        (awq_gemm, {"group_size": True}, "group_size is True"),
        (awq_gemm, {"group_size": [32]}, r"group_size is \[32\]"),
        (awq_gemm, {"zero_point": "yes"}, "zero_point is 'yes', expected true or false"),
        (awq_gemm, {"version": 2}, "version is 2, expected one of gemm"),
        (awq_gemm, {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head', expected a list"),
        (awq_gemm, {"modules_to_not_convert": [1]}, r"modules_to_not_convert is \[1\]"),
        (gptq_recipe, {"desc_act": 1}, "desc_act is 1, expected true or false"),
        (gptq_recipe, {"checkpoint_format": 2}, "checkpoint_format is 2, expected one of gptq, gptq_v2"),
        (gptq_recipe, {"dynamic": [1]}, r"dynamic is \[1\], expected an object"),
        (gptq_recipe, {"dynamic": {".*": 8}}, "dynamic is .*expected an object"),
        (gptq_recipe, {"dynamic": {"+:(": {"bits": 8}}}, r"the pattern '\(' cannot be read"),
        (gptq_recipe, {"dynamic": {".*": {"bits": "8"}}}, "bits is '8', expected a positive whole number"),
        (packed_recipe, {"config_groups": None}, "config_groups is None, expected an object with at least one group"),
        (packed_recipe, {"config_groups": {}}, "config_groups is {}, expected an object with at least one"),
        (packed_recipe, {"config_groups": {"W4A16": ["Linear"]}}, r"W4A16 is \['Linear'\], expected an object"),
        (packed_recipe, {"config_groups": {"g": {"weights": 4}}}, "weights is 4, expected an object"),
        (packed_recipe, {"config_groups": {"g": {"weights": {"num_bits": None}, "targets": 1}}}, "targets is 1"),
        (packed_recipe, {"ignore": "lm_head"}, "ignore is 'lm_head', expected a list of names"),
        (packed_recipe, {"ignore": ["re:*"]}, r"the pattern '\*' cannot be read"),
    ],
)
def test_nonsense(tmp_path: Path, recipe: Callable[[], Recipe], changes: dict[str, Any], finding: str) -> None:
    refused(packed_tiny(tmp_path, recipe(), **changes), finding)


@pytest.mark.parametrize("value", [4, "awq", [], True])
def test_a_configuration_that_is_no_object(tmp_path: Path, value: Any) -> None:
    folder = packed_tiny(tmp_path, awq_gemm())
    configure(folder, value)
    refused(folder, "quantization_config is .*expected an object")


NASTY: list[Any] = [None, True, -1, 0, 1.5, 10**40, float("nan"), "x", "", [], [1], ["re:("], {}, {"a": 1}, [[]]]


def places(settings: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every field, those of nested objects too."""
    found = []
    for name, value in settings.items():
        found.append((*prefix, name))
        if isinstance(value, dict):
            found += places(value, (*prefix, name))
    return found


OTHERS = {
    "awq": {"modules_to_not_convert": [], "w_bit": 4, "q_group_size": 32, "backend": "auto", "format": "gemm"},
    "gptq": {"dynamic": {}, "meta": {}, "lm_head": None, "format": "gptq_v2", "adapter": None, "pack_dtype": "int32"},
    "compressed-tensors": {"kv_cache_scheme": None, "sparsity_config": {}, "transform_config": {}},
}


@pytest.mark.parametrize("recipe", [awq_gemm, gptq_recipe, packed_recipe, int8_recipe])
def test_any_value_in_any_field_is_read_or_refused(tmp_path: Path, recipe: Callable[[], Recipe]) -> None:
    """Never another error: the notes are made too."""
    found = recipe()
    folder = packed_tiny(tmp_path, found)
    sound = found.settings | OTHERS[found.settings["quant_method"]]
    outcomes = {"read": 0, "refused": 0}
    for place in places(sound):
        for value in NASTY:
            settings = copy.deepcopy(sound)
            owner = settings
            for name in place[:-1]:
                owner = owner[name]
            owner[place[-1]] = value
            configure(folder, settings)
            try:
                quantization_notes(read_checkpoint(folder))
                outcomes["read"] += 1
            except CheckpointError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 20, outcomes
