"""Do rows have the same bits however they are computed? On random weights, with recorded steps and without.

Rows of one request in one step, as drafts are verified, against one step each; and a request alone against 16.
"""

from __future__ import annotations

import torch

from bench.gpu_parts.end_to_end import load
from bench.gpu_parts.random_model import MODELS
from bench.gpu_parts.steps import Script
from bench.gpu_parts.task import RIGHT, WRONG, Row, Task
from engine.runner.model_runner import ModelRunner


def compare(task: Task) -> None:
    """Of the 1.7 B shape in bf16 and in 4 bits; a dry run's is tiny, in fp32."""
    name, prompt_tokens, rows, batch = ("tiny", 5, 2, 2) if task.dry else ("1.7B", 100, 8, 16)
    for coded in (False, True):
        runner = load(task, MODELS[name], batch, prompt_tokens + rows + 1, coded=coded)
        generator = torch.Generator().manual_seed(1)
        lengths = prompt_tokens, rows, *range(prompt_tokens - batch + 1, prompt_tokens)
        prompt, more, *others = (
            torch.randint(runner.config.vocab_size, (length,), generator=generator).tolist() for length in lengths
        )
        single = _single_steps(runner, prompt, more)
        cases = {
            f"{rows} rows at once against {rows} steps": _at_once(runner, prompt, more),
            f"batch 1 against {batch}": _beside(runner, prompt, more, others),
        }
        runner.prepare()
        if not runner.recorder.faults():
            cases["recorded steps against plain ones"] = _single_steps(runner, prompt, more)
            cases[f"recorded, batch 1 against {batch}"] = _beside(runner, prompt, more, others)
        for label, found in cases.items():
            equal = all(torch.equal(one, other) for one, other in zip(single, found, strict=True))
            apart = max(float((one - other).abs().max()) for one, other in zip(single, found, strict=True))
            kind = f"{name}, {'4 bits' if coded else str(runner.dtype).removeprefix('torch.')}"
            task.add(Row(f"{kind}: {label}", {"error": f"{apart:.1e}"}, RIGHT if equal else WRONG))


def _single_steps(runner: ModelRunner, prompt: list[int], more: list[int]) -> list[torch.Tensor]:
    """Logits after each of the tokens `more`, a step each."""
    script = Script(len(prompt) + len(more))
    runner.logits(script.plan(("subject", prompt)))
    found = [runner.logits(script.plan(("subject", [token])))[0] for token in more]
    runner.forget(script.forget())
    return found


def _at_once(runner: ModelRunner, prompt: list[int], more: list[int]) -> list[torch.Tensor]:
    """The same, each from a step of all tokens up to it: a step gives the logits of its last row."""
    found = []
    for count in range(1, len(more) + 1):
        script = Script(len(prompt) + len(more))
        runner.logits(script.plan(("subject", prompt)))
        found.append(runner.logits(script.plan(("subject", more[:count])))[0])
        runner.forget(script.forget())
    return found


def _beside(runner: ModelRunner, prompt: list[int], more: list[int], others: list[list[int]]) -> list[torch.Tensor]:
    """The same from steps that other requests of other lengths share; the subject stands in their midst."""
    script, names = Script(len(prompt) + len(more)), [f"other {index}" for index in range(len(others))]
    for name, other in zip(names, others, strict=True):
        runner.logits(script.plan((name, other)))
    runner.logits(script.plan(("subject", prompt)))
    middle, found = len(names) // 2, []
    for token in more:
        parts = [(name, [1]) for name in names]
        parts.insert(middle, ("subject", [token]))
        found.append(runner.logits(script.plan(*parts))[middle])
    runner.forget(script.forget())
    return found
