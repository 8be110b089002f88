"""The choice between suffix decoding and a drafter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.core.request import Request
from engine.core.speculation import NO_DRAFT, Draft
from engine.spec.base import NO_RUN, DrafterRun, DraftWish
from engine.spec.hybrid import HybridProposer
from engine.spec.suffix import SuffixProposer
from tests.engine.spec.texts import draft_of, request_of

ROOT = Path(__file__).resolve().parents[3]
STRONG = [*range(50, 58), 200, 201, 202, 203, 30, *range(50, 58)]
WEAK = [7, 200, 30, 7]
NOTHING = [1, 2, 3]


class Drafter:
    """Says 900, 901, ... to whoever asks, or nothing; notes who asked for how much."""

    name = "eagle"
    costly = "eagle"
    free = ""
    run = DrafterRun(2, 0.5)

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent
        self.calls: list[list[tuple[str, int, int]]] = []
        self.ended: list[str] = []
        self.cleared = 0

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        self.calls.append([(wish.request.request_id, wish.num_drafts, wish.num_costly) for wish in wishes])
        sizes = [0 if self.silent else wish.num_drafts for wish in wishes]
        return [Draft(tuple(range(900, 900 + size)), (0.6,) * size, self.name) if size else NO_DRAFT for size in sizes]

    def end(self, request: Request) -> None:
        self.ended.append(request.request_id)

    def clear(self) -> None:
        self.cleared += 1


def wish(tokens: list[int], name: str, drafts: int, costly: int) -> DraftWish:
    return DraftWish(request_of(list(tokens), name=name), drafts, costly, 0.45 * costly)


def test_the_drafter_is_asked_once_and_only_where_the_match_is_weak_and_it_pays() -> None:
    drafter = Drafter()
    proposer = HybridProposer(SuffixProposer(), drafter)
    drafts = proposer.propose(
        [
            wish(STRONG, "strong", 4, 4),
            wish(WEAK, "weak", 4, 3),
            wish(WEAK, "weak, drafter too dear", 4, 0),
            wish(NOTHING, "nothing", 2, 8),
            wish(NOTHING, "nothing, drafter too dear", 4, 0),
            wish(STRONG, "strong, drafter too dear", 4, 0),
        ]
    )
    assert drafter.calls == [[("weak", 3, 3), ("nothing", 2, 8)]]
    assert [draft.proposer for draft in drafts] == ["suffix", "eagle", "suffix", "eagle", "", "suffix"]
    assert [draft.token_ids[:1] for draft in drafts] == [(200,), (900,), (200,), (900,), (), (200,)]
    assert [len(draft.token_ids) for draft in drafts][:2] == [4, 3]
    assert len(drafts[3].token_ids) == 2


def test_a_silent_drafter_leaves_the_weak_draft() -> None:
    proposer = HybridProposer(SuffixProposer(), Drafter(silent=True))
    drafts = proposer.propose([wish(WEAK, "weak", 4, 4), wish(NOTHING, "nothing", 4, 4)])
    assert [draft.proposer for draft in drafts] == ["suffix", ""]


def test_the_drafter_is_left_alone_where_nobody_needs_it() -> None:
    drafter = Drafter()
    proposer = HybridProposer(SuffixProposer(), drafter)
    assert proposer.propose([]) == []
    proposer.propose([wish(STRONG, "a", 8, 8), wish(NOTHING, "b", 8, 0)])
    assert drafter.calls == []
    assert proposer.run == NO_RUN
    proposer.propose([wish(NOTHING, "a", 8, 8)])
    assert proposer.run == drafter.run  # the time is the drafter's


def test_a_draft_is_strong_that_expects_as_much_as_the_drafter_is_expected_to_give() -> None:
    (own,) = SuffixProposer().continuations([wish(STRONG, "r", 8, 8)])
    assert own.expected > 1.0
    for hope, maker in ((own.expected * 0.99, "suffix"), (own.expected * 1.01, "eagle"), (0.0, "suffix")):
        proposer = HybridProposer(SuffixProposer(), Drafter())
        (draft,) = proposer.propose([replace(wish(STRONG, "r", 8, 8), costly_hope=hope)])
        assert draft.proposer == maker, hope
    (draft,) = HybridProposer(SuffixProposer(), Drafter()).propose([replace(wish(NOTHING, "r", 8, 8), costly_hope=0.0)])
    assert draft.proposer == "eagle"  # nothing is no draft to prefer


def test_both_hear_of_the_end_and_of_clear() -> None:
    suffix, drafter = SuffixProposer(), Drafter()
    proposer = HybridProposer(suffix, drafter)
    request = request_of([1, 2], list(range(100, 110)))
    draft_of(proposer, request)
    proposer.end(request)
    assert drafter.ended == ["r"]
    assert len(suffix._own) == 0
    assert len(suffix._past) == 1
    proposer.clear()
    assert len(suffix._past) == 0
    assert drafter.cleared == 1
    assert proposer.costly == "eagle"


def test_none_of_the_model_free_proposers_needs_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import engine.spec.hybrid, engine.spec.ngram"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
