"""Greedy tokens of vLLM for bench.interchange; runs in vLLM's own environment and imports nothing of this repository.

One JSON object on stdin, {"prompts": {checkpoint: [token ids, ...]}, "tokens": n}; for each checkpoint a line "RESULT "
and JSON with "path" and either "tokens" or "error".
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any


def run(path: str, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(path, dtype="float16", enforce_eager=True, max_model_len=256, skip_tokenizer_init=True, max_num_seqs=4)
    sampling = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, ignore_eos=True)
    rows = llm.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], sampling)
    return {"path": path, "tokens": [list(row.outputs[0].token_ids) for row in rows]}


def main() -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process for all checkpoints
    job = json.load(sys.stdin)
    for path, prompts in job["prompts"].items():
        try:
            found = run(path, prompts, job["tokens"])
        except Exception as error:
            found = {"path": path, "error": f"{type(error).__name__}: {error}"}
        print(f"RESULT {json.dumps(found)}", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
