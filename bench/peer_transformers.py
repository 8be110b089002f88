"""transformers under comparison: `generate` on our weights in bf16.

Owns the model. Runs in Pizarra's environment, of which transformers is a part, and imports nothing of the repository
but the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from bench.peer_protocol import check_lengths, serve_engine


class Transformers:
    """One model."""

    model: Any

    def load(self, model: str, threads: int, max_seqs: int, max_len: int) -> dict[str, Any]:
        """max_seqs, max_len: it has no cache to reserve."""
        del max_seqs, max_len
        torch.set_num_threads(threads)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self.model = loaded.eval()
        return {"version": transformers.__version__, "settings": f"`generate`, bf16, torch {torch.__version__}"}

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """All prompts in one batch; they are of one length, so that nothing is padded."""
        inputs = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            whole = self.model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - start
        check_lengths([whole.shape[1] - inputs.shape[1]] * len(whole), len(prompts), tokens)
        return seconds


if __name__ == "__main__":
    engine = Transformers()
    serve_engine(engine.load, engine.generate)
