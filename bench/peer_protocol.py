"""How an engine under comparison is driven: JSON lines on stdin and stdout, one answer to each question.

Owns the worker's side of the pipe. Imports the standard library alone, since it runs in every peer's own environment.
A question is {"do": NAME, ...arguments}; an answer {"found": VALUE} or {"error": TEXT}; the end of stdin ends the
worker. Invariant: nothing but answers reaches the pipe, whatever a library prints.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], int], float]  # prompts, tokens of each answer -> seconds
ATTEMPTS = 3  # at a difference of two times, which a busy machine can turn negative


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answers until stdin ends. What is printed to stdout meanwhile, by C libraries as well, goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"found": handlers[question.pop("do")](**question)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()


def by_difference(generate: Generate, prompts: Sequence[Sequence[int]], short: int, long: int) -> dict[str, float]:
    """Decoding alone: the time of answers of `long` tokens less that of answers of `short` tokens to the same prompts.

    The prompts' time, and whatever else a call costs once, is in both and cancels out. {"tokens", "seconds"}.
    RuntimeError when the longer answers are not seen to take longer.
    """
    for _ in range(ATTEMPTS):
        less = generate(prompts, short)
        seconds = generate(prompts, long) - less
        if seconds > 0:
            return {"tokens": len(prompts) * (long - short), "seconds": seconds}
    raise RuntimeError(f"{ATTEMPTS} times answers of {long} tokens took no longer than those of {short}")


def prefill(generate: Generate, prompt: Sequence[int]) -> dict[str, float]:
    """A prompt up to its first token. {"tokens", "seconds"}."""
    return {"tokens": len(prompt), "seconds": generate([prompt], 1)}


def check_lengths(lengths: Sequence[int], count: int, tokens: int) -> None:
    """RuntimeError unless there are `count` answers of `tokens` tokens: what was cut short is no measurement."""
    if list(lengths) != [tokens] * count:
        raise RuntimeError(f"{count} answers of {tokens} tokens were asked for; they have {sorted(set(lengths))}")


def serve_engine(load: Callable[..., dict[str, Any]], generate: Generate) -> None:
    """Serves an engine that can do no more than generate. load(model, threads, max_seqs, max_len) describes it."""
    serve(
        {
            "load": load,
            "decode": lambda prompts, short, long: by_difference(generate, prompts, short, long),
            "prefill": lambda prompt: prefill(generate, prompt),
        }
    )
