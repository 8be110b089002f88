"""Do rows have the same bits however they are computed? On random weights, with recorded steps and without.

Rows of one request in one step, as drafts are verified, against one step each; a request alone against 16. Then over a
context of several splits of attention's keys: a row alone, whose splits are dealt among programs and merged by a second
kernel, against a chunk and against a batch, where one program takes a row's splits one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.gpu_parts.end_to_end import PROMPT_TOKENS, load
from bench.gpu_parts.random_model import MODELS
from bench.gpu_parts.steps import Script
from bench.gpu_parts.task import RIGHT, WRONG, Row, Task
from engine.runner.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class Sizes:
    """prompt, rows, batch: of the short comparisons. context: tokens before the rows of the long ones. chunk, company:
    rows of a step there, of one request and of as many, both more than attention deals among programs."""

    model: str
    prompt: int
    rows: int
    batch: int
    context: int
    chunk: int
    company: int


REAL = Sizes("1.7B", prompt=100, rows=8, batch=16, context=700, chunk=32, company=24)
DRY = Sizes("tiny", prompt=5, rows=2, batch=2, context=17, chunk=4, company=4)
DRY_SPLITS = {"SPLIT": 16, "MAX_TILE": 16, "PROGRAMS": 8}  # of attention: two lanes for a row of DRY, one for four


def compare(task: Task) -> None:
    """Of the 1.7 B shape in bf16 and in 4 bits; a dry run's is tiny, in fp32."""
    sizes = DRY if task.dry else REAL
    with _watched(DRY_SPLITS if task.dry else {}) as taken:
        for coded in (False, True):
            longest = sizes.context + sizes.chunk + 1
            runner = load(task, MODELS[sizes.model], sizes.company, longest, coded=coded)
            kind = f"{sizes.model}, {'4 bits' if coded else str(runner.dtype).removeprefix('torch.')}"
            if not coded:  # attention is the same for both
                _long(task, kind, runner, sizes, taken)
            _short(task, kind, runner, sizes)


def _short(task: Task, kind: str, runner: ModelRunner, sizes: Sizes) -> None:
    """Rows at once against steps, alone against beside others; steps are recorded from then on."""
    rows, batch = sizes.rows, sizes.batch
    lengths = sizes.prompt, rows, *range(sizes.prompt - batch + 1, sizes.prompt)
    prompt, more, *others = _random_tokens(runner, lengths)
    single = _single_steps(runner, prompt, more)
    _tell(task, f"{kind}: {rows} rows at once against {rows} steps", single, _at_once(runner, prompt, more))
    _tell(task, f"{kind}: batch 1 against {batch}", single, _beside(runner, prompt, more, others))
    runner.prepare()
    if not runner.recorder.faults():
        _tell(task, f"{kind}: recorded steps against plain ones", single, _single_steps(runner, prompt, more))
        _tell(task, f"{kind}: recorded, batch 1 against {batch}", single, _beside(runner, prompt, more, others))


def _long(task: Task, kind: str, runner: ModelRunner, sizes: Sizes, taken: dict[int, int]) -> None:
    """A row alone against many, over keys of several splits. Wrong also where both went the same way.

    taken: see `_watched`; steps are not recorded yet.
    """
    lengths = sizes.context, sizes.chunk, *[sizes.prompt] * (sizes.company - 1)
    prompt, more, *others = _random_tokens(runner, lengths)
    single = _single_steps(runner, prompt, more)
    few = more[: sizes.rows]
    for name, rows, expected, found in (
        ("chunk", sizes.chunk, single[-1:], _chunk(runner, prompt, more)),
        ("batch", sizes.company, single[: len(few)], _beside(runner, prompt, few, others)),
    ):
        alone, dealt = taken[1], taken[rows]
        label = f"{kind}: 1 row against a {name} of {rows}, {sizes.context} keys"
        note = f"attention deals its splits among {alone} programs, and {dealt}"
        _tell(task, label, expected, found, note, both_ways=alone > 1 == dealt)


@contextmanager
def _watched(changed: dict[str, int]) -> Iterator[dict[int, int]]:
    """Among how many programs attention has dealt each row's splits, by the rows of a step, as long as steps are not
    replayed. changed: other constants of attention for the while, so that small models deal theirs in both ways."""
    from kernels.triton_ops import attention  # which wants a GPU, or the interpreter

    module: Any = attention
    before = {name: getattr(module, name) for name in ("lanes_of", *changed)}
    taken: dict[int, int] = {}

    def lanes_of(rows: int, *sizes: int) -> int:
        taken[rows] = before["lanes_of"](rows, *sizes)
        return taken[rows]

    for name, value in ({"lanes_of": lanes_of} | changed).items():
        setattr(module, name, value)
    try:
        yield taken
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _tell(
    task: Task,
    label: str,
    expected: Sequence[Tensor],
    found: Sequence[Tensor],
    note: str = "",
    *,
    both_ways: bool = True,
) -> None:
    equal = all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    apart = max(float((one - other).abs().max()) for one, other in zip(expected, found, strict=True))
    task.add(Row(label, {"error": f"{apart:.1e}"}, RIGHT if equal and both_ways else WRONG, note))


def _random_tokens(runner: ModelRunner, lengths: Sequence[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(runner.config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def _prefill(runner: ModelRunner, script: Script, name: str, prompt: list[int]) -> None:
    """A prompt's steps, each of as many tokens as one may have."""
    for first in range(0, len(prompt), PROMPT_TOKENS):
        runner.logits(script.plan((name, prompt[first : first + PROMPT_TOKENS])))


def _single_steps(runner: ModelRunner, prompt: list[int], more: list[int]) -> list[Tensor]:
    """Logits after each of the tokens `more`, a step each."""
    script = Script(len(prompt) + len(more))
    _prefill(runner, script, "subject", prompt)
    found = [runner.logits(script.plan(("subject", [token])))[0] for token in more]
    runner.forget(script.forget())
    return found


def _chunk(runner: ModelRunner, prompt: list[int], more: list[int]) -> list[Tensor]:
    """Logits after the last of `more`, from one step of all: a step gives the logits of its last row."""
    script = Script(len(prompt) + len(more))
    _prefill(runner, script, "subject", prompt)
    found = runner.logits(script.plan(("subject", more)))[0]
    runner.forget(script.forget())
    return [found]


def _at_once(runner: ModelRunner, prompt: list[int], more: list[int]) -> list[Tensor]:
    """As `_single_steps`, each from a step of all tokens up to it."""
    return [_chunk(runner, prompt, more[:count])[0] for count in range(1, len(more) + 1)]


def _beside(runner: ModelRunner, prompt: list[int], more: list[int], others: list[list[int]]) -> list[Tensor]:
    """The same from steps that other requests of other lengths share; the subject stands in their midst."""
    script, names = Script(len(prompt) + len(more)), [f"other {index}" for index in range(len(others))]
    for name, other in zip(names, others, strict=True):
        _prefill(runner, script, name, other)
    _prefill(runner, script, "subject", prompt)
    middle, found = len(names) // 2, []
    for token in more:
        parts = [(name, [1]) for name in names]
        parts.insert(middle, ("subject", [token]))
        found.append(runner.logits(script.plan(*parts))[middle])
    runner.forget(script.forget())
    return found
