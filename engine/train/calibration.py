"""The text that quantisation is calibrated on, and another part of it to measure with.

Owns where the text comes from (the user's file, or the model itself through its own chat template), the cutting into
rows of equal length, and the split. Invariant: no answer or stretch of text that is measured on was calibrated on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint import read_checkpoint
from engine.config import LoadOptions
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.loading import LoadedEngine, load_engine
from engine.train.prompts import TOPICS, Prompter
from engine.train.refusal import Refusal
from engine.vocab import Vocab

SHARE_HELD_OUT = 5  # one part in so many is measured with
TEMPERATURE = 0.8
_ANSWER_TOKENS = 400
_REQUESTS_AT_ONCE = 64
_FEWEST_ROWS = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """calibration and held_out: int64 [R, L] token ids. source: what they are, for the model's card."""

    calibration: Tensor
    held_out: Tensor
    source: str


def rows_of_file(path: Path, vocab: Vocab, rows: int, length: int) -> Rows:
    """Rows of the user's text; its last fifth, or as much as is wanted of it, is held out. Refusal if it is short."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{path}: the calibration text cannot be read ({error}); give a file of UTF-8 text") from error
    found = _cut(vocab.encode(text), length)
    held = max(1, min(len(found) // SHARE_HELD_OUT, rows // SHARE_HELD_OUT))
    if len(found) < _FEWEST_ROWS:
        raise Refusal(
            f"{path}: {len(vocab.encode(text))} tokens of calibration text are too few; give at least "
            f"{_FEWEST_ROWS * length}, better {(rows + held) * length}, or none: the model then writes its own"
        )
    return Rows(found[:-held][:rows], found[-held:], f"the text {path.name}")


def rows_by_model(
    path: Path, vocab: Vocab, rows: int, length: int, seed: int, threads: int, report: Callable[[int, int], None]
) -> Rows:
    """Rows of what the model writes at temperature 0.8; the answers to every fifth topic are held out.

    report(tokens written, tokens wanted) is called as it goes, and may raise.
    """
    held = max(1, rows // SHARE_HELD_OUT)
    options = LoadOptions(
        max_num_seqs=_REQUESTS_AT_ONCE,
        max_model_len=min(_context(length), read_checkpoint(path).config.longest_context),
        num_threads=threads,
    )
    loaded = load_engine(path, options, lambda stage, done, total, message: report(0, 0))
    writer = _Writer(loaded, Prompter(vocab), seed)
    try:
        calibration, held_out = writer.write(rows * length, held * length, report)
    finally:
        del loaded, writer
        gc.collect()
        torch.set_num_threads(threads)  # a loaded engine leaves torch one
    how = "its own chat template" if Prompter(vocab).has_template else "plain openings, for want of a chat template"
    source = f"text that the model wrote itself from {how} at temperature {TEMPERATURE}, seed {seed}"
    return Rows(_cut(calibration, length)[:rows], _cut(held_out, length)[:held], source)


def _context(length: int) -> int:
    return max(length, 2 * _ANSWER_TOKENS)


def _cut(token_ids: list[int], length: int) -> Tensor:
    count = len(token_ids) // length
    return torch.tensor(token_ids[: count * length], dtype=torch.int64).view(count, length)


class _Writer:
    """Draws answers, round after round over all topics, until both parts are full."""

    def __init__(self, loaded: LoadedEngine, prompter: Prompter, seed: int) -> None:
        self._engine: Engine = loaded.engine
        self._prompter, self._seed = prompter, seed
        self._longest = loaded.plan.kv.max_model_len

    def write(self, wanted: int, held_wanted: int, report: Callable[[int, int], None]) -> tuple[list[int], list[int]]:
        """Token ids of conversations, one after another, for calibration and held out."""
        parts: tuple[list[int], list[int]] = ([], [])
        goals = (wanted, held_wanted)
        number = 0
        while True:
            lacking = [len(part) < goal for part, goal in zip(parts, goals, strict=True)]
            if not any(lacking):
                return parts
            done = sum(min(len(part), goal) for part, goal in zip(parts, goals, strict=True))
            progress = partial(_report_from, report, done, sum(goals))
            for held, tokens in self._finish(self._round(number, lacking), progress):
                parts[held].extend(tokens)
            number += 1

    def _round(self, number: int, lacking: list[bool]) -> dict[str, tuple[bool, list[int]]]:
        """Asks every topic whose part is lacking; request id -> whether it is held out, and its prompt."""
        asked = {}
        for index in range(len(TOPICS)):
            held = index % SHARE_HELD_OUT == SHARE_HELD_OUT - 1
            if not lacking[held]:
                continue
            prompt = self._prompter.prompt(index)[: self._longest // 2]
            sampling = SamplingParams(
                temperature=TEMPERATURE, seed=self._seed + number * len(TOPICS) + index, max_tokens=_ANSWER_TOKENS
            )
            request_id = f"{number}-{index}"
            refused = self._engine.add_request(request_id, prompt, sampling)
            if refused is not None:
                raise Refusal(f"the model cannot write its calibration text: {refused.error}; give a text of your own")
            asked[request_id] = held, prompt
        return asked

    def _finish(
        self, asked: dict[str, tuple[bool, list[int]]], report: Callable[[int], None]
    ) -> Iterator[tuple[bool, list[int]]]:
        """Runs the requests; each conversation in the order of asking."""
        written = 0
        answers: dict[str, list[int]] = {request_id: [] for request_id in asked}
        while self._engine.has_work():
            for row in self._engine.step():
                if row.error is not None:
                    raise Refusal(f"the model failed at writing its calibration text: {row.error}")
                answers[row.request_id].extend(row.token_ids)
                written += len(row.token_ids)
            report(written)
        for request_id, (held, prompt) in asked.items():
            yield held, [*prompt, *answers[request_id]]


def _report_from(report: Callable[[int, int], None], done: int, total: int, new: int) -> None:
    report(min(done + new, total), total)
