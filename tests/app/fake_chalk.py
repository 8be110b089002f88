"""The steps of a fake request that says CHALK: honest drafts, whose tokens are those of the text."""

from __future__ import annotations

import time

from engine.core.speculation import VerifiedDraft

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
