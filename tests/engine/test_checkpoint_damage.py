"""Checkpoints that cannot be loaded: each is refused from its headers, by a message that names file and finding."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.checkpoint import CheckpointError, UnsupportedCheckpointError, read_checkpoint
from tests.engine.gguf_writer import StoredTensor, write_gguf
from tests.engine.test_checkpoint import LLAMA3, edit_json, write_tiny_gguf
from tests.engine.tiny_checkpoint import (
    gguf_metadata,
    gguf_tensors,
    tiny_config,
    tiny_llama_checkpoint,
    tiny_weights,
    write_safetensors,
)

GGUF_HEAD = struct.Struct("<4sIQQ")


def safetensors_with(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A tiny folder whose weights file has this header (bytes are taken as they are)."""
    tiny_llama_checkpoint(folder)
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(raw) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + raw + data)
    return folder


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (b"", "an empty file"),
        (b"PK\x03\x04rest of the archive", "a zip archive"),
        (b"\x80\x02}q\x00", "a Python pickle"),
        (b"<!DOCTYPE html><title>401</title>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
        (b"tjgg\x01\0\0\0", "a GGML file older than GGUF"),
        (b"\x01\x02\x03\x04\x05\x06\x07\x08\x09", "unknown data beginning with 01 02 03"),
    ],
)
def test_foreign_files_are_recognised(tmp_path: Path, content: bytes, finding: str) -> None:
    folder = tiny_llama_checkpoint(tmp_path / "folder")
    for path, read in ((tmp_path / "x.gguf", None), (folder / "model.safetensors", folder)):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=finding) as caught:
            read_checkpoint(read or path)
        assert path.name in str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="no model here"):
        read_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        read_checkpoint(tmp_path)


def test_pickled_weights_are_named(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"found pytorch_model\.bin: only safetensors and GGUF"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("header", "data", "finding"),
    [
        (b"{not json", b"", "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a": {}, "a": {}}', b"", "a name occurs twice"),
        ({"a": 3}, b"", "has the dtype None"),
        ({"a": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, b"", "has the dtype 'F7'"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"", r"has the shape \[-1\]"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, b"", r"has the data_offsets \[0\]"),
        ({"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4]}}, b"", "but occupies 4 bytes"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234", "truncated: tensor a ends at byte"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345", "1 bytes follow the last tensor"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678", "4 unclaimed bytes"),
        (
            {
                "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
            },
            b"12345678",
            "tensor b overlaps a",
        ),
    ],
)
def test_damaged_safetensors_header(tmp_path: Path, header: Any, data: bytes, finding: str) -> None:
    folder = safetensors_with(tmp_path, header, data)
    with pytest.raises(CheckpointError, match=finding):
        read_checkpoint(folder)


@pytest.mark.parametrize("length", [2**63, 100_000_001, 1000])
def test_absurd_safetensors_header_length(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointError, match=f"{length} bytes|truncated: the header"):
        read_checkpoint(safetensors_with(tmp_path, {}, length=length))


@pytest.mark.parametrize("kept", [0.2, 0.9, 0.999])
def test_truncated_files(tmp_path: Path, kept: float) -> None:
    folder = tiny_llama_checkpoint(tmp_path / "folder")
    gguf = tiny_llama_checkpoint(tmp_path / "gguf", format="gguf")
    for path, read in ((folder / "model.safetensors", folder), (gguf, gguf)):
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * kept)])
        with pytest.raises(CheckpointError, match="truncated: tensor"):
            read_checkpoint(read)


def test_every_cut_of_a_gguf_header_is_noticed(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path, format="gguf")
    raw = path.read_bytes()
    for length in range(4, 1500, 7):
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            read_checkpoint(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 12_000), value=st.integers(0, 255))
def test_a_flipped_byte_never_crashes(tmp_path: Path, position: int, value: int) -> None:
    """Either the change does not matter to the header, or it is refused; nothing else is raised or allocated."""
    path = tmp_path / "tiny.gguf"
    if not path.exists():
        tiny_llama_checkpoint(tmp_path, format="gguf")
    raw = bytearray(path.read_bytes())
    raw[position] = value
    flipped = tmp_path / "flipped.gguf"
    flipped.write_bytes(raw)
    with contextlib.suppress(CheckpointError):
        read_checkpoint(flipped)


