"""Requests whose drafts come to nothing are asked more and more rarely, and at once again when one is accepted."""

from __future__ import annotations

from engine.spec.patience import LONGEST_WAIT, MISSES, Patience


def asked(patience: Patience, first: int, last: int, accepted: int = 0) -> list[int]:
    """The turns in which a request is asked; each time so many of its drafts are accepted."""
    turns = []
    for turn in range(first, last):
        if patience.is_due("a", turn):
            turns.append(turn)
            patience.learned("a", turn, accepted)
    return turns


def test_misses_are_free_at_first_and_then_asked_about_ever_more_rarely() -> None:
    patience = Patience()
    turns = asked(patience, 0, 400)
    assert turns[:MISSES] == list(range(MISSES))
    waits = [later - earlier - 1 for earlier, later in zip(turns[MISSES - 1 :], turns[MISSES:], strict=False)]
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert set(waits[5:]) == {LONGEST_WAIT}


def test_one_accepted_draft_is_enough_to_be_asked_in_every_turn() -> None:
    patience = Patience()
    asked(patience, 0, 400)
    start = next(turn for turn in range(400, 500) if patience.is_due("a", turn))
    patience.learned("a", start, 2)
    assert asked(patience, start + 1, start + 1 + MISSES) == list(range(start + 1, start + 1 + MISSES))


def test_who_is_right_is_asked_in_every_turn_and_who_is_new_or_gone_too() -> None:
    patience = Patience()
    assert asked(patience, 0, 100, accepted=1) == list(range(100))
    asked(patience, 100, 200)
    assert patience.is_due("b", 200)
    patience.end("a")
    patience.end("a")
    assert asked(patience, 200, 203) == [200, 201, 202]
