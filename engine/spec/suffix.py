"""Suffix decoding: what followed the last tokens wherever they stood, in the request's own text and in past answers.

After SuffixDecoding (arXiv 2411.04975): the longest match decides, its places vote with counts, and the draft grows
with the match, since each token is as sure as the match that leads to it. In place of a tree with counts it asks an
index of contexts for the most recent MAX_PLACES places and counts there: on recorded answers that gives as many tokens
a step as counts over all places, within 0.4 %; memory is known beforehand, and the oldest answer can be dropped.
Never imports torch.
Invariant: an answer is kept only once its request has ended, without its prompt, and for its own cache salt.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request
from engine.core.speculation import Draft
from engine.spec.base import NO_RUN, DraftWish
from engine.spec.contexts import MAX_MATCH, ContextIndex
from engine.spec.continuation import NOTHING, Continuation, continuation, followers
from engine.spec.own_text import OwnTexts
from engine.spec.past_outputs import PastOutputs

LENGTHS = (1, 3, 8)  # of contexts: with what lies between compared, as good as twelve of them
PAST_LENGTHS = (2, 4, 8)  # a match of one token is worth something in the own text alone
MAX_PLACES = 16  # that vote: the most recent ones
LEAST_CHANCE = 0.05  # that all of a draft is accepted: no longer ones are proposed
GOOD_SHARE = 0.8  # of the wish, expected from the own text: then past answers are not asked
PAST_TOKENS = 131072  # of past answers, some 400 of them: 34 MB


class SuffixProposer:
    """The best of the own text and of past answers, by expected accepted tokens."""

    name = free = "suffix"
    costly = ""
    run = NO_RUN

    def __init__(self, max_tokens: int = PAST_TOKENS) -> None:
        """max_tokens: of past answers that are kept, the latest; 0: none. ValueError when negative."""
        self._own = OwnTexts(LENGTHS)
        self._past = PastOutputs(PAST_LENGTHS, max_tokens)

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        """See `Proposer`."""
        return [found.draft(self.name) for found in self.continuations(wishes)]

    def continuations(self, wishes: Sequence[DraftWish]) -> list[Continuation]:
        """What `propose` makes drafts of, with the number of tokens that it expects to be accepted."""
        self._own.advance([wish.request for wish in wishes])
        return [self._best(wish) for wish in wishes]

    def end(self, request: Request) -> None:
        """See `Proposer`. The answer, as far as it came, is kept for requests of its salt, if it may be."""
        if self._own.end(request) and request.speculation.learn:
            self._past.add(request.cache_salt, request.token_ids[request.num_prompt_tokens :])

    def clear(self) -> None:
        """See `Proposer`."""
        self._past.clear()

    def _best(self, wish: DraftWish) -> Continuation:
        request = wish.request
        last = request.token_ids[-MAX_MATCH:]
        own = _look_up(self._own.of(request), last, wish.num_drafts)
        past = self._past.of(request.cache_salt)
        if past is None or own.expected >= GOOD_SHARE * wish.num_drafts:
            return own
        other = _look_up(past, last, wish.num_drafts, other_text=True)
        return other if other.expected > own.expected else own


def _look_up(index: ContextIndex, last: list[int], count: int, *, other_text: bool = False) -> Continuation:
    match = index.find(last, MAX_PLACES)
    if match is None:
        return NOTHING
    runs = followers(index.tokens, match.places, count)
    return continuation(runs, match.length, least=LEAST_CHANCE, other_text=other_text)
