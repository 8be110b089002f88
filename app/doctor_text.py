"""A doctor's report as lines for a terminal.

Owns the wording there. Knows nothing of how the report was made; the dashboard has its own words for it.
Invariant: nothing that the report says is wrong is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.doctor import DoctorReport
from engine.checkpoint.doctor import CheckpointReport, ModuleKind
from engine.checkpoint.doctor_storage import Storage
from engine.core.sizing import format_bytes

_NAME_WIDTH = 15


def report_lines(report: DoctorReport) -> Iterator[str]:
    """The report, line by line."""
    checkpoint = report.checkpoint
    fault = "cannot be served" if checkpoint.verdict == "sound" else checkpoint.verdict
    yield f"{report.model_id or checkpoint.path}: {fault if report.problem else 'can be served'}"
    rows = [("problem", report.problem)] if report.problem else []
    rows.append(("path", checkpoint.path))
    if checkpoint.storage is not None:
        rows += _checkpoint_rows(checkpoint, checkpoint.storage)
    rows += _machine_rows(report)
    rows += [("environment", problem) for problem in report.environment]
    for name, value in rows:
        yield f"  {name:<{_NAME_WIDTH}} {value}"


def _checkpoint_rows(checkpoint: CheckpointReport, storage: Storage) -> Iterator[tuple[str, str]]:
    runner = "by Pizarra's own decoder" if checkpoint.runner == "native" else "through transformers"
    reason = f": {checkpoint.runner_reason}" if checkpoint.runner_reason else ""
    yield "runs", f"{runner} ({checkpoint.architecture}){reason}"
    yield "format", _format(checkpoint.format, storage)
    if storage.method != "none":
        yield "", _scheme(storage)
    for kind in checkpoint.kinds:
        yield kind.kind, _kind(kind)
    yield "output head", "tied to the embedding" if checkpoint.tied_head else "of its own"
    yield "biases", str(checkpoint.num_biases) if checkpoint.num_biases else "none"
    yield "parameters", f"{checkpoint.num_parameters:,}"
    yield "on disk", _size(checkpoint.bytes_on_disk, checkpoint.bits_per_weight_on_disk)
    yield "in memory", _size(checkpoint.bytes_in_memory, checkpoint.bits_per_weight)
    if checkpoint.fp16_risk is not None:
        yield "fp16 overflow", f"{checkpoint.fp16_risk.level}: {checkpoint.fp16_risk.reason}"
    for remark in checkpoint.remarks:
        yield "note", remark


def _machine_rows(report: DoctorReport) -> Iterator[tuple[str, str]]:
    if (fit := report.fit) is not None:
        context = f"context {fit.max_model_len:,}" if fit.fits else f"longest context {fit.max_model_len_that_fits:,}"
        yield "fits here", f"{'yes' if fit.fits else 'no'}, {context}: {fit.message}"
    tokenizer = report.tokenizer
    yield "tokenizer", f"{tokenizer.num_tokens:,} tokens" if tokenizer.readable else f"unreadable: {tokenizer.reason}"
    if (template := report.chat_template) is not None:
        yield "chat template", "accepted" if template.accepted else template.reason
        yield from (("", f"does not take {limit}") for limit in template.limits)
    for draft in report.drafts:
        yield "draft model" if draft.matches else "no draft model", f"{draft.model_id}: {draft.reason}"


def _format(file_format: str, storage: Storage) -> str:
    name = {"none": f"{file_format}, plain", "GGUF": "GGUF blocks"}.get(
        storage.method, f"{file_format}, {storage.method} {storage.layout}"
    )
    return f"{name}: {counts(storage.formats)}"


def _scheme(storage: Storage) -> str:
    bits = " and ".join(str(width) for width in storage.bits)
    groups = " and ".join(str(size) for size in storage.group_sizes)
    order = "with act order" if storage.act_order else "no act order"
    return f"{bits} bits, groups of {groups}, {storage.zero_points} zero points, {order}"


def _kind(kind: ModuleKind) -> str:
    share = f"{kind.quantised} in codes, {kind.plain} plain"
    return f"{share} ({counts(kind.formats)}), {format_bytes(kind.bytes_in_memory)} in memory"


def _size(nbytes: int, bits: float) -> str:
    return f"{format_bytes(nbytes)}, {bits:.2f} bits a weight"


def counts(formats: Mapping[str, int]) -> str:
    """How many there are of each, the most first."""
    return ", ".join(f"{count} {name}" for name, count in formats.items())
