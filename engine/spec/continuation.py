"""From the places where the last tokens stood before to a draft: what followed there, by vote, and how sure that is.

Owns the estimate. A token's confidence is (share of the votes)^2 * (1 - miss(length) / votes): a single place with a
match of `length` tokens is wrong in about 1.15 / (length + 0.5)^1.1 of all cases, places that agree are wrong less
often, and where they do not, the next token depends on what the context does not show. In other texts a match proves
less: it counts as one token shorter, and agreement there is no evidence. Fitted to greedy answers of the default model
(chat, summaries, code, JSON, copying); the controller calibrates further. Knows no requests; never imports torch.
Invariant: every confidence lies in (0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import MAX_DRAFTS
from engine.core.speculation import NO_DRAFT, Draft
from engine.spec.contexts import MAX_MATCH, TEXT_END

MISS = tuple(min(0.75, 1.15 / (length + 0.5) ** 1.1) for length in range(MAX_MATCH + MAX_DRAFTS + 1))


@dataclass(frozen=True, slots=True)
class Continuation:
    """What may follow. expected: how many of its tokens are accepted, by its own confidence."""

    token_ids: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()
    expected: float = 0.0

    def draft(self, proposer: str) -> Draft:
        """It as a draft of that proposer."""
        return Draft(self.token_ids, self.confidence, proposer) if self.token_ids else NO_DRAFT


NOTHING = Continuation()


def followers(tokens: list[int], places: list[int], count: int) -> dict[tuple[int, ...], int]:
    """The `count` tokens from each place on, and how many places have them; in the order of `places`.

    A run that reaches the end of `tokens` goes on with itself: the tokens at the place are what is predicted there.
    """
    found: dict[tuple[int, ...], int] = {}
    end = len(tokens)
    for place in places:
        run = tuple(tokens[place : place + count])
        known = end - place
        if known < count:
            run = (run * (count // known + 1))[:count]
        found[run] = found.get(run, 0) + 1
    return found


def continuation(
    runs: dict[tuple[int, ...], int], length: int, *, least: float, other_text: bool = False
) -> Continuation:
    """The most frequent next token of `runs`, then that of those which agree, and so on; of equals the earlier one.

    length: of the match before them, at least 1, in another text at least 2. least: it stops before the chance that all
    of it is accepted falls below that.
    """
    length -= other_text
    token_ids: list[int] = []
    confidence: list[float] = []
    chance, expected = 1.0, 0.0
    alive = list(runs.items())
    for index in range(len(alive[0][0])):
        if len(alive) == 1:
            run, votes = alive[0]
            token, total = run[index], votes
        else:
            tally: dict[int, int] = {}
            for run, count in alive:
                if run[index] != TEXT_END:
                    tally[run[index]] = tally.get(run[index], 0) + count
            token = max(tally, key=tally.__getitem__, default=TEXT_END)
            votes, total = tally.get(token, 0), sum(tally.values())
            alive = [(run, count) for run, count in alive if run[index] == token]
        if token == TEXT_END:
            break
        sure = (votes / total) ** 2 * (1.0 - MISS[length + index] / (1 if other_text else total))
        chance *= sure
        if chance < least:
            break
        token_ids.append(token)
        confidence.append(sure)
        expected += chance
    return Continuation(tuple(token_ids), tuple(confidence), expected)
