"""Models of known shapes with random weights, made where they are used: a checkpoint of 16 GB would take too long.

Owns the shapes of the end-to-end parts and the making of their weights. Knows nothing of what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from engine.checkpoint import expected_tensors
from engine.checkpoint.info import BlockLayout, CheckpointInfo, GroupScheme, TensorInfo
from engine.config import LoadOptions, ModelConfig
from engine.layers.linear import Weight
from engine.runner.load_plan import plan_load
from engine.runner.model_runner import ModelRunner
from kernels.group_quant import GroupQuant

LLAMA_8B = ModelConfig(
    architecture="llama",
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
)
SMOLLM2_1_7B = replace(
    LLAMA_8B,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=24,
    num_key_value_heads=32,
    head_dim=64,
    vocab_size=49152,
    rope_theta=130000.0,
    tie_word_embeddings=True,
)
TINY = replace(
    LLAMA_8B,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=96,
    max_position_embeddings=256,
)
MODELS = {"8B": LLAMA_8B, "1.7B": SMOLLM2_1_7B, "tiny": TINY}
BITS, GROUP_SIZE = 4, 128  # of matrices in codes, as AWQ stores them: embedding and head are not
SCHEME = GroupScheme(BITS, GROUP_SIZE, BlockLayout(GROUP_SIZE, 3))  # an fp16 scale and a zero of one byte


def in_codes(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a 4-bit model has this tensor in codes."""
    return ".layers." in name and len(shape) == 2


def random_runner(config: ModelConfig, options: LoadOptions, *, coded: bool) -> ModelRunner:
    """A runner of such a model on the device of `options`, its steps not yet recorded. coded: 4 bits."""
    tensors = {}
    for name, shape in expected_tensors(config):
        scheme = SCHEME if coded and in_codes(name, shape) else None
        elements = math.prod(shape)
        num_bytes = 2 * elements if scheme is None else scheme.nbytes(shape)
        tensors[name] = TensorInfo(name, "BF16", shape, Path(), 0, num_bytes, scheme=scheme)
    on_disk = sum(tensor.nbytes for tensor in tensors.values())
    num_parameters = sum(tensor.num_elements for tensor in tensors.values())
    form = "random, 4 bits" if coded else "random"
    info = CheckpointInfo(Path("random"), "safetensors", config, tensors, form, None, on_disk, num_parameters, {})
    plan = plan_load(info, options)
    weights = random_weights(config, plan.dtype, plan.device.device, coded=coded)
    return ModelRunner(info, options, plan, lambda stage, done, total, message: None, weights)


def random_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, *, coded: bool
) -> Iterator[tuple[str, Weight]]:
    """Weights that keep numbers of a sane size through all layers."""
    torch.manual_seed(0)
    for name, shape in expected_tensors(config):
        if len(shape) == 1:
            yield name, torch.ones(shape, dtype=dtype, device=device)
        elif coded and in_codes(name, shape):
            yield name, _random_codes((shape[0], shape[1]), device)
        else:
            deviation = 1.0 if name == "model.embed_tokens.weight" else shape[1] ** -0.5
            yield name, torch.empty(shape, dtype=dtype, device=device).normal_(0, deviation)


def _random_codes(shape: tuple[int, int], device: torch.device) -> GroupQuant:
    (outputs, inputs), top = shape, 1 << BITS
    groups = -(-inputs // GROUP_SIZE)
    codes = torch.randint(256, (outputs, -(-inputs // 2)), dtype=torch.uint8, device=device)
    zero = torch.randint(6, 10, (outputs, groups), dtype=torch.uint8, device=device)
    scale = torch.full((outputs, groups), 3.5 / top / inputs**0.5, dtype=torch.float16, device=device)
    return GroupQuant(shape, BITS, GROUP_SIZE, codes, scale, zero=zero)
