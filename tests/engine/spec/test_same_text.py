"""The same seed gives the same text, with drafts or without: a pairwise covering of the proof's matrix.

Every proposer of the registry and four that a test alone can have; the cells are those of `same_text_cells`, on tiny
random checkpoints in fp32 and bf16, and a few on the default model. The whole matrix is `make proof`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from engine.core.step import ScheduledRequest
from engine.runner import input_batch
from engine.sample.row import SamplingRow
from engine.sample.verifier import Verifier
from engine.spec import PROPOSERS
from tests.engine.spec.same_text import ADVERSARIES, Bench, Cell
from tests.engine.spec.same_text_cells import FACTORS, covering, pairwise, possible
from tests.engine.spec.same_text_drafters import drafters_of
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

CELLS = covering("tiny")
ON_THE_DEFAULT_MODEL = [
    Cell("default", dtype, proposer, k, temperature, 1, batch, kind, "cached" if batch == 16 else "roomy")
    for proposer, (dtype, k, temperature, batch, kind) in zip(
        (*PROPOSERS, *ADVERSARIES),
        (
            ("bfloat16", 8, 0.0, 16, "logprobs"),
            ("bfloat16", 3, 1.0, 16, "everything"),
            ("float32", 5, 0.0, 1, "penalties"),
            ("bfloat16", 4, 1.0, 16, "ends"),
            ("bfloat16", 2, 0.0, 1, "bad words"),
        )
        * 4,
        strict=False,
    )
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, default_model_path: Path) -> Bench:
    folder = tmp_path_factory.mktemp("same_text")
    tiny = tiny_llama_checkpoint(folder / "tiny")
    models: dict[str, tuple[Path, dict[str, Any]]] = {"tiny": (tiny, {}), "default": (default_model_path, {})}
    return Bench(models, drafters_of({name: path for name, (path, _) in models.items()}, folder))


def test_the_covering_has_every_pair_of_choices() -> None:
    choices = pairwise(FACTORS)
    assert len(choices) == len(CELLS) < 160
    assert {choice["proposer"] for choice in choices} == {*PROPOSERS, *ADVERSARIES}
    for one in FACTORS:
        for other in FACTORS:
            pairs = {(choice[one], choice[other]) for choice in choices}
            wanted = {(a, b) for a in FACTORS[one] for b in FACTORS[other] if possible({one: a, other: b})}
            assert pairs >= (wanted if one < other else {(a, a) for a in FACTORS[one]} if one == other else set())


@pytest.mark.parametrize("proposer", FACTORS["proposer"])
@pytest.mark.parametrize("dtype", FACTORS["dtype"])
def test_drafts_change_nothing(bench: Bench, dtype: str, proposer: str) -> None:
    own = [cell for cell in CELLS if (cell.dtype, cell.proposer) == (dtype, proposer)]
    assert own
    drafted = 0
    for cell in own:
        outcome = bench.run(cell)
        assert outcome.differences == [], cell.key
        drafted += outcome.num_drafted
    assert drafted > 0, "nothing was drafted: nothing is proved"


def _drawn_like_the_drafts(
    verifier: Verifier, shares: Sequence[ScheduledRequest], starts: list[int], emitted: list[int]
) -> list[int]:
    for share, start in zip(shares, starts, strict=False):
        emitted[start : start + min(1, share.num_drafts)] = share.draft_token_ids[:1]
    return MATCH(verifier, shares, starts, emitted)


def _as_the_first(field: str) -> Callable[[ScheduledRequest, Sequence[int]], list[SamplingRow]]:
    """Rows that have something of the first of them, as if the drafts were not there."""

    def rows(request: ScheduledRequest, token_ids: Sequence[int]) -> list[SamplingRow]:
        right = ROWS(request, token_ids)
        return [replace(row, **{field: getattr(right[0], field)}) for row in right]

    return rows


MATCH, ROWS = Verifier._match, input_batch._sampling_rows
MISTAKES: dict[str, tuple[str, str, Any]] = {
    "a wrong draft is accepted": ("logprobs", "engine.sample.verifier.Verifier._match", _drawn_like_the_drafts),
    "penalties do not see drafts": (
        "everything",
        "engine.runner.input_batch._sampling_rows",
        _as_the_first("token_ids"),
    ),
    "noise of the first row": ("logprobs", "engine.runner.input_batch._sampling_rows", _as_the_first("position")),
    "mask of the first row": ("grammar", "engine.runner.input_batch._sampling_rows", _as_the_first("allowed")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_engine_is_found(bench: Bench, mistake: str) -> None:
    kind, place, wrong = MISTAKES[mistake]
    cell = Cell("tiny", "float32", "half right", 4, 1.0, 1, 16, kind, "roomy")
    assert bench.run(cell).differences == []
    with mock.patch(place, wrong):
        try:
            differences = bench.run(cell).differences
        except (AssertionError, RuntimeError) as error:  # the grammar refuses what was drawn
            differences = [str(error)]
            bench.engines.drop()
    assert differences


@pytest.mark.parametrize("dtype", FACTORS["dtype"])
def test_a_tight_pool_preempts(bench: Bench, dtype: str) -> None:
    outcome = bench.run(Cell("tiny", dtype, "half right", 4, 1.0, 1, 16, "penalties", "tight"))
    assert outcome.differences == []
    assert outcome.num_preemptions > 0


@pytest.mark.parametrize("cell", ON_THE_DEFAULT_MODEL, ids=lambda cell: f"{cell.proposer} {cell.kind}")
def test_drafts_change_nothing_on_the_default_model(bench: Bench, cell: Cell) -> None:
    assert bench.run(cell).differences == [], cell.key
