"""The check of kernels at their first load: right ones pass, wrong ones are found, replaced and told of."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import LoadOptions
from engine.runner import model_runner
from engine.runner.model_runner import ModelRunner
from kernels import check_stamp, registry
from kernels.check_stamp import CheckStamp
from kernels.checks import CHECKS, check_op
from kernels.cpu_ops import attention as cpu_attention
from kernels.cpu_ops import group_linear, linear, rotary
from kernels.ops import KVCache, Ops
from kernels.reference import attention as reference
from kernels.reference import rotary as reference_rotary
from kernels.registry import KERNELS, backend_ops, load_ops
from tests.engine.stepping import load
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

CPU = torch.device("cpu")
REFERENCE = backend_ops([], torch.float64, CPU)
RIGHT_LINEAR = linear.linear
CPU_DTYPES = (torch.bfloat16, torch.float32)


@pytest.fixture
def stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckStamp:
    """The stamp of cpu_ops, in a folder of this test."""
    real = check_stamp.stamp_of("cpu_ops", CPU)
    assert real is not None
    own = replace(real, path=tmp_path / real.path.name)
    monkeypatch.setattr(registry, "stamp_of", lambda backend, device: own if backend == "cpu_ops" else None)
    return own


def loaded(dtype: torch.dtype = torch.bfloat16) -> dict[str, tuple[str, str]]:
    """op -> its backend and the reason."""
    _, choices = load_ops(["cpu_ops"], dtype, CPU, num_threads=2)
    return {choice.op: (choice.backend, choice.reason) for choice in choices}


def test_every_op_has_a_check() -> None:
    assert CHECKS.keys() == KERNELS.keys()


@pytest.mark.parametrize("dtype", CPU_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("op", "backend"),
    [(op, backend) for op in KERNELS for backend in ("reference", "cpu_ops") if backend in KERNELS[op]],
)
def test_right_ops_pass(op: str, backend: str, dtype: torch.dtype) -> None:
    assert check_op(op, backend_ops([backend], dtype, CPU), REFERENCE, dtype, CPU) == ""


def test_all_of_them_are_little_work() -> None:
    """They run before the first load on a machine: so many calls, on so many numbers in all."""
    sizes: list[int] = []

    def counted(ops: Ops) -> Ops:
        def counting(run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **more: Any) -> Any:
                sizes.append(sum(each.numel() for each in given if isinstance(each, torch.Tensor)))
                return run(*given, **more)

            return call

        runs = {each.name: getattr(ops, each.name) for each in fields(ops)}
        return replace(ops, **{name: counting(run) for name, run in runs.items() if callable(run)})

    ops, reference = counted(backend_ops(["cpu_ops"], torch.bfloat16, CPU)), counted(REFERENCE)
    assert [check_op(op, ops, reference, torch.bfloat16, CPU) for op in CHECKS] == [""] * len(CHECKS)
    assert len(CHECKS) < len(sizes) <= 400
    assert sum(sizes) <= 1_500_000


@pytest.mark.parametrize("op", KERNELS)
def test_an_op_that_does_nothing_is_found(op: str) -> None:
    idle: Callable[..., Any] = lambda *tensors, **more: None  # noqa: E731
    if op == "prepare_group_quant":
        idle = lambda weight: replace(weight, scale=weight.scale * 2)  # noqa: E731
    changed: dict[str, Any] = {op: idle}
    ops = replace(backend_ops([], torch.float32, CPU), **changed)
    assert check_op(op, ops, REFERENCE, torch.float32, CPU).startswith(op)


@pytest.mark.parametrize("op", [op for op in KERNELS if op != "prepare_group_quant"])
def test_an_op_that_mixes_up_rows_is_found(op: str) -> None:
    """Its first tensor is what it writes."""
    right = getattr(REFERENCE, op)

    def rolled(*given: Any, **more: Any) -> None:
        right(*given, **more)
        given[0].copy_(given[0].roll(1, 0))

    changed: dict[str, Any] = {op: rolled}
    ops = replace(backend_ops([], torch.float32, CPU), **changed)
    assert check_op(op, ops, REFERENCE, torch.float32, CPU).startswith(op)


def far_off(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    RIGHT_LINEAR(out, x, weight, bias)
    out[5, 7] += 3


def lone_row_differs(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    RIGHT_LINEAR(out, x, weight, bias)
    if len(x) == 1:
        out.view(torch.int16 if out.dtype == torch.bfloat16 else torch.int32)[0, 3] ^= 1


def raising(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    raise RuntimeError("no such instruction")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (far_off, r"cpu_ops: linear differs from the reference by 0\.\d+ of the largest value, 0\.012 are allowed on"),
        (lone_row_differs, "cpu_ops: linear row 0 alone gives other bits than among 21 on this machine"),
        (raising, "cpu_ops: linear fails with RuntimeError: no such instruction on this machine"),
    ],
)
def test_a_wrong_kernel_is_replaced_with_the_reason(
    wrong: Callable[..., None], reason: str, stamp: CheckStamp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "linear", wrong)
    ops, choices = load_ops(["cpu_ops"], torch.bfloat16, CPU, num_threads=2)
    found = {choice.op: choice for choice in choices}
    assert found["linear"].backend == "reference"
    assert re.match(reason, found["linear"].reason), found["linear"].reason
    assert ops.linear is REFERENCE.linear
    assert ops.row_alignment == 16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert {choice.op for choice in choices if choice.reason} == {"linear"}
    assert "linear" not in stamp.read(torch.bfloat16)


def test_what_reads_one_layout_falls_together(stamp: CheckStamp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_linear, "group_embedding", lambda out, token_ids, table: out.zero_())
    found = loaded()
    assert {op for op, (backend, reason) in found.items() if reason} == set(registry.ONE_LAYOUT)
    assert found["group_linear"] == found["group_embedding"]
    assert found["group_linear"][1].startswith("cpu_ops: group_embedding differs from the reference")


def test_a_stamp_saves_the_check(stamp: CheckStamp, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def counted(op: str, *given: Any, **more: Any) -> str:
        checked.append(op)
        return check_op(op, *given, **more)

    monkeypatch.setattr(registry, "check_op", counted)
    of_cpu_ops = {op for op, (backend, _) in loaded().items() if backend == "cpu_ops"}
    assert set(checked) == of_cpu_ops == stamp.read(torch.bfloat16)
    checked.clear()
    loaded()
    assert checked == []
    loaded(torch.float32)
    assert set(checked) == of_cpu_ops, "another dtype"
    checked.clear()
    stamp.path.write_text(stamp.path.read_text().replace('"silu_mul"', '"an op of old"'))
    loaded()
    assert checked == ["silu_mul"], "another op"
    checked.clear()
    other = replace(stamp, identity="another library")
    monkeypatch.setattr(registry, "stamp_of", lambda backend, device: other if backend == "cpu_ops" else None)
    loaded()
    assert set(checked) == of_cpu_ops, "another library"


def test_a_float8_cache_is_checked_where_a_load_wants_one(stamp: CheckStamp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference stands in for a backend that has float8, which no CPU backend does."""

    def wrong_in_float8(out: Tensor, qkv: Tensor, cache: KVCache, *given: Any) -> None:
        reference.paged_attention(out, qkv, cache, *given)
        if cache.keys.dtype == torch.float8_e4m3fn:
            out[5, 7] += 3

    def attention(*, float8: bool) -> tuple[str, str]:
        _, choices = load_ops(["cpu_ops"], torch.float32, CPU, num_threads=2, float8=float8)
        return next((choice.backend, choice.reason) for choice in choices if choice.op == "paged_attention")

    monkeypatch.setattr(rotary, "rotary_kv_write", reference_rotary.rotary_kv_write)
    monkeypatch.setattr(cpu_attention, "paged_attention", reference.paged_attention)
    assert attention(float8=True) == ("cpu_ops", "")
    assert {"paged_attention", "paged_attention (float8)", "rotary_kv_write (float8)"} <= stamp.read(torch.float32)
    assert "linear (float8)" not in stamp.read(torch.float32)
    stamp.path.unlink()
    monkeypatch.setattr(cpu_attention, "paged_attention", wrong_in_float8)
    assert attention(float8=False) == ("cpu_ops", ""), "without such a cache it serves"
    backend, reason = attention(float8=True)
    assert backend == "reference"
    assert reason.startswith("cpu_ops: paged_attention (float8) differs from the reference")
    assert attention(float8=False) == ("cpu_ops", "")


