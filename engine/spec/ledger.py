"""What speculation has given and taken: the balance that the promise "never more than 3 % slower" rests on.

Knows costs and counts of tokens; of requests no more than a name. Two accounts in the cost unit of `engine.spec.costs`:
the balance of everything verified lately (what its accepted drafts were worth in plain steps, less what drafting and
the larger steps took), and the allowance of probes, a fixed share of the time that passes.
Invariant: while the balance lies more than `MOST_LOSS` of the time below 0, only probes are verified; a probe that the
allowance does not cover is not made. So losses stay below MOST_LOSS + PROBES of the time, whatever estimates say, and
what a drafter read at once, a prompt, which is owed and paid in instalments.
"""

from __future__ import annotations

MOST_LOSS, RECOVERED = 0.012, 0.006  # of the time that the balance remembers
GRACE = 150.0  # plain steps that the time starts with: what may be spent on learning
MEMORY = 500.0  # turns that the balance remembers
INSTALMENTS = 32.0  # turns over which what is owed is paid, about
GAIN_MEMORY, GAIN_TURNS = 200.0, 32  # turns that the gain is of, and how many it takes at least
RATE_MEMORY, RATE_PRIOR = 50.0, 10.0
PROBES = 0.008  # share of the time
FIRST_WAIT, LAST_WAIT = 2, 128  # turns between probes; doubled after one that failed
MOST_SAVED = 1.5  # plain steps' worth of probes that may be saved up


class Ledger:
    """Accounts of one engine."""

    __slots__ = (
        "_balance",
        "_debt",
        "_elapsed",
        "_measured",
        "_plain",
        "_spent",
        "_turns",
        "_worth",
        "allowance",
        "cautious",
    )

    def __init__(self) -> None:
        self._balance = self._elapsed = self._debt = 0.0
        self._worth = self._spent = 0.0  # of the rate: plain value of tokens, modelled time
        self._plain = self._measured = 0.0  # of the gain: plain value of tokens, measured time
        self._turns = 0
        self.allowance = 0.0
        self.cautious = False

    @property
    def rate(self) -> float:
        """Tokens a unit of time of late, as a multiple of plain decoding; at least 1."""
        return max(1.0, (self._worth + RATE_PRIOR) / (self._spent + RATE_PRIOR))

    @property
    def gain(self) -> float | None:
        """Measured tokens per second over those of plain decoding; None before enough was seen."""
        return self._plain / self._measured if self._turns >= GAIN_TURNS else None

    def pay_probe(self, cost: float, plain: float) -> bool:
        """Whether the allowance covers a probe; takes its cost from it."""
        if cost > self.allowance * plain:
            return False
        self.allowance -= cost / plain
        return True

    def refund(self, worth: float) -> None:
        """A probe gave tokens worth so many plain steps."""
        self.allowance = min(self.allowance + worth, MOST_SAVED)

    def owe(self, steps: float) -> None:
        """Something took so many plain steps that later turns shall pay for. Below 0: it gave more than it took, and
        nothing is owed."""
        self._debt += max(steps, 0.0)

    def _pay(self, turns: int) -> float:
        """What these turns pay of the debt, in plain steps."""
        paid = self._debt * (1.0 - (1.0 - 1.0 / INSTALMENTS) ** turns)
        self._debt -= paid
        return paid

    def turn(self, plain: float, worth: float, spent: float, measured: float) -> None:
        """A decode turn is over.

        plain: cost of a plain step for its requests. worth: its tokens over those of a plain step. spent: on the step
        and the drafter. measured: the same with the drafts that are looked for in any case.
        """
        took = spent / plain + self._pay(1)
        self.allowance = min(self.allowance + PROBES * took, MOST_SAVED)
        keep = 1.0 - 1.0 / MEMORY
        self._balance = min(self._balance * keep + worth - took, 0.1 * MEMORY)
        self._elapsed = self._elapsed * keep + took
        loss = -self._balance / (self._elapsed + GRACE)
        self.cautious = loss > (RECOVERED if self.cautious else MOST_LOSS)
        keep = 1.0 - 1.0 / RATE_MEMORY
        self._worth, self._spent = self._worth * keep + worth, self._spent * keep + took
        keep = 1.0 - 1.0 / GAIN_MEMORY
        self._plain = self._plain * keep + worth
        self._measured = self._measured * keep + measured / plain
        self._turns += 1

    def plain_turns(self, count: int, measured: float) -> None:
        """So many decode turns are over in which no draft was made or verified: as many calls of `turn` in one.

        measured: what they took, in plain steps each.
        """
        self.allowance = min(self.allowance + PROBES * count, MOST_SAVED)
        keep = (1.0 - 1.0 / MEMORY) ** count
        self._balance = self._balance * keep - self._pay(count)
        self._elapsed = self._elapsed * keep + count
        loss = -self._balance / (self._elapsed + GRACE)
        self.cautious = loss > (RECOVERED if self.cautious else MOST_LOSS)
        keep = (1.0 - 1.0 / RATE_MEMORY) ** count
        self._worth, self._spent = self._worth * keep + count, self._spent * keep + count
        keep = (1.0 - 1.0 / GAIN_MEMORY) ** count
        self._plain = self._plain * keep + count
        self._measured = self._measured * keep + count * measured
        self._turns += count


class Probe:
    """When something is tried again that was not found worth it. owner: whose draft is the probe of this turn."""

    __slots__ = ("due", "owner", "wait")

    def __init__(self) -> None:
        self.due = 0
        self.wait = FIRST_WAIT
        self.owner = ""

    def made(self, turn: int, owner: str) -> None:
        """A probe is under way."""
        self.owner = owner
        self.due = turn + self.wait

    def learned(self, turn: int, accepted: int) -> None:
        """It was verified."""
        self.wait = FIRST_WAIT if accepted else min(2 * self.wait, LAST_WAIT)
        self.due = turn + (1 if accepted else self.wait)

    def again(self, turn: int) -> None:
        """Something is new: soon, and nearly as if nothing had failed."""
        self.wait = max(FIRST_WAIT, self.wait // 4)
        self.due = min(self.due, turn + FIRST_WAIT)
