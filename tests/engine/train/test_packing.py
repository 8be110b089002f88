"""What is packed here is read by the engine's own readers as the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint import read_checkpoint
from engine.models.loader import iter_weights
from engine.train.gptq import GptqOptions, gptq
from engine.train.layer import QuantisedLayer
from engine.train.packing import pack_layer, quantization_config
from engine.train.request import Request
from kernels.group_quant import GroupQuant
from tests.engine.tiny_checkpoint import tiny_config, tiny_weights

GROUP = 32
CASES: list[dict[str, Any]] = [
    {"format": "awq"},
    {"format": "gptq", "method": "gptq"},
    {"format": "gptq", "method": "gptq", "bits": 8},
    {"format": "gptq", "method": "gptq", "desc_act": True},
    {"format": "gptq", "method": "gptq", "symmetric": True},
    {"format": "compressed-tensors"},
    {"format": "compressed-tensors", "method": "gptq", "bits": 8, "symmetric": True},
    {"format": "compressed-tensors", "method": "gptq", "desc_act": True},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_come_back(case: dict[str, Any], tmp_path: Path) -> None:
    request = Request(tmp_path, tmp_path / "out", group_size=GROUP, **case)
    settings = tiny_config(num_hidden_layers=1)
    weights = tiny_weights(settings, 0)
    options = GptqOptions(request.bits, GROUP, request.symmetric, request.desc_act)
    prefix = "model.layers.0."
    matrices, others, top = {}, {}, {}
    for name, tensor in weights.items():
        if not name.startswith(prefix):
            top[name] = tensor.half()
        elif tensor.dim() == 1:
            others[name.removeprefix(prefix)] = tensor.half().float()
        else:
            x = torch.randn(80, tensor.shape[1], generator=torch.Generator().manual_seed(3))
            module = name.removeprefix(prefix).removesuffix(".weight")
            matrices[module] = gptq(tensor, x.T @ x, options)
    layer = QuantisedLayer(matrices, others)
    save_file(top | pack_layer(request, layer, prefix, torch.float16), tmp_path / "model.safetensors")
    config = settings | {"quantization_config": quantization_config(request, "0")}
    (tmp_path / "config.json").write_text(json.dumps(config))

    found = {}
    for name, tensor in iter_weights(read_checkpoint(tmp_path), torch.float32, lambda done, total: None):
        if name.startswith(prefix):
            dense = tensor.dequantised() if isinstance(tensor, GroupQuant) else tensor
            assert isinstance(tensor, GroupQuant) == (dense.dim() == 2)
            found[name.removeprefix(prefix)] = dense
    expected = layer.weights()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-6, atol=1e-7), name
