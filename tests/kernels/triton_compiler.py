"""Compiles Triton kernels for a GPU that is not there: the interpreter accepts much that the compiler refuses.

Owns the stand-in for a launch: within `compiled_launches` a kernel that is launched is compiled for the arguments at
hand, as on the GPU, and not run. Needs a process without TRITON_INTERPRET. Knows no kernel.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as compiled for one launch."""

    name: str
    cubin: bytes
    constants: dict[str, object]
    shared_bytes: int

    def machine_code(self) -> str:
        """The GPU's instructions as text, by the disassembler that Triton brings."""
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            return subprocess.run([tool, file.name], capture_output=True, text=True, check=True).stdout

    def matrix_instructions(self) -> set[str]:
        """The kinds of tensor-core instructions in it."""
        return set(re.findall(r"\b[A-Z]{1,2}MMA[.\w]*", self.machine_code()))


@contextlib.contextmanager
def compiled_launches(target: GPUTarget = HOPPER) -> Iterator[list[Compiled]]:
    """Collects what is launched within, each kind of launch once."""
    found: dict[object, Compiled] = {}

    def launcher(kernel: JITFunction[Any], grid: object) -> Callable[..., None]:
        def launch(*args: object, **kwargs: object) -> None:
            options = {name: kwargs.pop(name) for name in list(kwargs) if name not in kernel.arg_names}
            given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
            signature, constants, attributes = _specialised(kernel, given)
            key = (kernel.fn.__name__, str(signature), str(constants), str(attributes), str(options))
            if key not in found:
                source = triton.compiler.ASTSource(kernel, signature, constants, attributes)
                built = triton.compile(source, target=target, options=options)
                named = {kernel.arg_names[place]: value for (place,), value in constants.items()}
                found[key] = Compiled(kernel.fn.__name__, built.asm["cubin"], named, built.metadata.shared)

        return launch

    launched: list[Compiled] = []
    with mock.patch.object(JITFunction, "__getitem__", launcher):
        yield launched
        launched.extend(found.values())


def _specialised(
    kernel: JITFunction[Any], given: dict[str, object]
) -> tuple[dict[str, str], dict[tuple[int], object], dict[tuple[int], list[list[object]]]]:
    """Types, constants and alignments of the arguments, as Triton's launcher tells them apart."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], object] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    for place, parameter in enumerate(kernel.params):
        value = given.get(parameter.name, parameter.default)
        plain = parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not plain):
            signature[parameter.name], constants[(place,)] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
            aligned = value.data_ptr() % 16 == 0
        elif isinstance(value, float):
            signature[parameter.name], aligned = "fp32", False
        else:
            assert isinstance(value, int)
            signature[parameter.name] = "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
            aligned = value % 16 == 0
        if aligned and not plain:
            attributes[(place,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def compile_every_op(dtype: torch.dtype) -> dict[str, list[Compiled]]:
    """What each op of the backend launches in its first case, compiled. The CPU stands in for the GPU's memory."""
    from kernels.registry import KERNELS, load_ops
    from tests.kernels.op_cases import CASES, make_case

    found = {}
    with mock.patch.object(torch.cuda, "is_available", return_value=True):
        ops, choices = load_ops(["triton_ops"], dtype, torch.device("cpu"), 1)
    served = {choice.op for choice in choices if choice.backend == "triton_ops"}
    assert served == {op for op, backends in KERNELS.items() if "triton_ops" in backends}
    for op in sorted(served):
        case = next(case for case in CASES if case.partition(":")[0] == op)
        with compiled_launches() as launched, contextlib.suppress(AssertionError):
            make_case(case, dtype, seed=1).run(ops, 0, 3)  # what a case finds in buffers that nobody wrote is no matter
        found[op] = launched
    return found


if __name__ == "__main__":
    for op, launched in compile_every_op(torch.bfloat16).items():
        for one in launched:
            told = {"op": op, "kernel": one.name, "shared": one.shared_bytes, "mma": sorted(one.matrix_instructions())}
            print(json.dumps(told), flush=True)
