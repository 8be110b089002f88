"""Proposers for tests that know, half know, or do not know what comes, and a controller that always drafts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from engine.core.request import Request
from engine.core.speculation import Draft
from engine.engine import Engine
from engine.spec.base import NO_RUN, DraftWish, Proposer
from engine.spec.controller import SpecController
from engine.spec.speculator import Speculation, Speculator
from engine.spec.turn import Candidate, Outcome, TurnTimes


class Oracle:
    """Proposes what each request will say, from a table; each token is spoilt with a probability."""

    name = "ngram"  # requests may name only what PROPOSERS has
    costly = ""
    free = "ngram"
    run = NO_RUN

    def __init__(
        self, answers: Mapping[str, Sequence[int]], vocab_size: int, wrong: float = 0.0, seed: int = 0
    ) -> None:
        """answers: output token ids by request id."""
        self.answers = answers
        self.vocab_size = vocab_size
        self.wrong = wrong
        self.random = random.Random(seed)
        self.ended: list[str] = []

    def propose(self, wishes: Sequence[DraftWish]) -> list[Draft]:
        drafts = []
        for wish in wishes:
            request = wish.request
            known = self.answers.get(request.request_id, ())
            following = [*known[request.num_output_tokens :][: wish.num_drafts]]
            following += [self.random.randrange(self.vocab_size) for _ in range(wish.num_drafts - len(following))]
            for index in range(len(following)):
                if self.random.random() < self.wrong:
                    following[index] = self.random.randrange(self.vocab_size)
            drafts.append(Draft(tuple(following), (0.5,) * len(following), self.name))
        return drafts

    def end(self, request: Request) -> None:
        self.ended.append(request.request_id)

    def clear(self) -> None:
        pass


class AlwaysAll(SpecController):
    """Takes what it can get, whatever it costs, and learns nothing."""

    def __init__(self) -> None:
        pass

    def plan(self, candidates: Sequence[Candidate], num_other_rows: int) -> list[int]:
        return [candidate.limit for candidate in candidates]

    def hope(self, index: int, count: int) -> float:
        return 0.5 * count

    def trim(self, candidates: Sequence[Candidate], drafts: Sequence[Draft], num_other_rows: int) -> list[int]:
        pairs = zip(candidates, drafts, strict=True)
        return [min(candidate.limit, len(draft.token_ids)) for candidate, draft in pairs]

    def observe(self, outcomes: Sequence[Outcome], turn: TurnTimes) -> None:
        pass

    def idle(self, turn: TurnTimes) -> None:
        pass

    def end(self, request_id: str) -> None:
        pass

    def gain(self) -> float | None:
        return None

    def proposers(self) -> list[tuple[str, str, str]]:
        return []


def speculate(engine: Engine, proposer: Proposer, controller: SpecController, *, k: int, rule: str = "match") -> None:
    """Has an engine without requests draft by this proposer from now on."""
    speculation = Speculation({proposer.name: proposer}, proposer.name, controller)
    engine.speculate_by(Speculator(engine.scheduler, speculation, max_drafts=k, rule=rule))
