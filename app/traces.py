"""The verifications of traced requests, kept for a while, with the text of every token.

Owns the ring of each request and which requests are kept. Knows nothing of HTTP or of how drafts are made.
Invariant: at most MAX_REQUESTS rings of MAX_ENTRIES entries; what was dropped from a ring is counted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.core.speculation import VerifiedDraft
from engine.protocol import StepTrace
from engine.vocab import Vocab

MAX_REQUESTS = 64
MAX_ENTRIES = 512
ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_", "req_")  # of answers' ids, which hold the request's


@dataclass(slots=True)
class RequestTraces:
    """The newest verifications of one request. `dropped`: how many older ones there were."""

    request_id: str
    engine_run_id: str
    entries: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_ENTRIES))
    dropped: int = 0


class TraceLog:
    """Takes in traces and hands them out. Used from the event loop."""

    def __init__(self, publish: Callable[[str, dict[str, Any]], None]) -> None:
        self._publish = publish
        self._requests: OrderedDict[str, RequestTraces] = OrderedDict()

    def take(self, trace: StepTrace, engine_run_id: str, vocab: Vocab) -> None:
        """Keep what a step has verified, and tell the topics `trace:{request}`."""
        for draft in trace.drafts:
            found = self._of(draft.request_id, engine_run_id)
            found.dropped += len(found.entries) == MAX_ENTRIES
            entry = readable(draft, vocab)
            found.entries.append(entry)
            self._publish(f"trace:{draft.request_id}", entry)

    def get(self, request_id: str) -> RequestTraces | None:
        """By the request's id, or by that of its answer."""
        for prefix in ID_PREFIXES:
            request_id = request_id.removeprefix(prefix)
        return self._requests.get(request_id)

    def _of(self, request_id: str, engine_run_id: str) -> RequestTraces:
        """The request's ring, from now on the one that was written last."""
        found = self._requests.setdefault(request_id, RequestTraces(request_id, engine_run_id))
        self._requests.move_to_end(request_id)
        if len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)
        return found


def readable(draft: VerifiedDraft, vocab: Vocab) -> dict[str, Any]:
    """A verification with the text of its tokens.

    drafted: each with p and q where the engine told them, and its fate: "accepted", "rejected", or "not_judged" behind
    a rejected one. next: the token that came after the accepted ones, "recovered" (in place of a rejected draft) or
    "bonus"; None where the answer ended within the draft.
    """

    def token(token_id: int) -> dict[str, Any]:
        return {"id": token_id, "text": vocab.decode([token_id], skip_special_tokens=False)}

    def fate(place: int) -> str:
        if place < draft.num_accepted:
            return "accepted"
        return "rejected" if place == draft.num_accepted else "not_judged"

    drafted = [
        {
            **token(token_id),
            "fate": fate(place),
            "p": draft.p[place] if place < len(draft.p) else None,
            "q": draft.q[place] if place < len(draft.q) else None,
        }
        for place, token_id in enumerate(draft.draft_token_ids)
    ]
    after = None
    if len(draft.token_ids) > draft.num_accepted:
        kind = "bonus" if draft.num_accepted == len(draft.draft_token_ids) else "recovered"
        after = {**token(draft.token_ids[draft.num_accepted]), "kind": kind}
    return {
        "index": draft.index,
        "step": draft.step,
        "t": draft.t_s,
        "position": draft.position,
        "proposer": draft.proposer,
        "drafted": drafted,
        "num_accepted": draft.num_accepted,
        "next": after,
        "draft_ms": draft.draft_ms,
        "verify_ms": draft.verify_ms,
        "num_requests": draft.num_requests,
    }
