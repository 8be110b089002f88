"""Where an answer ends within the tokens of one step: an accepted draft may go on behind it.

Owns the rule for tokens that end an answer and for its length. Changes no request; what a grammar completes is not
looked at, since nothing is drafted behind that. Invariant: what lies behind the end is told to nobody, and counted
nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.core.request import Request
from engine.core.step import StepResult


def num_until_end(request: Request, token_ids: Sequence[int]) -> int:
    """How many of these tokens, which follow the request's last one, belong to its answer."""
    room = request.max_output_tokens - request.num_output_tokens
    for count, token_id in enumerate(token_ids[:room], 1):
        if token_id in request.end_token_ids:
            return count
    return min(len(token_ids), room)


def cut_at_ends(requests: Mapping[str, Request], result: StepResult) -> StepResult:
    """The result with tokens and accepted drafts up to the ends of their answers. requests: those that are known."""
    ends = {
        request_id: count
        for request_id in result.num_accepted
        if request_id in requests and request_id in result.token_ids
        if (count := num_until_end(requests[request_id], result.token_ids[request_id]))
        < len(result.token_ids[request_id])
    }
    if not ends:
        return result
    token_ids = {request_id: result.token_ids[request_id][:count] for request_id, count in ends.items()}
    accepted = {request_id: min(result.num_accepted[request_id], count) for request_id, count in ends.items()}
    return replace(
        result, token_ids={**result.token_ids, **token_ids}, num_accepted={**result.num_accepted, **accepted}
    )
