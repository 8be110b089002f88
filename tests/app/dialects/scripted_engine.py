"""The real engine process with one more logits processor, which makes the model say what `scripted_answers` holds.

Run by the supervisor in place of engine.process, which it then runs: scheduler, model, grammar mask and sampler are the
engine's own. The processor comes before all others, so that a grammar still has the last word, and raises the logit of
the script's next token; where a prompt has no script it changes nothing. Production knows nothing of this module.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine import process
from engine.core.sampling_params import SamplingParams
from engine.sample import processors
from engine.sample.row import SamplingRow
from engine.vocab import Vocab, load_vocab
from tests.app.dialects.scripted_answers import script_for

RAISED = 1000.0  # far above any logit of the tiny model


@cache
def vocab() -> Vocab:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    return load_vocab(parser.parse_known_args()[0].model)


@cache
def script_of(prompt: tuple[int, ...]) -> tuple[str, list[int]]:
    """What a prompt's script is found by, and the tokens it says, an end token last; none where there is no script."""
    script = script_for(vocab().decode(prompt, skip_special_tokens=False))
    if script is None:
        return "", []
    return script.when, [*vocab().encode(script.says, parse_special=False), vocab().eos_token_ids[0]]


def follow_script(scores: Tensor, rows: Mapping[int, SamplingRow]) -> None:
    for index, row in rows.items():
        when, tokens = script_of(tuple(row.token_ids[: row.num_prompt_tokens]))
        place = row.position - row.num_prompt_tokens
        if place < len(tokens):
            scores[index, tokens[place]] += RAISED
            if place == 0:
                print(f"scripted: {when}", flush=True)  # the test reads it in the engine's log


SamplingParams.needs_token_ids = property(lambda _: True)  # type: ignore[method-assign,assignment]
processors.ADJUSTMENTS = (follow_script, *processors.ADJUSTMENTS)  # type: ignore[assignment]

if __name__ == "__main__":
    raise SystemExit(process.main())
