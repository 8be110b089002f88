"""How many drafts are made and verified in a turn: as many as give the most tokens a second, 0 included.

Knows chances, costs and row counts; nothing of tokens, tensors or who drafts how. A turn has two decisions: `plan`,
before drafting, says how many drafts are worth a costly drafter's passes; `trim`, when drafts and their confidences are
known, how many of them are worth a verification. Both take the rows whose expected tokens are worth more time than they
cost, where a token is worth the time that it takes at the rate of late: that maximises tokens over time (Dinkelbach,
1967). All drafts of the batch share one step, so they are ranked by their chance to be accepted, and every number of
them is tried: costs that rise in stairs are no obstacle.
Invariant: 0 drafts cost nothing beyond plain decoding, and whatever is lost is bounded by `engine.spec.ledger`, beyond
what a drafter reads at once: a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.speculation import MAX_VERIFY_ROWS, Draft
from engine.spec.acceptance import Acceptance
from engine.spec.catch_up import SLACK, CatchUp
from engine.spec.costs import StepCosts
from engine.spec.drafter_switch import LEAST_ACCEPTANCE, DrafterSwitch
from engine.spec.ledger import Ledger, Probe
from engine.spec.turn import Candidate, Outcome, TurnTimes

LEAST_CHANCE = 0.02  # a draft that is accepted less often is not looked at
MARGIN = 0.005  # share of a step's tokens that drafts must give beyond their cost
START_MARGIN = 0.03  # the same for a drafter that did not run in the turn before: it does not flap
NEAR_THE_RULE = 0.36  # acceptance of the drafter below which only drafts are verified that keep it above the rule
IDLE_TURNS = 8  # that are counted together


@dataclass(slots=True)
class _Known:
    """What was said of a running request, and what it was given in this turn."""

    greedy: bool
    adaptive: bool


Gains = list[tuple[float, int]]  # (chance that it is accepted, whose), one for each draft
_Hope = tuple[float, int, float, int]  # (chance that it is verified and accepted, whose, that it is verified, depth)


class SpecController:
    """The controller of one engine."""

    def __init__(self, max_drafts: int, costs: StepCosts, costly: str = "") -> None:
        """max_drafts: of one request. costly: the proposer that takes time on the device, or empty."""
        self.costs = costs
        self.acceptance = Acceptance(max_drafts)
        self.ledger = Ledger()
        self.switch = DrafterSwitch()
        self._catch_up = CatchUp()
        self._costly = costly
        self._seen = {costly} if costly else set()
        self._max_drafts = max_drafts
        self._requests: dict[str, _Known] = {}
        self._turn = 0
        self._drafting = False  # the drafter ran in the turn before, and not for a probe
        self._passes = (0, 0)  # of the drafter in this turn, and for how many requests
        self._others = 0  # requests that decode beside the candidates
        self._asked = 0  # candidates of this turn
        self._priced: tuple[int, float, float] | None = None
        self._forced = False  # somebody in this turn takes the limit whatever it costs
        self._idle_turns, self._idle_draft_s, self._idle_step_s = 0, 0.0, 0.0
        self._hopes: list[list[float]] = []  # of each candidate of this turn: the chances of the drafter's drafts
        self._draft_probe = Probe()
        self._verify_probe = Probe()

    def plan(self, candidates: Sequence[Candidate], num_other_rows: int) -> list[int]:
        """How many drafts of each candidate a costly drafter may make; to be called once a turn, before `trim`.

        num_other_rows: rows of the step that belong to none of the candidates.
        """
        self._turn += 1
        self._priced = None
        self._asked = len(candidates)
        self._others = min(self._others, num_other_rows)
        self._forced = False
        self._draft_probe.owner = ""
        wishes = [0] * len(candidates)
        gains: list[_Hope] = []
        hopes = self._hopes = [list[float]() for _ in candidates]
        for index, candidate in enumerate(candidates):
            known = self._requests.get(candidate.request_id)
            if known is None:
                self._meet(candidate)
            if not candidate.adaptive:
                self._forced = True
                wishes[index] = candidate.limit if candidate.costly else 0
            if candidate.costly and candidate.limit > 0:
                survival = share = 1.0
                expected = self.acceptance.expected(
                    candidate.request_id, candidate.costly, candidate.limit, candidate.greedy
                )
                own: list[_Hope] = []
                for depth, (chance, kept) in enumerate(expected, 1):
                    survival *= chance
                    share *= kept
                    if survival * share < LEAST_CHANCE:
                        break
                    hopes[index].append(survival)
                    own.append((survival * share, index, share, depth))
                if candidate.adaptive and self._can_catch_up(candidates, candidate, own):
                    gains += own
        if not self._costly:
            return wishes
        if self.switch.allows(self._turn) and self.switch.state == "on" and not self.ledger.cautious:
            self._drafting = self._deepen(candidates, num_other_rows, gains, wishes)
        else:
            self._drafting = False
        if not self._drafting and not self._forced and self.switch.state != "off":
            self._probe_drafter(candidates, num_other_rows, wishes)
        self._catch_up.ask([candidate for candidate, wish in zip(candidates, wishes, strict=True) if wish])
        return wishes

    def hope(self, index: int, count: int) -> float:
        """How many of `count` drafts of the costly drafter are expected to be accepted; index: of the candidate that
        the last `plan` had."""
        return sum(self._hopes[index][:count])

    def trim(self, candidates: Sequence[Candidate], drafts: Sequence[Draft], num_other_rows: int) -> list[int]:
        """How many tokens of each candidate's draft are verified. Same candidates as `plan` had, in the same order."""
        counts = [0] * len(candidates)
        rows, passes, drafting = len(candidates) + num_other_rows, 0, 0
        gains: Gains = []
        for index, (candidate, draft) in enumerate(zip(candidates, drafts, strict=True)):
            size = len(draft.token_ids)
            if not size:
                continue
            costly = bool(self._costly) and draft.proposer == self._costly
            if costly:
                passes, drafting = max(passes, size), drafting + 1
            size = min(size, candidate.limit)
            if not candidate.adaptive or (self._draft_probe.owner == candidate.request_id and costly):
                counts[index] = size = min(size, max(MAX_VERIFY_ROWS - rows, 0))
                rows += size
                continue
            survival, least = 1.0, self._least_costly() if costly else LEAST_CHANCE
            for chance in self.acceptance.chances(
                candidate.request_id, draft.proposer, draft.confidence, size, candidate.greedy
            ):
                survival *= chance
                if survival < least:
                    break
                gains.append((survival, index))
        self._passes = passes, drafting
        if gains and not self.ledger.cautious:
            self._take(candidates, rows, gains, counts)
        if passes or gains:
            self._note_cuts(candidates, drafts, counts)
        self._probe_drafts(candidates, drafts, num_other_rows, counts)
        return counts

    def observe(self, outcomes: Sequence[Outcome], turn: TurnTimes) -> None:
        """A turn is over: what became of its drafts (those that were not empty), and what it took."""
        accepted = 0
        for outcome in outcomes:
            accepted += outcome.num_accepted
            self._learn(outcome)
        drafting = self._drafting_cost(turn)
        self._draft_probe.owner = self._verify_probe.owner = ""
        if not turn.is_decode_only:  # what a step with prompts would have taken without drafts is not known
            count = max(self._asked, 1)
            owed = drafting / self.costs.line(count, count)[count] - accepted / count
            self.ledger.owe(0.0 if self._forced else owed)
            return
        count = turn.num_requests
        self._others = max(count - self._asked, 0)
        costs = self.costs
        if not self._forced:
            line, context = costs.line(count, turn.num_rows), costs.context_cost(turn.context * count)
            plain, modelled, speed = line[count] + context, line[turn.num_rows] + context, costs.speed
            step = min(max(turn.step_s / speed, 0.75 * modelled), 1.25 * modelled)  # not a neighbour's doing
            looking = min(turn.draft_s / speed, plain)  # for free drafts: not the ledger's business
            measured = step + (drafting if turn.drafter_rows else looking)
            self.ledger.turn(plain, 1.0 + accepted / count, step + drafting, measured)
        costs.observe_step(turn.num_rows, count, turn.context * count, turn.step_s)
        self._asked, self._forced = 0, False  # the next turn may be one without candidates, and so without a plan

    def idle(self, turn: TurnTimes) -> None:
        """A turn is over in which nobody was asked for a draft: `trim` and `observe` were not called."""
        self._idle_turns += 1
        self._idle_draft_s += turn.draft_s
        self._idle_step_s += turn.step_s
        if self._idle_turns >= IDLE_TURNS:
            self.ledger.plain_turns(self._idle_turns, 1.0 + self._idle_draft_s / self._idle_step_s)
            self._idle_turns, self._idle_draft_s, self._idle_step_s = 0, 0.0, 0.0

    def end(self, request_id: str) -> None:
        """A request has ended. Unknown ones are ignored."""
        self._requests.pop(request_id, None)
        self.acceptance.end(request_id)
        self._catch_up.end(request_id)

    def gain(self) -> float | None:
        """Measured tokens per second of late over what plain decoding would have given; None before enough was seen."""
        return self.ledger.gain

    def proposers(self) -> list[tuple[str, str, str]]:
        """(name, "on" | "probing" | "off", why it is not on) of every proposer that was met."""
        return [
            (name, self.switch.state, self.switch.reason) if name == self._costly else (name, "on", "")
            for name in sorted(self._seen)
        ]

    def _meet(self, candidate: Candidate) -> None:
        """A request is new: what was found hopeless is looked at again soon."""
        self._requests[candidate.request_id] = _Known(candidate.greedy, candidate.adaptive)
        if candidate.costly:
            self.switch.arrived(self._turn)
        self._draft_probe.again(self._turn)
        self._verify_probe.again(self._turn)

    def _can_catch_up(self, candidates: Sequence[Candidate], candidate: Candidate, own: Sequence[_Hope]) -> bool:
        """Whether what the drafter would have to read for this request can come back by its drafts."""
        if not self._catch_up.cost(candidate):
            return True
        count, plain, _ = self._price(candidates)
        return self._catch_up.is_worth_it(candidate, sum([gain for gain, _, _, _ in own]), plain / count)

    def _drafting_cost(self, turn: TurnTimes) -> float:
        """What the drafter cost in a turn, and what is learned of it. What it had to read beyond its usual rows is owed
        to the ledger, which is paid back over the turns to come, as drafts pay for it."""
        passes, drafting = self._passes
        self._passes = 0, 0
        self._catch_up.ran(turn.drafter_rows)
        if not turn.drafter_rows:
            return 0.0
        took = turn.draft_s / self.costs.speed
        modelled = self.costs.draft_line(max(drafting, 1), self._max_drafts)[passes]
        extra = turn.drafter_rows - max(drafting, 1) * (self._max_drafts + 1)
        if extra > SLACK:
            reading = max(took - modelled, 0.0)
            self._catch_up.measured(extra, reading)
            self.ledger.owe(0.0 if self._forced else reading / self.costs.line(1, 1)[1])
            return modelled
        if passes:
            self.costs.observe_draft(passes, drafting, turn.draft_s)
        return min(max(took, 0.75 * modelled), 1.25 * modelled) if passes else took

    def _least_costly(self) -> float:
        """The least chance of a draft of the costly drafter that is verified: it has to stay above the 30 % rule."""
        return LEAST_ACCEPTANCE if self.switch.acceptance < NEAR_THE_RULE else LEAST_CHANCE

    def _price(self, candidates: Sequence[Candidate]) -> tuple[int, float, float]:
        """(requests that decode, cost of a plain step for them, tokens that a unit of cost is worth) in this turn."""
        price = self._priced
        if price is None:
            count = len(candidates) + self._others
            plain = self.costs.line(count, count)[count]
            plain += self.costs.context_cost(sum([candidate.context for candidate in candidates]))
            price = self._priced = count, plain, self.ledger.rate * count / plain
        return price

    def _deepen(
        self, candidates: Sequence[Candidate], num_other_rows: int, gains: list[_Hope], wishes: list[int]
    ) -> bool:
        """Fills in how many drafts the drafter is asked for; False if none are worth it.

        A pass costs the same for one request as for nearly all: first the number of passes is decided, as if everybody
        took part whose drafts are worth their rows, then who takes part in how many of them.
        """
        rows = len(candidates) + num_other_rows + sum(wishes)
        room = MAX_VERIFY_ROWS - rows
        if not gains or room <= 0:
            return False
        count, _, rate = self._price(candidates)
        most = min(len(gains), room)
        line = self.costs.line(count, rows + most + 1)
        drafts, base = self.costs.draft_line(len(candidates), self._max_drafts), line[rows]
        least = 0.7 * rate * (line[rows + most] - base) / most
        tokens, shares = [0.0] * len(drafts), [0.0] * len(drafts)
        for gain, _, share, depth in gains:
            if gain >= least:
                tokens[depth] += gain
                shares[depth] += share
        best, passes, hoped, verified = 0.0, 0, 0.0, float(rows)
        for depth in range(1, len(drafts)):
            hoped += tokens[depth]
            verified = min(verified + shares[depth], rows + most)
            whole = int(verified)
            step = line[whole] + (line[whole + 1] - line[whole]) * (verified - whole)
            worth = hoped - rate * (step - base + drafts[depth])
            if worth > best:
                best, passes = worth, depth
        margin = (MARGIN if self._drafting else START_MARGIN) * count
        return passes > 0 and self._share(
            gains, passes, margin + rate * (drafts[passes] - base), rate, line, rows, wishes
        )

    def _share(
        self,
        gains: list[_Hope],
        passes: int,
        least: float,
        rate: float,
        line: Sequence[float],
        rows: int,
        wishes: list[int],
    ) -> bool:
        """Who takes part in how many of the passes. least: what drafts must be worth beyond the cost of the step."""
        chosen_gains = [hope for hope in gains if hope[3] <= passes]
        chosen_gains.sort(reverse=True)
        del chosen_gains[MAX_VERIFY_ROWS - rows :]
        best, chosen, tokens, verified = least, 0, 0.0, float(rows)
        for number, (gain, _, share, _) in enumerate(chosen_gains, 1):
            tokens += gain
            verified += share
            whole = int(verified)
            worth = tokens - rate * (line[whole] + (line[whole + 1] - line[whole]) * (verified - whole))
            if worth > best:
                best, chosen = worth, number
        for hope in chosen_gains[:chosen]:
            wishes[hope[1]] += 1
        return chosen > 0

    def _take(self, candidates: Sequence[Candidate], rows: int, gains: Gains, counts: list[int]) -> None:
        """Fills in how many drafts are verified. rows: of the step without them."""
        gains.sort(reverse=True)
        del gains[max(MAX_VERIFY_ROWS - rows, 0) :]
        count, _, rate = self._price(candidates)
        line = self.costs.line(count, rows + len(gains))
        base, tokens, best, chosen = line[rows], 0.0, MARGIN * count, 0
        for number, (survival, _) in enumerate(gains, 1):
            tokens += survival
            worth = tokens - rate * (line[rows + number] - base)
            if worth > best:
                best, chosen = worth, number
        for _, index in gains[:chosen]:
            counts[index] += 1

    def _note_cuts(self, candidates: Sequence[Candidate], drafts: Sequence[Draft], counts: Sequence[int]) -> None:
        """What the drafter makes in vain is not worth its passes."""
        for candidate, draft, count in zip(candidates, drafts, counts, strict=True):
            if draft.token_ids and draft.proposer == self._costly and candidate.adaptive:
                if self._draft_probe.owner != candidate.request_id:
                    self.acceptance.cut(self._costly, len(draft.token_ids), count, candidate.greedy)

    def _probe_drafter(self, candidates: Sequence[Candidate], num_other_rows: int, wishes: list[int]) -> None:
        """Has the drafter make one draft for one request, to see whether it would be accepted by now."""
        probe = self._draft_probe
        if self.switch.state != "probing" and self._turn < probe.due:
            return
        able = [index for index, one in enumerate(candidates) if one.adaptive and one.costly and one.limit > 0]
        if not able:
            return
        index = able[self._turn % len(able)]
        count, plain, _ = self._price(candidates)
        rows = len(candidates) + num_other_rows
        line = self.costs.line(count, rows + 1)
        cost = line[rows + 1] - line[rows] + self.costs.draft_line(1, self._max_drafts)[1]
        cost += self._catch_up.cost(candidates[index])
        if self.ledger.pay_probe(cost, plain):
            wishes[index] = 1
            probe.made(self._turn, candidates[index].request_id)
            self.acceptance.reconsider(candidates[index].costly, candidates[index].greedy)

    def _probe_drafts(
        self, candidates: Sequence[Candidate], drafts: Sequence[Draft], num_other_rows: int, counts: list[int]
    ) -> None:
        """Verifies one token of a draft that was not found worth it."""
        probe = self._verify_probe
        rows = len(candidates) + num_other_rows + sum(counts)
        if self._turn < probe.due or self._forced or rows >= MAX_VERIFY_ROWS:
            return
        able = [
            index
            for index, (candidate, draft) in enumerate(zip(candidates, drafts, strict=True))
            if draft.token_ids and not counts[index] and candidate.limit > 0
        ]
        if not able:
            return
        index = able[self._turn % len(able)]
        count, plain, _ = self._price(candidates)
        line = self.costs.line(count, rows + 1)
        if self.ledger.pay_probe(line[rows + 1] - line[rows], plain):
            counts[index] = 1
            probe.made(self._turn, candidates[index].request_id)

    def _learn(self, outcome: Outcome) -> None:
        """Evidence of one verified draft."""
        self._seen.add(outcome.proposer)
        known = self._requests.get(outcome.request_id)
        drafted, accepted = outcome.num_drafted, outcome.num_accepted
        if known is None or not drafted:
            return
        self.acceptance.observe(
            outcome.request_id, outcome.proposer, outcome.confidence, drafted, accepted, known.greedy
        )
        if known.adaptive and outcome.proposer == self._costly:
            self.switch.observe(self._turn, drafted, accepted)
        for probe in (self._draft_probe, self._verify_probe):
            if probe.owner == outcome.request_id and (probe is self._verify_probe or outcome.proposer == self._costly):
                probe.learned(self._turn, accepted)
                self.ledger.refund(accepted / max(len(self._requests), 1))
