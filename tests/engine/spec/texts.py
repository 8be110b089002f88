"""Requests over given tokens, and what a search through all of a text finds, for the tests of model-free proposers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.speculation import Draft
from engine.spec.base import DraftWish, Proposer
from engine.spec.contexts import MAX_MATCH


def request_of(prompt: list[int], output: Sequence[int] = (), name: str = "r", salt: str = "") -> Request:
    """A running request that has said `output`."""
    request = Request(name, prompt, SamplingParams(), 0, frozenset(), 1 << 20, cache_salt=salt)
    request.token_ids.extend(output)
    return request


def propose(proposer: Proposer, *requests: Request, drafts: int = 8, costly: int = 0) -> list[Draft]:
    """A draft for each; fails where a request was changed."""
    before = [_state(request) for request in requests]
    found = proposer.propose([DraftWish(request, drafts, costly) for request in requests])
    assert [_state(request) for request in requests] == before
    for draft in found:
        assert len(draft.token_ids) == len(draft.confidence) <= drafts
        assert all(0.0 < chance < 1.0 for chance in draft.confidence)
        assert bool(draft.token_ids) == bool(draft.proposer)
    return found


def draft_of(proposer: Proposer, request: Request, drafts: int = 8) -> Draft:
    """One request's draft."""
    return propose(proposer, request, drafts=drafts)[0]


def common_end(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both end with, MAX_MATCH at most."""
    length = 0
    while length < min(len(left), len(right), MAX_MATCH) and left[-length - 1] == right[-length - 1]:
        length += 1
    return length


def _state(request: Request) -> dict[str, Any]:
    names = [*Request.__dataclass_fields__]
    return {name: deepcopy(getattr(request, name)) for name in names if name != "grammar"}
