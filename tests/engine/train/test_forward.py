"""The plain fp32 forward of engine.train is the function that the engine computes, for every dense family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.layers.rotary import RotaryTables
from engine.train.forward import LayerForward, embed, logits
from engine.train.source import Source
from tests.engine.stepping import load, prompt_logits
from tests.engine.tiny_families import VARIANTS, family_checkpoint

DENSE = [name for name in VARIANTS if "mixtral" not in name and "moe" not in name]
LENGTH = 40  # beyond the short window


@pytest.mark.parametrize("variant", DENSE)
def test_it_gives_the_engines_logits(variant: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, variant)
    loaded = load(path, dtype="float32", max_num_seqs=LENGTH, max_model_len=256, num_threads=2)
    prompt = torch.randint(3, 320, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = prompt_logits(loaded.runner, prompt)

    source = Source(path)
    rotary = RotaryTables(source.config, 256, torch.float32, torch.device("cpu"))
    x = embed(torch.tensor([prompt]), source.embedding(), source.config)
    for index in range(source.config.num_hidden_layers):
        x = LayerForward(source.config, index, rotary)(source.layer(index), x)
    found = logits(x, source.final_norm(), source.head(), source.config)[0]
    assert torch.allclose(found, expected, atol=2e-4, rtol=1e-4), float((found - expected).abs().max())
