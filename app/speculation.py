"""How the loaded engines speculate: what the operator sets, what they say of it, and what is worth an event.

Owns the checks of a change, the view of an engine's speculation, and the watch over its proposers. Knows nothing of
HTTP. Invariant: a proposer that goes off is told once, with the engine's reason, and once when it is on again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from app.engine_verdict import NOT_READY, brief
from app.errors import ApiError
from app.events import EventLog
from app.loaded_engine import Engine
from engine.checkpoint.drafting import BY_DRAFTER, OTHER_WEIGHTS
from engine.config import EffectiveSetting
from engine.core.speculation import ProposerStats
from engine.protocol import EngineStats, SetSpeculation

EVENT = "speculation"
LEAST_JUDGED = 100  # drafted tokens that the target looked at, before a share of them is told


def set_speculation(engine: Engine, change: SetSpeculation) -> None:
    """Tell the engine. Raises ApiError for a change that it cannot make."""
    if engine.supervisor.state != "ready":
        raise ApiError(409, f"{engine.model_id} is {engine.supervisor.state}", remedy="Wait until it is loaded")
    if not engine.ready.proposers:
        raise ApiError(
            409,
            f"{engine.model_id} was loaded without speculation",
            remedy="Load it again with the option speculation",
            code="no_speculation",
        )
    most = engine.supervisor.options.num_speculative_tokens
    if change.num_speculative_tokens is not None and change.num_speculative_tokens > most:
        raise ApiError(
            400,
            f"num_speculative_tokens={change.num_speculative_tokens}: {engine.model_id} was loaded for at most {most}",
            param="num_speculative_tokens",
            remedy="Ask for less, or load it again with a larger num_speculative_tokens",
        )
    engine.supervisor.client.send(change)
    settings = engine.speculation
    if change.enabled is not None:
        settings.enabled = change.enabled
    if change.num_speculative_tokens is not None:
        settings.num_speculative_tokens = change.num_speculative_tokens
    if change.rule is not None:
        settings.rule = change.rule


def speculation_view(engine: Engine, failed: bool = False) -> dict[str, Any] | None:
    """What an engine drafts with and how it fares; None before it is ready. Counts are since the load. failed: whether
    a self-test of its pair has."""
    if engine.supervisor.ready is None:
        return None
    ready, stats = engine.supervisor.ready, engine.supervisor.stats
    known = {name: ProposerStats(name) for name in ready.proposers}
    known |= {each.name: each for each in stats.proposers} if stats is not None else {}
    return {
        "enabled": bool(ready.proposers) and engine.speculation.enabled,
        "proposer": ready.speculation,
        "num_speculative_tokens": engine.speculation.num_speculative_tokens,
        "rule": engine.speculation.rule,
        "gain": stats.speculation_gain if stats is not None else None,
        "model_hash": ready.model_hash,
        "drafter_hash": ready.drafter_hash,
        "verdict": brief(engine, failed),
        "proposers": [proposer_view(each) for each in known.values()],
    }


def proposer_view(stats: ProposerStats) -> dict[str, Any]:
    """A proposer's counters with the two figures that are derived from them."""
    drafts, drafted, accepted = stats.drafts_total, stats.drafted_total, stats.accepted_total
    return {
        "name": stats.name,
        "state": stats.state,
        "reason": stats.reason,
        "drafts": drafts,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
        "accepted_per_position": list(stats.accepted_per_position_total),
        "drafted_per_position": list(stats.drafted_per_position_total),
        "verified_per_position": list(stats.judged_per_position_total),
        "draft_s": stats.draft_s_total,
        "verify_s": stats.verify_s_total,
    }


def with_acceptance(settings: Iterable[EffectiveSetting], proposers: Sequence[ProposerStats]) -> list[EffectiveSetting]:
    """Effective settings; the one that warns of a drafter for other weights also says how many of its tokens were
    accepted since the load, as soon as that means something."""
    drafter = next((each for each in proposers if each.name in BY_DRAFTER), None)
    if drafter is None or sum(drafter.judged_per_position_total) < LEAST_JUDGED:
        return list(settings)
    share = drafter.accepted_total / drafter.drafted_total
    measured = f"of {drafter.drafted_total:,} tokens that it has drafted since the load {share:.1%} were accepted"
    return [
        replace(each, reason=f"{each.reason}; {measured}") if each.effective == OTHER_WEIGHTS else each
        for each in settings
    ]


class ProposerWatch:
    """Notes when a proposer of an engine goes off and when it is on again; "probing" changes nothing yet."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._off: set[tuple[str, str]] = set()  # (engine run, proposer)

    def observe(self, model_id: str, engine_run_id: str, stats: EngineStats) -> None:
        """Compare with what was told before."""
        for each in stats.proposers:
            key = (engine_run_id, each.name)
            data = {"model_id": model_id, **proposer_view(each)}
            if each.state == "off" and key not in self._off:
                self._off.add(key)
                message = f"{model_id} drafts no longer with {each.name}: {each.reason or 'no reason given'}"
                self._events.add(EVENT, "warning", message, engine_run_id=engine_run_id, data=data)
            elif each.state == "on" and key in self._off:
                self._off.remove(key)
                message = f"{model_id} drafts with {each.name} again"
                self._events.add(EVENT, "info", message, engine_run_id=engine_run_id, data=data)

    def forget(self, engine_run_id: str) -> None:
        """The run has ended."""
        self._off = {key for key in self._off if key[0] != engine_run_id}


def header_state(engines: list[Engine], failed: Callable[[Engine], bool]) -> dict[str, Any]:
    """One word on speculation for the header: of the first engine that is ready.

    failed: whether a self-test has found that an engine's pair does not keep its promise. gain: measured, with its 95 %
    interval low to high; None where there is not enough data. reason: why it is not "pays", "even" or "costs".
    """
    engine = next((each for each in engines if each.supervisor.state == "ready"), None)
    if engine is None:
        nothing = {"proposer": None, "gain": None, "low": None, "high": None}
        return {"state": "none", "reason": NOT_READY, "why": {"code": "not_ready", "text": NOT_READY}, **nothing}
    return brief(engine, failed(engine))
