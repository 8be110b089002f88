"""OpenVINO GenAI under comparison: its continuous batching on the GGUF file itself, in its own environment.

Owns the pipeline. Imports nothing of this repository but the protocol. An argument holds further properties as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

from bench.peer_protocol import check_lengths, serve_engine

CACHE_GIB = 1


class OpenVino:
    """One pipeline."""

    pipeline: Any

    def load(self, model: str, threads: int, max_seqs: int, max_len: int) -> dict[str, Any]:
        """max_len: bounds nothing here; the cache's size does."""
        del max_len
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = max_seqs
        scheduler.enable_prefix_caching = False
        chosen: dict[str, Any] = json.loads(sys.argv[1]) if sys.argv[1:] else {}
        properties = {"INFERENCE_NUM_THREADS": threads, **chosen}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        settings = f"`ContinuousBatchingPipeline`, {scheduler.max_num_batched_tokens} tokens a step (its default)"
        settings += "".join(f", `{name}={value}`" for name, value in chosen.items())
        return {"version": openvino_genai.__version__.split("-")[0], "settings": settings}

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        config = openvino_genai.GenerationConfig()
        config.min_new_tokens = config.max_new_tokens = tokens
        config.ignore_eos, config.do_sample = True, False
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        start = time.perf_counter()
        answers = self.pipeline.generate(inputs, [config] * len(inputs))
        seconds = time.perf_counter() - start
        check_lengths([len(answer.m_generation_ids[0]) for answer in answers], len(prompts), tokens)
        return seconds


if __name__ == "__main__":
    engine = OpenVino()
    serve_engine(engine.load, engine.generate)
