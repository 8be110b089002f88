"""How likely a draft is accepted: estimates from what was verified, by proposer, confidence, position and request.

Knows names, confidences and counts; nothing of tokens or costs. A draft at position i is only judged where all before
it were accepted (censoring), so every chance here is conditional on that. Estimates form a chain in which evidence is
added as odds: a prior guess from the confidence, the proposer as a whole, its confidence bucket, the position, the
request. Each link is drawn to the one before it until it has seen enough. Greedy and sampled requests are separate.
Invariant: chances lie strictly between 0 and 1; what was not observed lately counts for less, never for more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

EDGES = tuple(1.0 / (1.0 + math.exp(-0.75 * step)) for step in range(-4, 6))  # of confidence buckets, in equal odds
UNKNOWN = len(EDGES) + 1  # the bucket of drafts without a confidence
BUCKET_MEMORY, POSITION_MEMORY, REQUEST_MEMORY = 300.0, 200.0, 20.0  # judged drafts that count
BUCKET_PRIOR, OVERALL_PRIOR, POSITION_PRIOR, REQUEST_PRIOR = 6.0, 6.0, 12.0, 5.0  # weights of the link before
SAMPLED = 0.7  # a prior chance is multiplied by this where tokens are sampled
FIRST_GUESS = 0.5  # of any draft that nothing is known of
SURPRISE, SURPRISE_MEMORY = (
    4.0,
    20.0,
)  # standard deviations after which the past is mostly dropped; drafts they are over
KEPT_AFTER_SURPRISE = 0.2
MOST_ODDS, LEAST_ODDS, MOST_FACTOR = 60.0, 0.004, 50.0
REFRESH = 8  # verified drafts between two looks at all estimates but the request's own
LEAST_KEPT = 0.2  # share of drafts that are verified: no estimate goes below


class Evidence:
    """Accepted drafts against expected ones; as a factor on odds, shrunk to 1."""

    __slots__ = ("accepted", "expected", "factor", "judged", "keep", "prior")

    def __init__(self, memory: float, prior: float) -> None:
        """memory: judged drafts that count. prior: judged drafts as expected that it begins with."""
        self.keep = 1.0 - 1.0 / memory
        self.prior = prior
        self.accepted = self.expected = self.judged = 0.0
        self.factor = 1.0

    def add(self, accepted: int, expected: float) -> None:
        """One judged draft. expected: its chance by the links before. `factor` follows with `update`."""
        keep = self.keep
        self.accepted = self.accepted * keep + accepted
        self.expected = self.expected * keep + expected
        self.judged = self.judged * keep + 1.0

    def update(self) -> None:
        """Brings `factor` up to the evidence."""
        hits, hoped, count = self.accepted, self.expected, self.judged
        share = min(max(hoped / count, 0.02), 0.98) if count else 0.5
        up, down = self.prior * share, self.prior * (1.0 - share)
        factor = (hits + up) / (hoped + up) * (count - hoped + down) / (count - hits + down)
        self.factor = min(factor, MOST_FACTOR)

    def forget(self) -> None:
        """Most of it, after a surprise."""
        self.accepted *= KEPT_AFTER_SURPRISE
        self.expected *= KEPT_AFTER_SURPRISE
        self.judged *= KEPT_AFTER_SURPRISE


class Source:
    """What is known of one proposer's drafts for greedy or for sampled requests."""

    def __init__(self, most: int, *, greedy: bool) -> None:
        """most: drafts of one request."""
        scale = 1.0 if greedy else SAMPLED
        middles = [_middle(bucket) for bucket in range(UNKNOWN)]
        guesses = [(0.1 + 0.7 * middle) * scale for middle in middles] + [FIRST_GUESS * scale]
        self.guesses = guesses
        self.guessed_odds = [guess / (1.0 - guess) for guess in guesses]
        self.overall = Evidence(BUCKET_MEMORY, OVERALL_PRIOR)
        self.bucket_accepted = [0.0] * (UNKNOWN + 1)
        self.bucket_judged = [0.0] * (UNKNOWN + 1)
        self.bucket_odds = list(self.guessed_odds)
        self.positions = [Evidence(POSITION_MEMORY, POSITION_PRIOR) for _ in range(most)]
        self.blind = [Evidence(POSITION_MEMORY, REQUEST_PRIOR) for _ in range(most)]  # whatever the confidence
        self.blind_guess = FIRST_GUESS * scale
        self.position_factors = [1.0] * most
        self.kept = [1.0] * most
        self.drift = self.drift_variance = 0.0
        self.drafts = 0

    def judge(self, buckets: Sequence[int], accepted: int, own: Evidence) -> None:
        """A draft was judged: `accepted` of its tokens, and where there is a bucket more, one was not.

        buckets: of the judged tokens' confidence.
        """
        keep, odds, factors = 1.0 - 1.0 / BUCKET_MEMORY, self.bucket_odds, self.position_factors
        surprised = False
        for position, bucket in enumerate(buckets):
            hit = 1 if position < accepted else 0
            bare = odds[bucket]
            likely = bare * factors[position]
            chance = likely / (1.0 + likely)
            likely *= math.sqrt(own.factor)  # half of a surprise may be the request's own
            surprised |= self._surprises(hit, likely / (1.0 + likely))
            self.overall.add(hit, self.guesses[bucket])
            own.add(hit, chance)
            self.positions[position].add(hit, bare / (1.0 + bare))
            self.blind[position].add(hit, self.blind_guess)
            self.bucket_accepted[bucket] = self.bucket_accepted[bucket] * keep + hit
            self.bucket_judged[bucket] = self.bucket_judged[bucket] * keep + 1.0
        own.update()
        self.drafts += 1
        if surprised:
            self._forget()
        elif self.drafts % REFRESH == 0 or self.drafts < REFRESH:
            self.refresh()

    def cut(self, offered: int, verified: int) -> None:
        """Of `offered` drafts `verified` were: what is drafted in vain has no value."""
        kept = self.kept
        for position in range(min(offered, verified + 1, len(kept))):
            kept[position] += 0.05 * ((1.0 if position < verified else LEAST_KEPT) - kept[position])

    def refresh(self) -> None:
        """Brings all links up to the evidence."""
        self.overall.update()
        factor = self.overall.factor
        for bucket, guessed in enumerate(self.guessed_odds):
            odds = guessed * factor
            prior = BUCKET_PRIOR * odds / (1.0 + odds)
            hits, judged = self.bucket_accepted[bucket], self.bucket_judged[bucket]
            found = (hits + prior) / (judged - hits + BUCKET_PRIOR - prior)
            self.bucket_odds[bucket] = min(max(found, LEAST_ODDS), MOST_ODDS)
        for position, evidence in enumerate(self.positions):
            if evidence.judged:
                evidence.update()
                self.blind[position].update()
                self.position_factors[position] = evidence.factor

    def _surprises(self, hit: int, chance: float) -> bool:
        """Whether the last judged drafts are not like the past."""
        keep = 1.0 - 1.0 / SURPRISE_MEMORY
        self.drift = drift = self.drift * keep + hit - chance
        self.drift_variance = self.drift_variance * keep * keep + chance * (1.0 - chance) + 0.01
        return drift * drift > SURPRISE * SURPRISE * self.drift_variance

    def _forget(self) -> None:
        """Drops most of the past."""
        self.drift = self.drift_variance = 0.0
        for evidence in (self.overall, *self.positions, *self.blind):
            evidence.forget()
        self.bucket_accepted = [count * KEPT_AFTER_SURPRISE for count in self.bucket_accepted]
        self.bucket_judged = [count * KEPT_AFTER_SURPRISE for count in self.bucket_judged]
        self.refresh()


