"""The engine by itself: `python -m engine MODEL "prompt"` prints how a prompt goes on, without a chat template."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engine.config import ACTIVATION_BITS, DTYPES, KERNEL_BACKENDS, SPECULATIONS, ConfigError, LoadOptions
from engine.core.sampling_params import SamplingError, SamplingParams
from engine.loading import LoadError, load_engine
from engine.vocab import Vocab, VocabError, load_vocab


def main() -> int:
    """Loads MODEL (a folder or a GGUF file), continues the prompt and prints what was done to stderr."""
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kernel-backend", choices=KERNEL_BACKENDS, default="auto")
    parser.add_argument("--activation-bits", choices=ACTIVATION_BITS, default="auto")
    parser.add_argument("--recorded-steps", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--speculation", choices=SPECULATIONS, default="auto")
    arguments = parser.parse_args()
    try:
        sampling = SamplingParams(
            temperature=arguments.temperature, seed=arguments.seed, max_tokens=arguments.max_tokens
        )
        vocab = load_vocab(arguments.model)
        options = LoadOptions(
            dtype=arguments.dtype,
            num_threads=arguments.threads,
            kernel_backend=arguments.kernel_backend,
            activation_bits=arguments.activation_bits,
            recorded_steps=arguments.recorded_steps,
            speculation=arguments.speculation,
        )
        loaded = load_engine(arguments.model, options, lambda stage, done, total, message: None)
    except (SamplingError, VocabError, ConfigError, LoadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"loaded in {loaded.load_s:.1f} s; exactness: {loaded.exactness.level}", file=sys.stderr)
    prompt_ids = vocab.encode(arguments.prompt, add_special_tokens=True)
    refused = loaded.engine.add_request("cli", prompt_ids, sampling)
    if refused is not None:
        print(f"error: {refused.error}", file=sys.stderr)
        return 1
    output: list[int] = []
    while loaded.engine.has_work():
        for row in loaded.engine.step():
            output.extend(row.token_ids)
            _report(row.finish_reason, len(output), loaded.engine.counters.step_s_total)
    print(_text(vocab, output))
    return 0


def _report(finish_reason: str | None, tokens: int, seconds: float) -> None:
    if finish_reason is not None:
        print(f"{tokens} tokens in {seconds:.2f} s ({tokens / seconds:.1f} a second), {finish_reason}", file=sys.stderr)


def _text(vocab: Vocab, ids: list[int]) -> str:
    return vocab.decode(ids)


if __name__ == "__main__":
    raise SystemExit(main())
