"""The job `quantize`: a dense model's matrices become codes, layer by layer, and a standard checkpoint is written.

Owns the order of the work and the streams of hidden states: the calibration rows, and the held-out rows through the
base, through weights rounded to nearest, and through the quantised weights. Invariant: no more than one layer's weights
are in memory, and `output` is not there until it is complete.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint import OUTPUT_HEAD, read_checkpoint
from engine.checkpoint.fp16_risk import BF16_FAMILIES
from engine.layers.rotary import RotaryTables
from engine.train.awq import AwqOptions
from engine.train.calibration import Rows, rows_by_model, rows_of_file
from engine.train.card import write_card
from engine.train.compute import rounded_products
from engine.train.export_config import export_config, source_folder_files
from engine.train.forward import LayerForward, embed
from engine.train.gptq import GptqOptions
from engine.train.grid import round_to_nearest
from engine.train.layer import QuantisedLayer, advance
from engine.train.layer_awq import quantise_with_awq
from engine.train.layer_gptq import quantise_with_gptq
from engine.train.measure import Side, compare, recovered
from engine.train.packing import pack_layer, quantization_config
from engine.train.partial import Partial, save_tensors
from engine.train.request import Request, check_model, read_request
from engine.train.shards import join_files
from engine.train.source import EMBEDDING, FINAL_NORM, Source
from engine.vocab import convert_gguf_tokenizer, load_vocab, write_tokenizer

Report = Callable[[str, int, int, str], None]

CALIBRATION, BASE, ROUNDED, QUANTISED = "calibration", "base", "rounded", "quantised"  # the streams
_TOP_FILE = "top.safetensors"
_LARGEST_HALF = 65504.0


def quantize(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    """See `engine.jobs`. Returns the figures of the card. Refusal, CheckpointError or VocabError for bad input."""
    request = read_request(arguments)
    source = Source(request.model)
    check_model(request, source.info)
    export_config(source.info, torch.float16)
    if source.info.format == "gguf":
        convert_gguf_tokenizer(source.info)  # what cannot be written at the end is refused now
    with torch.inference_mode(), rounded_products(request.threads):
        return _Quantisation(request, source, report).run()


class _Quantisation:
    """One request on its way."""

    def __init__(self, request: Request, source: Source, report: Report) -> None:
        self.request, self.source, self.report = request, source, report
        self.config = source.config
        self.vocab = load_vocab(request.model)
        self.partial = Partial(request.partial, _identity(request, source))
        self.dtype = self._pick_dtype()

    def run(self) -> dict[str, Any]:
        rows = self._rows()
        states = self.partial.states() or self._begin(rows)
        rotary = RotaryTables(self.config, self.request.row_tokens, torch.float32, torch.device("cpu"))
        count = self.config.num_hidden_layers
        for index in range(self.partial.layers_done, count):
            forward = LayerForward(self.config, index, rotary)
            self._layer(index, forward, states)
        self.report("measure", count, count, "measuring perplexity on held-out text")
        result = self._measure(rows, states)
        del states
        self.report("write", count, count, f"writing {self.request.output.name}")
        return self._write(result)

    def _pick_dtype(self) -> torch.dtype:
        """Of what is not quantised: fp16 where it can hold everything, bf16 for families that leave fp16's range."""
        if self.config.architecture.startswith(BF16_FAMILIES) or self.source.largest_vector() > _LARGEST_HALF:
            return torch.bfloat16
        return torch.float16

    def _rows(self) -> Rows:
        kept = self.partial.rows()
        if kept is not None:
            return kept
        request = self.request
        if request.calibration is not None:
            rows = rows_of_file(request.calibration, self.vocab, request.rows, request.row_tokens)
        else:
            rows = rows_by_model(
                request.model,
                self.vocab,
                request.rows,
                request.row_tokens,
                request.seed,
                request.threads,
                lambda done, total: self.report("calibration", done, total, "the model writes its calibration text"),
            )
        self.partial.save_rows(rows)
        return rows

    def _begin(self, rows: Rows) -> dict[str, Tensor]:
        """The streams before the first layer; also keeps what is stored besides the layers."""
        table = self.source.embedding()
        top = {EMBEDDING: table.to(self.dtype), FINAL_NORM: self.source.final_norm().to(self.dtype)}
        if not self.config.tie_word_embeddings:
            top[OUTPUT_HEAD] = self.source.head().to(self.dtype)
        for name, tensor in top.items():
            if not bool(torch.isfinite(tensor).all()):
                raise OverflowError(f"tensor {name} holds numbers that {self.dtype} does not")
        save_tensors(self.partial.folder / _TOP_FILE, top)
        held = embed(rows.held_out, top[EMBEDDING], self.config)
        return {
            CALIBRATION: embed(rows.calibration, top[EMBEDDING], self.config),
            BASE: embed(rows.held_out, table, self.config),
            ROUNDED: held,
            QUANTISED: held.clone(),
        }

    def _layer(self, index: int, forward: LayerForward, states: dict[str, Tensor]) -> None:
        count = self.config.num_hidden_layers

        def step() -> None:
            self.report("quantize", index, count, f"layer {index + 1} of {count}")

        step()
        weights = self.source.layer(index)
        advance(states[BASE], lambda rows: forward(weights, rows))
        step()
        self._advance_rounded(forward, weights, states[ROUNDED])
        step()
        layer = self._method(forward, weights, states[CALIBRATION], step)
        written = layer.weights()
        advance(states[QUANTISED], lambda rows: forward(written, rows))
        if self.request.method == "awq":  # GPTQ has advanced them itself, place by place
            advance(states[CALIBRATION], lambda rows: forward(written, rows))
        packed = pack_layer(self.request, layer, f"model.layers.{index}.", self.dtype)
        self.partial.save_layer(packed, states)

    def _advance_rounded(self, forward: LayerForward, weights: dict[str, Tensor], x: Tensor) -> None:
        bits, size = self.request.bits, self.request.group_size
        rounded = {
            name: round_to_nearest(tensor, bits, size).dequantised() if tensor.dim() == 2 else tensor
            for name, tensor in weights.items()
        }
        advance(x, lambda rows: forward(rounded, rows))

    def _method(
        self, forward: LayerForward, weights: dict[str, Tensor], x: Tensor, step: Callable[[], None]
    ) -> QuantisedLayer:
        request = self.request
        if request.method == "awq":
            return quantise_with_awq(
                forward, weights, x, AwqOptions(request.bits, request.group_size), self.dtype, step
            )
        options = GptqOptions(request.bits, request.group_size, symmetric=request.symmetric, act_order=request.desc_act)
        return quantise_with_gptq(forward, weights, x, options, self.dtype, step)

    def _measure(self, rows: Rows, states: dict[str, Tensor]) -> dict[str, Any]:
        head, norm = self.source.head(), self.source.final_norm()
        stored_head, stored_norm = (tensor.to(self.dtype).to(torch.float32) for tensor in (head, norm))
        sides = [
            Side(states[BASE], norm, head),
            Side(states[ROUNDED], stored_norm, stored_head),
            Side(states[QUANTISED], stored_norm, stored_head),
        ]
        base, rounded, found = compare(sides, rows.held_out, self.config)
        return {
            "perplexity_base": math.exp(base.log_perplexity),
            "perplexity_rtn": math.exp(rounded.log_perplexity),
            "perplexity": math.exp(found.log_perplexity),
            "recovered": recovered(base.log_perplexity, rounded.log_perplexity, found.log_perplexity),
            "divergence_rtn": rounded.divergence,
            "divergence": found.divergence,
            "divergence_removed": recovered(0.0, rounded.divergence, found.divergence),
            "calibration": rows.source,
            "calibration_tokens": rows.calibration.numel(),
            "held_out_tokens": rows.held_out.numel(),
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def _write(self, result: dict[str, Any]) -> dict[str, Any]:
        request, info = self.request, self.source.info
        folder = self.partial.folder / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        layers = [self.partial.layer_file(index) for index in range(self.config.num_hidden_layers)]
        weights_bytes = join_files([self.partial.folder / _TOP_FILE, *layers], folder)
        if info.format == "gguf":
            write_tokenizer(info, folder)
        else:
            for path in source_folder_files(self.source.folder):
                shutil.copyfile(path, folder / path.name)
        version = importlib.metadata.version("pizarra-llm")
        config = export_config(info, self.dtype) | {"quantization_config": quantization_config(request, version)}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        figures = result | {"weights_bytes": weights_bytes}
        (folder / "README.md").write_text(write_card(request, info, figures), encoding="utf-8")
        read_checkpoint(folder)
        folder.rename(request.output)
        shutil.rmtree(self.partial.folder)
        share = "" if figures["recovered"] is None else f", {100 * figures['recovered']:.1f} % of the loss recovered"
        message = (
            f"{request.output}: perplexity {figures['perplexity']:.3f} (base {figures['perplexity_base']:.3f}, rounded "
            f"to nearest {figures['perplexity_rtn']:.3f}{share})"
        )
        return figures | {"output": str(request.output), "peak_memory_bytes": _peak_memory(), "message": message}


def _identity(request: Request, source: Source) -> dict[str, Any]:
    """What must be the same for work to be gone on with."""
    wishes = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(request).items()}
    del wishes["num_threads"], wishes["output"]
    wishes["model"] = str(request.model.absolute())
    text = request.calibration.read_bytes() if request.calibration else b""
    return wishes | {
        "weights_bytes": source.info.weights_bytes_on_disk,
        "calibration_digest": hashlib.blake2b(text, digest_size=16).hexdigest(),
    }


def _peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