def test_a_load_asks_for_float8_checks_with_a_float8_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU such a load is refused; the plan is a GPU's."""
    loaded = load(tiny_llama_checkpoint(tmp_path / "tiny"), kernel_backend="reference")
    asked: list[bool] = []

    def spy(*given: Any, float8: bool) -> Any:
        asked.append(float8)
        return load_ops(*given)

    monkeypatch.setattr(model_runner, "load_ops", spy)
    for kv_dtype, wish in ((torch.float8_e4m3fn, "fp8"), (torch.int8, "int8"), (loaded.plan.dtype, "auto")):
        options = LoadOptions(kernel_backend="reference", kv_cache_dtype=wish)
        plan = replace(loaded.plan, kv_dtype=kv_dtype)
        ModelRunner(loaded.info, options, plan, lambda stage, done, total, message: None)
    assert asked == [True, False, False]


def test_a_fault_is_looked_for_again(stamp: CheckStamp, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed for want of memory serves once there is some."""
    with monkeypatch.context() as once:
        once.setattr(linear, "linear", raising)
        assert loaded()["linear"][0] == "reference"
    assert loaded()["linear"] == ("cpu_ops", "")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"identity": "x"}', '{"identity": "x", "right": {"torch.bfloat16": 3}}']
)
def test_a_broken_stamp_means_check_again(tmp_path: Path, text: str) -> None:
    broken = CheckStamp(tmp_path / "stamp", "x")
    broken.path.write_text(text)
    assert broken.read(torch.bfloat16) == set()
    broken.write(torch.bfloat16, {"add"})
    assert broken.read(torch.bfloat16) == {"add"}


def test_a_stamp_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    CheckStamp(tmp_path / "file" / "stamp", "x").write(torch.bfloat16, {"add"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_who_writes_at_once_leaves_a_whole_stamp(tmp_path: Path) -> None:
    one, together = CheckStamp(tmp_path / "stamp", "x"), threading.Barrier(8)

    def write(number: int) -> None:
        together.wait()
        for turn in range(20):
            one.write(torch.bfloat16, {f"op {number}", f"turn {turn}"})
            assert one.read(torch.bfloat16), "no one sees half a file"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert [path.name for path in tmp_path.iterdir()] == ["stamp"]


def test_the_reference_and_the_interpreter_are_not_checked_at_a_load() -> None:
    assert check_stamp.stamp_of("reference", CPU) is None
    assert check_stamp.stamp_of("triton_ops", CPU) is None


def test_a_broken_import_is_not_taken_for_an_absent_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS["linear"], "cpu_ops", "kernels.cpu_ops.no_such_module:linear")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load_ops(["cpu_ops"], torch.float32, CPU, num_threads=1)
