"""Whether the drafter that costs time may draft: the 30 % rule, for the whole engine, and the reason for people.

Knows counts of drafted and accepted tokens, and turns. States: "on"; "off" once too few of the last drafts were
accepted; "probing" when it is looked at again, a few tokens a look, ever more rarely while it does not get better.
Invariant: it leaves "on" and "probing" only on evidence, and "off" only by time or a new request.
"""

from __future__ import annotations

LEAST_ACCEPTANCE, ENOUGH_ACCEPTANCE = 0.30, 0.34  # where it is switched off, and where a look finds it good again
WINDOW = 400.0  # drafted tokens that the acceptance is of
EVIDENCE = 120.0  # of them at least, before it is judged
GOOD_WILL = 15.0  # drafted tokens that the window is thought to begin with
LOOK, SHORT_LOOK = 24, 10  # drafted tokens of a look; fewer where none of them was accepted
FIRST_WAIT, LAST_WAIT, NEW_REQUEST_WAIT = 128, 1024, 32  # turns until it is looked at again
WAIT_OF_PROBING = 2048  # turns after which a look that never gets its tokens ends


class DrafterSwitch:
    """The switch of one engine."""

    __slots__ = ("_accepted", "_drafted", "_due", "_reason", "_since", "_wait", "state")

    def __init__(self) -> None:
        self.state = "on"
        self._accepted = self._drafted = 0.0
        self._wait = FIRST_WAIT
        self._due = self._since = 0
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why it is not on; empty if it is."""
        return self._reason

    @property
    def acceptance(self) -> float:
        """Of the window, with a little good will before there is evidence."""
        return (self._accepted + GOOD_WILL * ENOUGH_ACCEPTANCE) / (self._drafted + GOOD_WILL)

    def allows(self, turn: int) -> bool:
        """Whether it may draft, be it for a look."""
        if self.state == "off" and turn >= self._due:
            self.state, self._since = "probing", turn
            self._accepted = self._drafted = 0.0
        return self.state != "off"

    def arrived(self, turn: int) -> None:
        """A request is new: its text may be another kind of text."""
        if self.state == "off":
            self._due = min(self._due, turn + NEW_REQUEST_WAIT)

    def observe(self, turn: int, drafted: int, accepted: int) -> None:
        """A draft of it was verified."""
        if self.state == "on":
            keep = (1.0 - 1.0 / WINDOW) ** drafted
            self._drafted = self._drafted * keep + drafted
            self._accepted = self._accepted * keep + accepted
            if self._drafted >= EVIDENCE and self._accepted < LEAST_ACCEPTANCE * self._drafted:
                self._wait = FIRST_WAIT
                self._off(turn)
            return
        self._drafted += drafted
        self._accepted += accepted
        if self.state != "probing":
            return
        if self._drafted >= LOOK and self._accepted >= ENOUGH_ACCEPTANCE * self._drafted:
            self.state, self._reason = "on", ""
            return
        hopeless = self._drafted >= SHORT_LOOK and not self._accepted
        if self._drafted >= LOOK or hopeless or turn - self._since > WAIT_OF_PROBING:
            self._wait = min(2 * self._wait, LAST_WAIT)
            self._off(turn)

    def _off(self, turn: int) -> None:
        """Switches off until the wait is over."""
        self.state, self._due = "off", turn + self._wait
        share = 100.0 * self._accepted / self._drafted
        self._reason = (
            f"acceptance {share:.0f} % over the last {self._drafted:.0f} drafted tokens, below "
            f"{100 * LEAST_ACCEPTANCE:.0f} %: it costs more than it gives; looked at again in {self._wait} steps, "
            "or sooner with a new request"
        )
