"""vLLM's CPU build under comparison: its own `LLM.generate` on our weights in bf16, in its own environment.

Owns the engine. Imports nothing of this repository but the protocol. The engine lives in this very process: a second
one would wait for work by turning, and take the cores from who is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from bench.peer_protocol import check_lengths, serve_engine


class Vllm:
    """One engine."""

    llm: Any

    def load(self, model: str, threads: int, max_seqs: int, max_len: int) -> dict[str, Any]:
        """threads: as VLLM_CPU_OMP_THREADS_BIND says, which must have been set."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm  # type: ignore[import-not-found]

        self.llm = vllm.LLM(
            model,
            dtype="bfloat16",
            max_model_len=max_len,
            max_num_seqs=max_seqs,
            enable_prefix_caching=False,
            generation_config="vllm",
        )
        bind = os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        settings = f"`LLM.generate`, bf16, {threads} threads bound to {bind}, Intel's OpenMP preloaded"
        return {"version": vllm.__version__, "settings": settings}

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt  # type: ignore[import-not-found]

        sampling = SamplingParams(
            temperature=0, min_tokens=tokens, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        inputs = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        start = time.perf_counter()
        answers = self.llm.generate(inputs, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        check_lengths([len(answer.outputs[0].token_ids) for answer in answers], len(prompts), tokens)
        return seconds


if __name__ == "__main__":
    engine = Vllm()
    serve_engine(engine.load, engine.generate)
