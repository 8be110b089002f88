"""The choice of files: the right weights and no pickle, one quantisation among several, split files whole."""

from __future__ import annotations

import pytest

from app.catalog.download import PullError
from app.catalog.entry import HubSource
from app.catalog.hub_files import HubFile, choose_files


def listing(*names: str) -> list[HubFile]:
    return [HubFile(name, 1, None, None) for name in names]


def test_sharded_weights_are_chosen_without_their_copies() -> None:
    chosen = choose_files(
        HubSource("org/name"),
        listing(
            "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
            "consolidated.safetensors", "config.json", "USE_POLICY.md", "onnx/config.json", "../evil.json",
        ),
    )  # fmt: skip
    assert [file.name for file in chosen] == [
        "USE_POLICY.md", "config.json", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ]  # fmt: skip


def chosen_names(source: HubSource, available: list[HubFile]) -> list[str]:
    return [file.name for file in choose_files(source, available)]


def test_a_gguf_is_chosen_by_name_or_when_it_is_the_only_one() -> None:
    assert chosen_names(HubSource("org/name"), listing("m.Q8_0.gguf", "README.md")) == ["m.Q8_0.gguf"]
    two = listing("m.Q8_0.gguf", "sub/m.F16.gguf")
    with pytest.raises(PullError, match=r"2 GGUF models; name one: hf:org/name:QUANT.*m\.Q8_0\.gguf, sub/m\.F16\.gguf"):
        choose_files(HubSource("org/name"), two)
    [file] = choose_files(HubSource("org/name", file="sub/m.F16.gguf"), two)
    assert file.local_name == "m.F16.gguf"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("Q4_K_M", ["big-Q4_K_M-00001-of-00002.gguf", "big-Q4_K_M-00002-of-00002.gguf"]),
        ("q4_k", ["big-Q4_K.gguf"]),
        ("Q8_0", ["Q8_0/big-Q8_0-00001-of-00001.gguf"]),
        ("bf16", ["big.bf16.gguf"]),
        ("UD-Q2_K", ["big-UD-Q2_K.gguf"]),
    ],
)
def test_a_quantisation_is_chosen_by_its_label(wanted: str, expected: list[str]) -> None:
    available = listing(
        "big-Q4_K_M-00001-of-00002.gguf", "big-Q4_K_M-00002-of-00002.gguf", "big-Q4_K.gguf", "big-IQ4_K.gguf",
        "Q8_0/big-Q8_0-00001-of-00001.gguf", "big.bf16.gguf", "mmproj-big-bf16.gguf", "big-UD-Q2_K.gguf",
        "imatrix_Q4_K.gguf", "config.json", "model.safetensors",
    )  # fmt: skip
    assert chosen_names(HubSource("org/name", quantization=wanted), available) == expected


def test_labels_that_fit_none_or_several_are_refused_with_what_there_is() -> None:
    available = listing("m-Q8_0.gguf", "n-Q8_0.gguf", "o-00001-of-00002.gguf", "o-00002-of-00002.gguf")
    with pytest.raises(
        PullError, match=r"no GGUF model of quantisation Q4_0\. .*: m-Q8_0\.gguf, n-Q8_0\.gguf, o\.gguf$"
    ):
        choose_files(HubSource("org/name", quantization="Q4_0"), available)
    with pytest.raises(
        PullError, match=r"2 GGUF models of quantisation Q8_0; .* There are: m-Q8_0\.gguf, n-Q8_0\.gguf$"
    ):
        choose_files(HubSource("org/name", quantization="Q8_0"), available)


@pytest.mark.parametrize("file", [None, "m.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"])
def test_a_split_file_is_chosen_whole_whatever_names_it(file: str | None) -> None:
    parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    available = listing(*reversed(parts), "mmproj-F16.gguf", "README.md", "LICENSE")
    assert chosen_names(HubSource("org/name", file=file), available) == ["LICENSE", *parts]


def test_pickles_and_halves_of_split_files_are_refused() -> None:
    with pytest.raises(PullError, match="pickles, which can run code"):
        choose_files(HubSource("org/name"), listing("config.json", "pytorch_model.bin"))
    with pytest.raises(PullError, match=r"lacks m-00002-of-00002\.gguf: m\.gguf is split into 2 parts"):
        choose_files(HubSource("org/name"), listing("m-00001-of-00002.gguf"))
