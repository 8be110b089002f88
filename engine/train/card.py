"""README.md of a checkpoint that was made here: what it is, of what, how, and what it cost.

Owns the card's text. Knows no tensors. Invariant: every figure in it was measured in the run that wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from engine.checkpoint import CheckpointInfo
from engine.config import GIB
from engine.train.request import Request

_METHODS = {
    "awq": "AWQ (Lin et al., arXiv 2306.00978): activation-aware scales, folded into what stands before each matrix, "
    "and clipped ranges",
    "gptq": "GPTQ (Frantar et al., arXiv 2210.17323): column by column, the error of each made up for by the rest, "
    "each layer on the outputs of the quantised layers before it",
}


def write_card(request: Request, info: CheckpointInfo, result: Mapping[str, Any]) -> str:
    """The card, in Markdown with its front matter."""
    name = f"{_base_name(info)}, {request.bits}-bit {request.method.upper()}"
    licence = _licence(info)
    front = ["---", f"license: {licence or 'other'}", *_base_repository(info), "tags:", f"- {request.method}"]
    lines = [*front, f"- {request.bits}-bit", "---", "", f"# {name}", "", *_facts(request, info, result, licence), ""]
    lines += ["## Perplexity on held-out text", "", *_table(result), "", *_remarks(info, request), ""]
    lines += ["## Made with", "", "```", _command(request), "```", ""]
    return "\n".join(lines)


def _facts(request: Request, info: CheckpointInfo, result: Mapping[str, Any], licence: str) -> list[str]:
    order = ", act order (desc_act)" if request.desc_act else ""
    base = f"{info.config.architecture}, {info.num_parameters:,} parameters, stored as {info.quantization}"
    zeros = "symmetric" if request.symmetric else "integer zeros"
    return [
        f"- Method: {_METHODS[request.method]}.",
        f"- Codes: {request.bits} bits, groups of {request.group_size} inputs, fp16 scales, {zeros}{order}.",
        f"- Format: {request.format}.",
        f"- Base: `{info.path.name}` ({base}).",
        f"- Licence: {licence or 'not stated by the files of the base; look it up there'}, as the base.",
        f"- Embeddings, norms, biases and the output head are not quantised: {result['dtype']}.",
        f"- Calibration: {result['calibration_tokens']:,} tokens of {result['calibration']}.",
        f"- Size of the weights: {result['weights_bytes'] / GIB:.3f} GiB.",
        f"- Date: {datetime.now(UTC).date().isoformat()}.",
    ]


def _table(result: Mapping[str, Any]) -> list[str]:
    rounded = f"{result['perplexity_rtn']:.3f} | {result['divergence_rtn']:.5f}"
    return [
        f"Measured on {result['held_out_tokens']:,} other tokens of the same source, none of them calibrated on.",
        "",
        "| weights | perplexity | divergence from the base, nats a token |",
        "|---|---|---|",
        f"| base | {result['perplexity_base']:.3f} | 0 |",
        f"| rounded to nearest, same groups, integer zeros | {rounded} |",
        f"| these | {result['perplexity']:.3f} | {result['divergence']:.5f} |",
        "",
        f"Of the log-perplexity that rounding to nearest loses, this recovers {_share(result['recovered'])}; of the",
        f"Kullback-Leibler divergence that it makes, this removes {_share(result['divergence_removed'])}.",
    ]


def _share(value: float | None) -> str:
    return "nothing, since nothing was lost" if value is None else f"{100 * value:.1f} %"


def _remarks(info: CheckpointInfo, request: Request) -> list[str]:
    grids = {tensor.dtype: tensor.scheme for tensor in info.tensors.values() if tensor.scheme is not None}
    if not grids:
        return []
    names = ", ".join(sorted(grids))
    smallest = min(scheme.group_size for scheme in grids.values() if scheme is not None)
    return [
        f"The base is itself quantised ({names}): its weights lie on a grid of groups of {smallest}. Groups of that "
        "size can therefore give figures that say nothing about weights that lie on no grid."
        + (" Such groups are used here." if request.group_size <= smallest else "")
    ]


def _base_name(info: CheckpointInfo) -> str:
    return info.path.stem if info.path.is_file() else info.path.name


def _base_repository(info: CheckpointInfo) -> list[str]:
    """The line that links to the base, where its files name a repository."""
    name = info.metadata.get("_name_or_path")
    is_repository = isinstance(name, str) and name.count("/") == 1 and not name.startswith((".", "/"))
    return [f"base_model: {name}"] if is_repository else []


def _licence(info: CheckpointInfo) -> str:
    found = info.metadata.get("general.license") or info.metadata.get("license")
    return found if isinstance(found, str) else ""


def _command(request: Request) -> str:
    arguments = {
        "model": request.model.name,
        "output": request.output.name,
        "format": request.format,
        "method": request.method,
        "bits": request.bits,
        "group_size": request.group_size,
        "desc_act": request.desc_act,
        "symmetric": request.symmetric,
        "calibration": None if request.calibration is None else request.calibration.name,
        "seed": request.seed,
        "rows": request.rows,
        "row_tokens": request.row_tokens,
    }
    return f"echo '{json.dumps(arguments)}' | python -m engine.jobs quantize"