@pytest.mark.parametrize(
    ("version", "num_tensors", "num_keys", "finding"),
    [
        (1, 1, 1, "GGUF version 1; versions 2 and 3 are read"),
        (0x03000000, 1, 1, "big-endian"),
        (3, 2**62, 1, "the number of tensors is 4611686018427387904, more than"),
        (3, 0, 2**62, "the number of key-values is 4611686018427387904, more than"),
    ],
)
def test_absurd_gguf_counts(tmp_path: Path, version: int, num_tensors: int, num_keys: int, finding: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(GGUF_HEAD.pack(b"GGUF", version, num_tensors, num_keys) + bytes(64))
    with pytest.raises(CheckpointError, match=finding):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("value", "finding"),
    [
        (struct.pack("<IQ", 8, 2**40), "the length of the value of k is 1099511627776"),
        (struct.pack("<IIQ", 9, 4, 2**40), "the length of k is 1099511627776"),
        (struct.pack("<IIQ", 9, 9, 1), "array of arrays"),
        (struct.pack("<I", 77), "unknown value type 77"),
        (struct.pack("<IQ", 8, 2) + b"\xff\xfe", "not UTF-8"),
    ],
)
def test_damaged_gguf_values(tmp_path: Path, value: bytes, finding: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(GGUF_HEAD.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + value + bytes(32))
    with pytest.raises(CheckpointError, match=finding):
        read_checkpoint(path)


def test_gguf_tensors_that_overlap(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path, format="gguf")
    raw = path.read_bytes()
    name = b"output_norm.weight"
    offset_at = raw.index(name) + len(name) + 4 + 8 + 4  # after the count of dimensions, the one dimension, the type
    path.write_bytes(raw[:offset_at] + struct.pack("<Q", 0) + raw[offset_at + 8 :])
    with pytest.raises(CheckpointError, match=r"tensor (output_norm|token_embd)\.weight overlaps"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("type_id", "nbytes", "finding"),
    [
        (10, 84, "tensor model.norm.weight is stored as Q2_K, which is not supported yet.*choose a Q4_K_M"),
        (99, 256, "tensor output_norm.weight has the unknown ggml type 99"),
    ],
)
def test_unsupported_gguf_types(tmp_path: Path, type_id: int, nbytes: int, finding: str) -> None:
    config = tiny_config(hidden_size=256, head_dim=64)
    tensors = gguf_tensors(config, tiny_weights(config, 0), "F32")
    tensors["output_norm.weight"] = StoredTensor((256,), type_id, bytes(nbytes))
    path = write_gguf(tmp_path / "x.gguf", gguf_metadata(config), tensors)
    with pytest.raises(UnsupportedCheckpointError, match=finding):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("keys", "finding"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported; supported in GGUF: llama"),
        ({"general.architecture": None}, "architecture None is not supported"),
        ({"llama.block_count": None}, "key llama.block_count is missing"),
        ({"llama.block_count": "two"}, "key llama.block_count is two, expected one positive whole number"),
        ({"llama.block_count": 1_000_000_000}, r"tensor model\.layers\.2\.input_layernorm\.weight \(64,\) is missing"),
        ({"llama.embedding_length": 0}, "key llama.embedding_length is 0"),
        ({"llama.attention.head_count_kv": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"llama.rope.dimension_count": 8}, "key llama.rope.dimension_count is 8, expected 16"),
        ({"llama.expert_count": 8}, "key llama.expert_used_count is missing"),
        ({"llama.attention.sliding_window": 8}, "llama.attention.sliding_window is 8: only dense models"),
        ({"llama.vocab_size": 999}, r"has the shape \(320, 64\), expected \(999, 64\)"),
        ({"tokenizer.ggml.eos_token_id": 5000}, "special token id 5000 lies outside the vocabulary of 320"),
        ({"general.alignment": 7}, "general.alignment is 7"),
        ({"split.count": 3}, "one of 3 parts of a split GGUF"),
    ],
)
def test_gguf_keys_that_do_not_fit(tmp_path: Path, keys: dict[str, Any], finding: str) -> None:
    with pytest.raises(CheckpointError, match=finding):
        read_checkpoint(write_tiny_gguf(tmp_path / "x.gguf", keys))


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"architectures": ["OtherForCausalLM"]}, "OtherForCausalLM is not supported; supported: LlamaForCausalLM"),
        ({"architectures": None}, "architectures is None"),
        ({"hidden_size": -4}, "hidden_size is -4"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"vocab_size": 7}, r"has the shape \(320, 64\), expected \(7, 64\)|special token id"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"attention_bias": 1}, "attention_bias is 1, expected true or false"),
        ({"attention_bias": True}, r"q_proj\.bias \(64,\) is missing"),
        ({"rope_scaling": {"rope_type": "axial", "factor": 2.0}}, "rope scaling 'axial' is not supported"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor is 1.0, expected more than"),
        ({"quantization_config": {"quant_method": "awq"}}, "are quantised with awq, and none is stored so"),
        ({"head_dim": 3}, "head_dim is 3"),
        ({"eos_token_id": ["x"]}, "expected a token id or a list"),
    ],
)
def test_config_json_that_does_not_fit(tmp_path: Path, changes: dict[str, Any], finding: str) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", **changes)
    with pytest.raises(CheckpointError, match=finding):
        read_checkpoint(folder)


def test_config_json_that_is_no_object(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    for content, finding in (("{", "not valid JSON"), ("[1]", "expected a JSON object, found list")):
        (folder / "config.json").write_text(content, encoding="utf-8")
        with pytest.raises(CheckpointError, match=finding):
            read_checkpoint(folder)


def test_missing_and_surplus_tensors(tmp_path: Path) -> None:
    folder = tiny_llama_checkpoint(tmp_path)
    weights = tiny_weights(tiny_config(), 0)
    file = folder / "model.safetensors"
    write_safetensors(file, {name: w for name, w in weights.items() if "up_proj" not in name})
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.0\.mlp\.up_proj\.weight \(128, 64\) is missing"):
        read_checkpoint(folder)
    write_safetensors(file, weights | {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)})
    with pytest.raises(UnsupportedCheckpointError, match=r"q_norm\.weight is not part of a llama"):
        read_checkpoint(folder)
    write_safetensors(file, weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert not any("inv_freq" in name for name in read_checkpoint(folder).tensors)
