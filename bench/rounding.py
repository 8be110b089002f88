"""What rounding changes of a model's log probabilities: `python -m bench.rounding`.

Runs one fixed text through the default model in bfloat16, then with codes in the KV cache (every token attends to keys
and values as they come back from it), and with activations of 8 bits, in one pass each. Prints perplexities and
differences as a Markdown table, for comparison also those of the model in float32. A measurement of numbers, not of
time.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.decode import default_model
from engine.config import KV_CACHE_DTYPES, LoadOptions
from engine.loading import EMULATED, load_engine
from engine.vocab import load_vocab
from tests.engine.stepping import prompt_logits

POOL_BYTES = 256 << 20
TEXT = """
The harbour had been quiet since the autumn storms, and the people of the town had grown used to the silence. Every
morning the baker opened his shutters, set out four trays of bread, and watched the empty road that led down to the
water. He had been a sailor once. His hands still knew the ropes, he liked to say, although nobody had asked him about
it for years.

On the first day of December a boat came in with a torn sail and a crew of three. The captain, a tall woman with grey
hair, walked straight up the hill and asked for the engineer. There was no engineer, the baker told her, but there was
a teacher who repaired clocks, and a boy of fifteen who could make anything turn that had stopped turning. She thought
about this for a moment. Then she said that she would take the boy, if his mother agreed, and that the teacher might
come along to read the manual.

It took them six days. The pump had failed because a small valve, no larger than a coin, had been fitted the wrong way
round when the engine was last cleaned. Water had then been pushed back into the fuel line, slowly, a few drops for
each hour at sea, until the filter was full and the motor stopped. The teacher explained it with a drawing on the back
of a bill: if the pressure behind the valve is greater than the pressure in front of it, the valve must close; if it
is the other way round, it opens, and what should flow out flows in. "A heart works like that," said the boy, and the
captain laughed for the first time since she had come ashore.

The costs were modest. New filters were 14 euros each, and they needed two; the valve was 9 euros and 50 cents; the
oil, 25 litres of it, was the largest part of the bill. In total the captain paid 212 euros, which she counted out on
the counter of the bakery in coins of three countries. The mother of the boy was given a barrel of salted fish and,
because she had refused any money, a promise that her son would be taken along in the spring as an apprentice if he
still wanted to go by then.

He did. In April, when the almond trees were in flower, the boat returned with a new sail, and half of the town stood
on the pier to wave. The teacher had brought a book about navigation by the stars. The baker had brought bread. He
gave the loaf to the boy, looked at the ropes, and without a word untied the knot, tied it again the way it ought to
be tied, and stepped back.
"""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.rounding", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="folder or file; else the default model, fetched")
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["int8"], choices=KV_CACHE_DTYPES[1:])
    arguments = parser.parse_args()
    path = arguments.model or default_model()
    token_ids = load_vocab(path).encode(" ".join(TEXT.split()))
    plain = logprobs(path, token_ids, activation_bits="16")
    print(f"{datetime.datetime.now().astimezone():%Y-%m-%d}, {path.name}, {len(token_ids)} tokens\n")
    print(
        "| model | KV cache | activations | perplexity | log-probability apart, mean | at most | KL, mean | same top |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(f"| bfloat16 | bfloat16 | 16 bits | {perplexity(plain, token_ids):.3f} | | | | |")
    for wish in arguments.kv_cache_dtype:
        found = logprobs(path, token_ids, kv_cache_dtype=wish, activation_bits="16")
        compare(f"bfloat16 | {wish} | 16 bits", found, plain, token_ids)
    compare("bfloat16 | bfloat16 | 8 bits", logprobs(path, token_ids, activation_bits="8"), plain, token_ids)
    compare("float32 | float32 | 32 bits", logprobs(path, token_ids, dtype="float32"), plain, token_ids)


def compare(name: str, found: Tensor, plain: Tensor, token_ids: list[int]) -> None:
    """One line of the table: how far `found` is from `plain`, both fp64 [tokens, V]."""
    apart = (found - plain).abs()
    divergence = (plain.exp() * (plain - found)).sum(-1).mean()
    same = (found.argmax(-1) == plain.argmax(-1)).double().mean()
    print(
        f"| {name} | {perplexity(found, token_ids):.3f} | {float(apart.mean()):.4f} | {float(apart.max()):.3f} "
        f"| {float(divergence):.2e} | {100 * float(same):.1f} % |",
        flush=True,
    )


def logprobs(path: Path, token_ids: list[int], **wishes: Any) -> Tensor:
    """fp64 [tokens, V] at every position of the text."""
    rows = -(-len(token_ids) // 16) * 16
    limits = {"max_model_len": 2048, "max_num_seqs": rows, "max_num_batched_tokens": rows}
    options = LoadOptions(speculation="off", kv_cache_memory_bytes=POOL_BYTES, **limits, **wishes)
    loaded = load_engine(path, options, lambda stage, done, total, message: None)
    if options.activation_bits == "8":
        told = [setting for setting in loaded.settings if setting.name == "activation_bits"]
        refused = [setting.reason for setting in told if setting.effective != EMULATED]
        if refused:
            raise SystemExit(f"activations of 8 bits cannot be measured here: {refused[0]}")
    return prompt_logits(loaded.runner, token_ids).double().log_softmax(-1)


def perplexity(logprobs: Tensor, token_ids: list[int]) -> float:
    """Of all tokens but the first."""
    targets = torch.tensor(token_ids[1:]).unsqueeze(1)
    return float(logprobs[:-1].gather(1, targets).mean().neg().exp())


if __name__ == "__main__":
    main()
