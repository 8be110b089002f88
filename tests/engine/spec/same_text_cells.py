"""Which cells the proof has, in which order: first few that cover every pair of choices, then all of them.

Owns the choices (`FACTORS`; proposers come from the registry, so that a new one is proved before its author writes a
test), the covering and the whole matrix. Invariant: the order is the same in every run, so that a run can go on where
another one stopped.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from engine.spec import PROPOSERS
from tests.engine.spec.same_text import ADVERSARIES, SERVINGS, Cell
from tests.engine.spec.same_text_wishes import KINDS

DRAFTS = (1, 2, 3, 4, 5, 6, 7, 8, 15)
SEEDS = (1, 2, 3)
FREE = (*ADVERSARIES, "ngram", "suffix")  # every engine that speculates has these
TRIES = 40  # candidates looked at for each cell of a covering
FACTORS: dict[str, tuple[Any, ...]] = {
    "proposer": (*PROPOSERS, *ADVERSARIES),
    "k": DRAFTS,
    "kind": tuple(KINDS),
    "serving": SERVINGS,
    "dtype": ("float32", "bfloat16"),
    "temperature": (0.0, 1.0),
    "seed": SEEDS,
    "batch": (1, 16),
    "adaptive": (False, False, False, True),  # a controller that finds drafts too dear proves nothing
}
Choice = dict[str, Any]


def possible(choice: Mapping[str, Any]) -> bool:
    """Whether a choice, perhaps of some factors only, makes sense: one request alone is never preempted."""
    return not (choice.get("serving") == "tight" and choice.get("batch") == 1)


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[Choice]:
    """Choices of all factors in which every possible pair of values occurs together: greedily, few of them."""
    source = random.Random(seed)
    missing = {
        (one, left, other, right)
        for one, other in itertools.combinations(factors, 2)
        for left, right in itertools.product(factors[one], factors[other])
        if possible({one: left, other: right})
    }
    found: list[Choice] = []
    for wanted in sorted(missing, key=repr):
        if wanted not in missing:
            continue
        one, left, other, right = wanted
        best: Choice = {}
        gain = -1
        for _ in range(TRIES):
            choice = {name: source.choice(values) for name, values in factors.items()} | {one: left, other: right}
            covered = len(_pairs(choice) & missing) if possible(choice) else -1
            if covered > gain:
                best, gain = choice, covered
        missing -= _pairs(best)
        found.append(best)
    return found


def _pairs(choice: Choice) -> set[tuple[str, Any, str, Any]]:
    return {(one, choice[one], other, choice[other]) for one, other in itertools.combinations(choice, 2)}


@cache
def covering(model: str) -> tuple[Cell, ...]:
    """A pairwise covering for one model."""
    return tuple(sorted((Cell(model=model, **choice) for choice in pairwise(FACTORS)), key=_by_engine))


def matrix(models: Sequence[str]) -> Iterator[Cell]:
    """Every cell in the order of the proof: pairs first, then every proposer with every k, temperature, dtype, batch
    and seed, kinds and servings taking turns so that each proposer meets all of their pairs."""
    done: set[Cell] = set()
    for model in models:
        for cell in covering(model):
            done.add(cell)
            yield cell
    turns = list(itertools.product(KINDS, SERVINGS))
    for seed, model in itertools.product(SEEDS, models):
        for proposer, dtype in itertools.product(FACTORS["proposer"], FACTORS["dtype"]):
            rest = list(itertools.product(DRAFTS, FACTORS["temperature"], FACTORS["batch"]))
            random.Random(f"{seed} {model} {proposer} {dtype}").shuffle(turns)
            cells = []
            for index, (k, temperature, batch) in enumerate(rest):
                kind, serving = turns[index % len(turns)]
                serving = "roomy" if not possible({"serving": serving, "batch": batch}) else serving
                adaptive = index % 4 == 3
                cell = Cell(model, dtype, proposer, k, temperature, seed, batch, kind, serving, adaptive)
                if cell not in done:
                    cells.append(cell)
            yield from sorted(cells, key=_by_engine)


def _by_engine(cell: Cell) -> tuple[str, ...]:
    """Cells that one loaded engine serves stand together."""
    serving = cell.serving if cell.serving in ("tight", "chunks") else "roomy"
    return cell.dtype, serving, "" if cell.proposer in FREE else cell.proposer
