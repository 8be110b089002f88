"""Greedy tokens by vLLM, in its own environment: `PEER/bin/python bench/vllm_greedy.py FOLDER < prompts.json`.

Reads a JSON list of prompts (lists of token ids) and the number of tokens from stdin, writes "TOKENS " and a JSON list
of answers. Imports nothing of ours: this runs where only vLLM is installed.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Answers and prints."""
    from vllm import LLM, SamplingParams

    asked = json.load(sys.stdin)
    model = LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=512, enforce_eager=True, skip_tokenizer_init=True)
    sampling = SamplingParams(temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False)
    answers = model.generate([{"prompt_token_ids": prompt} for prompt in asked["prompts"]], sampling)
    print("TOKENS", json.dumps([list(answer.outputs[0].token_ids) for answer in answers]))


if __name__ == "__main__":
    main()