class Acceptance:
    """The estimates of one engine."""

    def __init__(self, max_drafts: int) -> None:
        self.max_drafts = max_drafts
        self._sources: dict[tuple[str, bool], Source] = {}
        self._own: dict[tuple[str, str], Evidence] = {}  # of each request and proposer
        self._names: set[str] = set()

    def chances(
        self, request_id: str, proposer: str, confidence: Sequence[float], count: int, greedy: bool
    ) -> list[float]:
        """The chance of each of `count` drafts, given that those before it are accepted. confidence: may be shorter."""
        source = self._source(proposer, greedy)
        own = self._own.get((request_id, proposer))
        factor = 1.0 if own is None else own.factor
        odds, factors = source.bucket_odds, source.position_factors
        found = []
        known = len(confidence)
        for position in range(count):
            bucket = bisect_right(EDGES, confidence[position]) if position < known else UNKNOWN
            likely = odds[bucket] * factors[position] * factor
            found.append(likely / (1.0 + likely))
        return found

    def expected(self, request_id: str, proposer: str, count: int, greedy: bool) -> list[tuple[float, float]]:
        """The same before anything is drafted: (chance, share of such drafts that is found worth a verification)."""
        source = self._source(proposer, greedy)
        own = self._own.get((request_id, proposer))
        odds = source.blind_guess / (1.0 - source.blind_guess) * (1.0 if own is None else own.factor)
        found = []
        for evidence, kept in zip(source.blind[:count], source.kept, strict=False):
            likely = odds * evidence.factor
            found.append((likely / (1.0 + likely), kept))
        return found

    def observe(
        self, request_id: str, proposer: str, confidence: Sequence[float], drafted: int, accepted: int, greedy: bool
    ) -> None:
        """A draft of `drafted` tokens was verified; the first `accepted` were accepted."""
        source = self._source(proposer, greedy)
        own = self._own.get((request_id, proposer))
        if own is None:
            own = self._own[request_id, proposer] = Evidence(REQUEST_MEMORY, REQUEST_PRIOR)
        judged = min(accepted + 1, drafted, self.max_drafts)
        buckets = [bisect_right(EDGES, chance) for chance in confidence[:judged]]
        if len(buckets) < judged:
            buckets.extend([UNKNOWN] * (judged - len(buckets)))
        source.judge(buckets, accepted, own)
        self._names.add(proposer)

    def cut(self, proposer: str, offered: int, verified: int, greedy: bool) -> None:
        """How many of a draft's tokens were found worth a verification."""
        self._source(proposer, greedy).cut(offered, verified)

    def reconsider(self, proposer: str, greedy: bool) -> None:
        """Nothing is drafted, so nothing shows whether it would be cut still: that is believed less and less."""
        source = self._source(proposer, greedy)
        source.kept = [share + 0.1 * (1.0 - share) for share in source.kept]

    def end(self, request_id: str) -> None:
        """A request has ended. Unknown ones are ignored."""
        for proposer in self._names:
            self._own.pop((request_id, proposer), None)

    def _source(self, proposer: str, greedy: bool) -> Source:
        source = self._sources.get((proposer, greedy))
        if source is None:
            source = self._sources[proposer, greedy] = Source(self.max_drafts, greedy=greedy)
        return source


def _middle(bucket: int) -> float:
    """A confidence typical of a bucket."""
    low = EDGES[bucket - 1] if bucket else 0.0
    high = EDGES[bucket] if bucket < len(EDGES) else 1.0
    return (low + high) / 2
