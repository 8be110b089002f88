"""The steps of a fake request that says CHALK: honest drafts, whose tokens are those of the text.

SLOWER takes 200 ms a step, ENDLESS says the text over and over.
"""

from __future__ import annotations

import time
from typing import Any

from engine.core.outputs import RequestOutput
from engine.core.speculation import VerifiedDraft
from engine.protocol import StepTrace

# (drafted, accepted) of one step after the other: plain, all right and a bonus, one right of three, none of two
CYCLE = ((0, 0), (3, 3), (3, 1), (2, 0))


def chalk_step(
    request_id: str, num_prompt_tokens: int, text_ids: list[int], end: int, sent: int, turn: int, most: int, room: int
) -> VerifiedDraft:
    """What the step number `turn` gives behind `sent` tokens: at most `most` drafts and `room` tokens."""
    drafted, accepted = CYCLE[turn % len(CYCLE)]
    drafted = max(0, min(drafted, most, room - 1))
    accepted = min(accepted, drafted)
    coming = [*text_ids, end, *text_ids][sent : sent + drafted + 1]
    draft = [token if place < accepted else (token + 1) % 320 for place, token in enumerate(coming[:drafted])]
    return VerifiedDraft(
        request_id=request_id,
        index=0,
        step=turn,
        t_s=time.time(),
        position=num_prompt_tokens + sent,
        proposer="suffix" if drafted else "",
        draft_token_ids=draft,
        num_accepted=accepted,
        token_ids=coming[: accepted + 1],
        draft_ms=0.5 if drafted else 0.0,
        verify_ms=4.0,
        num_requests=1,
        p=[0.9 if place < accepted else 0.25 for place in range(drafted)],
        q=[0.75] * drafted,
    )


def chalk_row(engine: Any, running: Any) -> RequestOutput:
    """The row of a step of several tokens, as a draft of the text's own tokens gives them, and its trace before it."""
    request, end = running.request, engine.vocab.eos_token_ids[0]
    drafts = request.speculation.enabled and engine.speculates and engine.enabled
    most = (request.speculation.num_speculative_tokens or 8) if drafts else 0
    room, size = request.sampling.max_tokens - running.sent, len(request.prompt_token_ids)
    text_ids = running.text_ids * (20 if "ENDLESS" in running.prompt else 1)
    running.next_s = time.monotonic() + (0.2 if "SLOWER" in running.prompt else 0.03 if "SLOW" in running.prompt else 0)
    step = chalk_step(request.request_id, size, text_ids, end, running.sent, running.turn, most, room)
    running.turn += 1
    if request.trace:
        engine.send(StepTrace([step]))
    taken = step.token_ids[: step.token_ids.index(end) + 1] if end in step.token_ids else step.token_ids
    if step.draft_token_ids:
        for counters in (engine.total, running.counters):
            counters.observe(len(step.draft_token_ids), min(step.num_accepted, len(taken)))
    if engine.mode in ("lying", "vague") and drafts and running.sent <= 5 < running.sent + len(taken):
        taken = [*taken[: 5 - running.sent], taken[5 - running.sent] + 1, *taken[6 - running.sent :]]
    running.sent += len(taken)
    engine.generated += len(taken)
    reason = "stop" if end in taken else "length" if running.sent >= request.sampling.max_tokens else None
    row = RequestOutput(request.request_id, taken)
    if reason is not None:
        del engine.running[request.request_id, running.index]
        row = engine.last_row(running, taken, reason)
    told: RequestOutput = engine.with_logprobs(row, running)
    return told
