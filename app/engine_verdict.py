"""The verdict on a loaded engine: what was measured, what the operator set, how the self-test ended, in one word.

Owns the order in which these speak, and what a drafter costs in memory. Knows nothing of HTTP or of the arithmetic.
Invariant: a pair that failed its self-test is "failed" whatever it gains, and what is switched off is "off".
"""

from __future__ import annotations

import time
from typing import Any

from app.loaded_engine import Engine
from app.verdict import by_bucket, judged, recent
from app.verdict_advice import advice_on, better_number
from engine.core.speculation import CostBucket, ProposerStats
from engine.protocol import EngineMemory, EngineReady

NOT_READY = "no model is loaded"
FAILED = "the self-test of this model and drafter failed"
NOT_LOADED = "loaded without speculation"
SWITCHED_OFF = "switched off by the operator"
_ADVICE = {"failed": "selftest_failed", "not_loaded": "load_with", "switched_off": "switch_on", "drafter_off": "wait"}


def outer_state(engine: Engine, failed: bool) -> tuple[str, str, str] | None:
    """(state, code, reason for people) where something other than measurements decides; else None."""
    ready = engine.supervisor.ready
    if ready is None or engine.supervisor.state != "ready":
        return "none", "not_ready", NOT_READY
    if failed:
        return "failed", "failed", FAILED
    if not ready.proposers:
        return "off", "not_loaded", NOT_LOADED
    if not engine.speculation.enabled:
        return "off", "switched_off", SWITCHED_OFF
    default = next((each for each in _proposers(engine) if each.name == ready.speculation), None)
    if default is not None and default.state == "off":
        return "off", "drafter_off", default.reason
    return None


def brief(engine: Engine, failed: bool) -> dict[str, Any]:
    """state, gain with its interval, proposer and reason: for the header and the list of engines."""
    ready = engine.supervisor.ready
    told = {"proposer": ready.speculation if ready is not None else None}
    nothing = {"gain": None, "low": None, "high": None}
    outer = outer_state(engine, failed)
    if outer is not None and outer[1] != "failed":
        return {**told, **nothing, "state": outer[0], "reason": outer[2]}
    whole = judged(recent(_buckets(engine)))
    figures = {"gain": whole["speedup"], "low": whole["low"], "high": whole["high"]}
    if outer is not None:
        return {**told, **figures, "state": outer[0], "reason": outer[2]}
    reason = "" if whole["reason"] is None else whole["reason"]["code"]
    return {**told, **figures, "state": whole["state"], "reason": reason}


def engine_verdict(engine: Engine, failed: bool) -> dict[str, Any]:
    """Everything: see `app.speculation_schemas.Verdict`."""
    buckets, ready, costs = _buckets(engine), engine.supervisor.ready, engine.supervisor.costs
    lately = recent(buckets)
    whole, each, memory = judged(lately), by_bucket(buckets), drafter_memory(ready)
    positions = _positions(engine)
    outer = outer_state(engine, failed)
    limit = engine.speculation.num_speculative_tokens
    if outer is None:
        places = [one["verified"] for one in positions], [one["accepted"] for one in positions]
        advice = advice_on(whole, each, memory, better_number(lately, *places, limit, whole["speedup"]))
    else:
        state, code, reason = outer
        whole = whole | {"state": state, "reason": {"code": code, "text": reason}}
        advice = [{"code": _ADVICE[code]}] if code in _ADVICE else []
    return {
        **whole,
        "engine_run_id": engine.supervisor.run_id,
        "model_id": engine.model_id,
        "proposer": ready.speculation if ready is not None else None,
        "num_speculative_tokens": limit,
        "max_num_speculative_tokens": engine.supervisor.options.num_speculative_tokens,
        "rule": engine.speculation.rule,
        "now": time.time(),
        "measured_at": costs.t_s if costs is not None else None,
        "buckets": each,
        "positions": positions,
        "memory": memory,
        "advice": advice,
    }


def drafter_memory(ready: EngineReady | None) -> dict[str, Any]:
    """What a drafter holds, and how many more tokens of text the KV pool would have room for without it."""
    memory = ready.memory if ready is not None else EngineMemory()
    held = memory.draft_weights_bytes + memory.draft_kv_bytes + memory.draft_workspace_bytes
    parts = {
        "weights_bytes": memory.draft_weights_bytes,
        "kv_bytes": memory.draft_kv_bytes,
        "workspace_bytes": memory.draft_workspace_bytes,
        "bytes": held,
    }
    if ready is None or ready.num_kv_blocks <= 0:
        return parts | {"kv_tokens": 0, "kv_tokens_lost": 0}
    per_block = (memory.kv_bytes - memory.draft_kv_bytes) / ready.num_kv_blocks
    tokens = ready.block_size / ready.num_kv_groups  # of a text, in one block
    lost = held / per_block * tokens if per_block > 0 else 0.0
    return parts | {"kv_tokens": int(ready.num_kv_blocks * tokens), "kv_tokens_lost": int(lost)}


def _buckets(engine: Engine) -> list[CostBucket]:
    costs = engine.supervisor.costs
    return costs.buckets if costs is not None else []


def _proposers(engine: Engine) -> list[ProposerStats]:
    stats = engine.supervisor.stats
    return stats.proposers if stats is not None else []


def _positions(engine: Engine) -> list[dict[str, int]]:
    """Drafts of all proposers since the load, place by place."""
    totals: list[list[int]] = []
    for each in _proposers(engine):
        counts = (each.drafted_per_position_total, each.judged_per_position_total, each.accepted_per_position_total)
        for place in range(len(each.drafted_per_position_total)):
            if place == len(totals):
                totals.append([0, 0, 0])
            for kind, values in enumerate(counts):
                totals[place][kind] += values[place] if place < len(values) else 0
    return [
        {"position": place, "drafted": drafted, "verified": verified, "accepted": accepted}
        for place, (drafted, verified, accepted) in enumerate(totals)
    ]
