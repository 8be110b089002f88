"""Joining the layers' files: one file or several, the same bytes, aligned."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.safetensors import INDEX_FILE, SINGLE_FILE, read_tensors
from engine.train.shards import join_files


def parts_in(folder: Path) -> tuple[list[Path], dict[str, torch.Tensor]]:
    everything, paths = {}, []
    for index in range(3):
        tensors = {
            f"layer.{index}.words": torch.arange(7, dtype=torch.int32) + index,
            f"layer.{index}.halves": torch.full((3, 3), 0.5 + index, dtype=torch.float16),
            f"layer.{index}.shape": torch.tensor([3, 7]),
        }
        paths.append(folder / f"part-{index}.safetensors")
        save_file(tensors, paths[-1])
        everything |= tensors
    return paths, everything


def test_one_file(tmp_path: Path) -> None:
    paths, everything = parts_in(tmp_path)
    target = tmp_path / "out"
    target.mkdir()
    assert join_files(paths, target) == sum(tensor.nbytes for tensor in everything.values())
    found = load_file(target / SINGLE_FILE)
    assert found.keys() == everything.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in everything.items())
    for tensor in read_tensors(target).values():
        assert tensor.offset % (tensor.nbytes // tensor.num_elements) == 0


def test_several_files_with_an_index(tmp_path: Path) -> None:
    paths, everything = parts_in(tmp_path)
    target = tmp_path / "out"
    target.mkdir()
    join_files(paths, target, shard_bytes=130)
    assert (target / INDEX_FILE).is_file()
    assert len(list(target.glob("model-*-of-*.safetensors"))) == 2
    assert read_tensors(target).keys() == everything.keys()
