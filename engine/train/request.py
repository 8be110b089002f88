"""What a quantisation is asked to do, and everything that can be refused before any work.

Owns the arguments of the job `quantize` and the checks against the model, the disk and the memory. Invariant: a request
that passed can be carried out as asked; nothing is adjusted silently.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from engine.checkpoint import OUTPUT_HEAD, CheckpointInfo
from engine.config import GIB, ModelConfig
from engine.cores import usable_cores
from engine.runner.device import host_memory
from engine.train.refusal import Refusal
from engine.train.source import EMBEDDING

FORMATS = ("awq", "gptq", "compressed-tensors")
METHODS = ("awq", "gptq")
GROUP_SIZES = (128, 64, 32, 16)
_MOST_ROWS, _LONGEST_ROW = 4096, 4096


@dataclass(frozen=True, slots=True)
class Request:
    """See `engine.jobs`. calibration: a text file, or None: the model writes its own. symmetric: zero is the middle
    code (GPTQ only; kernels of other engines may want it). rows, row_tokens: how much text is calibrated on.
    """

    model: Path
    output: Path
    format: str = "awq"
    method: str = "awq"
    bits: int = 4
    group_size: int = 128
    desc_act: bool = False
    symmetric: bool = False
    calibration: Path | None = None
    num_threads: int | None = None
    seed: int = 0
    rows: int = 64
    row_tokens: int = 512

    @property
    def partial(self) -> Path:
        """Where unfinished work is kept."""
        return self.output.with_name(f"{self.output.name}.partial")

    @property
    def threads(self) -> int:
        """CPU threads to use."""
        return self.num_threads or usable_cores()


def read_request(arguments: Mapping[str, Any]) -> Request:
    """The request that these arguments are. Refusal where a field is unknown, missing, or of the wrong kind."""
    known = {one.name for one in dataclass_fields(Request)}
    unknown = sorted(arguments.keys() - known)
    if unknown:
        raise Refusal(f"unknown argument {unknown[0]!r}; known are {', '.join(sorted(known))}")
    values = dict(arguments)
    for name in ("model", "output", "calibration"):
        value = values.get(name)
        if isinstance(value, str) and value:
            values[name] = Path(value)
        elif name != "calibration" or value is not None:
            raise Refusal(f"{name} is {value!r}, expected a path")
    for name in ("bits", "group_size", "seed", "rows", "row_tokens", "num_threads"):
        value = values.get(name, 1)
        if type(value) is not int and not (name == "num_threads" and value is None):
            raise Refusal(f"{name} is {value!r}, expected a whole number")
    for name in ("desc_act", "symmetric"):
        if not isinstance(values.get(name, False), bool):
            raise Refusal(f"{name} is {values[name]!r}, expected true or false")
    for name in ("format", "method"):
        if not isinstance(values.get(name, ""), str):
            raise Refusal(f"{name} is {values[name]!r}, expected a name")
    request = Request(**values)
    _check_wishes(request)
    return request


def _check_wishes(request: Request) -> None:
    """What can be said without looking at the model."""
    for name, value, allowed in (
        ("format", request.format, FORMATS),
        ("method", request.method, METHODS),
        ("group_size", request.group_size, GROUP_SIZES),
    ):
        if value not in allowed:
            raise Refusal(f"{name} is {value!r}; known are {', '.join(str(one) for one in allowed)}")
    if request.format in METHODS and request.format != request.method:
        raise Refusal(
            f"the format {request.format} holds what the method {request.format} makes, and the method is "
            f"{request.method}; choose the format {request.method} or compressed-tensors"
        )
    widths = (4, 8) if request.method == "gptq" else (4,)
    if request.bits not in widths:
        raise Refusal(f"bits is {request.bits}; {request.method} makes codes of {' or '.join(map(str, widths))} bits")
    for name, wished in (("desc_act", request.desc_act), ("symmetric", request.symmetric)):
        if wished and request.method != "gptq":
            raise Refusal(f"{name} is GPTQ's; leave it out, or choose the method gptq")
    for name, value, low, high in (
        ("rows", request.rows, 1, _MOST_ROWS),
        ("row_tokens", request.row_tokens, 16, _LONGEST_ROW),
        ("num_threads", request.threads, 1, 1024),
        ("seed", request.seed, 0, 2**53),
    ):
        if not low <= value <= high:
            raise Refusal(f"{name} is {value}; must lie between {low} and {high}")
    if request.output.exists():
        raise Refusal(f"{request.output}: is there already; choose another output, or remove it")
    if not request.output.absolute().parent.is_dir():
        raise Refusal(
            f"{request.output.absolute().parent}: there is no such folder to write {request.output.name} into"
        )
    if request.calibration is not None and not request.calibration.is_file():
        raise Refusal(f"{request.calibration}: there is no such calibration text; leave it out to have the model write")


def check_model(request: Request, info: CheckpointInfo) -> None:
    """What the model, the disk and the memory allow. Refusal otherwise."""
    _check_sizes(request, info.config)
    if request.row_tokens > info.config.max_position_embeddings:
        raise Refusal(
            f"row_tokens is {request.row_tokens}, and {info.path} takes at most {info.config.max_position_embeddings}"
        )
    needed, free = disk_bytes(request, info), shutil.disk_usage(request.output.absolute().parent).free
    if needed > free:
        raise Refusal(
            f"{request.output}: the work needs {needed / GIB:.1f} GiB of disk, {free / GIB:.1f} are free; make room, "
            "or choose an output on another disk"
        )
    needed, free = memory_bytes(request, info), host_memory()[1]
    if needed > free:
        raise Refusal(
            f"{info.path}: the work needs about {needed / GIB:.1f} GiB of memory, {free / GIB:.1f} are free; unload "
            "models, or ask for fewer rows"
        )


def _check_sizes(request: Request, config: ModelConfig) -> None:
    inputs = {
        "hidden": config.hidden_size,
        "attention": config.num_attention_heads * config.head_dim,
        "MLP": config.intermediate_size,
    }
    for what, size in inputs.items():
        if size % request.group_size:
            fitting = [one for one in GROUP_SIZES if all(each % one == 0 for each in inputs.values())]
            remedy = f"sizes that work: {', '.join(map(str, fitting))}" if fitting else "no group size fits this model"
            raise Refusal(
                f"group_size {request.group_size} does not divide the {size} {what} inputs of {request.model}; {remedy}"
            )
    keys = config.num_key_value_heads * config.head_dim
    for outputs in (config.hidden_size, keys, config.intermediate_size, inputs["attention"]):
        if outputs % 8:
            raise Refusal(f"{request.model}: a matrix has {outputs} outputs, and the formats pack them by 8")


def disk_bytes(request: Request, info: CheckpointInfo) -> int:
    """Of the layers' files, the finished checkpoint, and two generations of hidden states."""
    config = info.config
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    matrices = info.num_parameters - tables
    stored = matrices * (request.bits + 32 // request.group_size * 2) // 8 + matrices // 16 + 2 * tables
    return 2 * stored + 2 * _states_bytes(request, config)


def _states_bytes(request: Request, config: ModelConfig) -> int:
    rows = request.rows + 3 * max(1, request.rows // 5)
    return 4 * rows * request.row_tokens * config.hidden_size


def memory_bytes(request: Request, info: CheckpointInfo) -> int:
    """Of one layer with its statistics, the hidden states, and the token table; or of the model, where it writes.

    The model writes in its own process memory, before the layers' work, in bf16 or its codes.
    """
    config = info.config
    tables = {name for name in (EMBEDDING, OUTPUT_HEAD) if name in info.tensors}
    largest_table = max(info.tensors[name].num_elements for name in tables)
    prefix = "model.layers.0."
    layer = sum(tensor.num_elements for name, tensor in info.tensors.items() if name.startswith(prefix))
    widest = max(config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim)
    statistics = widest * widest * (4 + 4 + 8 * 3)
    work = 5 * 4 * layer + statistics + 2 * _states_bytes(request, config)
    needed = max(work, 2 * 4 * largest_table + _states_bytes(request, config))
    return needed if request.calibration else max(needed, info.weights_bytes(2) + GIB)
