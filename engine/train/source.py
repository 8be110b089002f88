"""The weights of a model that is worked on, a layer at a time, in fp32.

Owns which checkpoints can be taken, and the reading of one layer. Knows neither calibration nor methods. Invariant: no
more than the layer that was asked for is in memory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint import OUTPUT_HEAD, CheckpointInfo, read_checkpoint
from engine.models.loader import iter_weights
from engine.train.measure import largest
from engine.train.refusal import Refusal
from kernels.group_quant import GroupQuant

EMBEDDING, FINAL_NORM = "model.embed_tokens.weight", "model.norm.weight"
_LAYERS = "model.layers."


class Source:
    """A dense model's checkpoint, safetensors or GGUF. Refusal for another, CheckpointError for a broken one.

    codes: whether a checkpoint of AWQ, GPTQ or compressed-tensors will do, dequantised.
    """

    def __init__(self, path: Path, *, codes: bool = False) -> None:
        self.path = path
        self.info: CheckpointInfo = read_checkpoint(path)
        self.config = self.info.config
        _refuse_foreign(self.info)
        if not codes:
            _refuse_codes(self.info)

    @property
    def folder(self) -> Path:
        """Where the files beside the weights are."""
        return self.path if self.path.is_dir() else self.path.parent

    def layer(self, index: int) -> dict[str, Tensor]:
        """Every tensor of layer `index` by its name within the layer, fp32."""
        prefix = f"{_LAYERS}{index}."
        names = [name for name in self.info.tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): tensor for name, tensor in self._read(names).items()}

    def embedding(self) -> Tensor:
        """The token table, fp32 [V, H]."""
        return self._read([EMBEDDING])[EMBEDDING]

    def final_norm(self) -> Tensor:
        """The weight of the norm behind the last layer, fp32 [H]."""
        return self._read([FINAL_NORM])[FINAL_NORM]

    def head(self) -> Tensor:
        """The output head, fp32 [V, H]: the token table itself where they are tied."""
        if self.config.tie_word_embeddings:
            return self.embedding()
        return self._read([OUTPUT_HEAD])[OUTPUT_HEAD]

    def largest_vector(self) -> float:
        """The largest absolute value among norms, biases, the token table and the head."""
        names = [name for name, tensor in self.info.tensors.items() if len(tensor.shape) == 1]
        found = largest([*self._read(names).values(), self.embedding()])
        return found if self.config.tie_word_embeddings else max(found, largest([self.head()]))

    def _read(self, names: list[str]) -> dict[str, Tensor]:
        part = replace(self.info, tensors={name: self.info.tensors[name] for name in names})
        found = {}
        for name, tensor in iter_weights(part, torch.float32, lambda done, total: None):
            found[name] = tensor.dequantised() if isinstance(tensor, GroupQuant) else tensor
        return found


def _refuse_foreign(info: CheckpointInfo) -> None:
    config = info.config
    if config.transformers_class:
        raise Refusal(
            f"{info.path}: {config.transformers_class} runs through transformers here, and only the models of "
            "Pizarra's own dense decoder can be taken; use a Llama, Mistral, Qwen, Phi-3, SmolLM3, Granite, OLMo 2 "
            "or Gemma checkpoint"
        )
    if config.num_experts:
        raise Refusal(
            f"{info.path}: {config.architecture} has {config.num_experts} experts a layer; only dense models can be "
            "taken here"
        )


def _refuse_codes(info: CheckpointInfo) -> None:
    if info.format == "safetensors":
        coded = next((tensor for tensor in info.tensors.values() if tensor.scheme is not None), None)
        if coded is not None:
            raise Refusal(
                f"{info.path}: tensor {coded.name} is stored as {coded.dtype}: this checkpoint is quantised already; "
                "start from the unquantised one"
            )
