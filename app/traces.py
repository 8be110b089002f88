"""The steps of traced requests, kept for a while: what was drafted, what became of it, and the text that it gave.

Owns the ring of each request and which requests are kept. Knows nothing of HTTP or of how drafts are made.
Invariants: at most MAX_REQUESTS rings of MAX_ENTRIES steps; what was dropped from a ring is counted, and its text is
kept. The texts of all steps joined are the answer's text, character by character.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.text import IncrementalDetokenizer, TokenBytes
from engine.core.speculation import VerifiedDraft
from engine.protocol import StepTrace
from engine.vocab import Vocab

if TYPE_CHECKING:
    from app.generation import Generation

MAX_REQUESTS = 64
MAX_ENTRIES = 1024
ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_", "req_")  # of answers' ids, which hold the request's


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended. num_tokens, num_characters: of the answer, which a stop string may cut behind the steps."""

    num_tokens: int
    num_characters: int
    finish_reason: str


@dataclass(slots=True)
class Totals:
    """Sums over steps, cut where the answer ends. steps: all of them; drafts: those that verified any."""

    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0

    def add(self, step: VerifiedDraft, end: int | None) -> None:
        """A step; those behind the end of the answer do not count."""
        if end is not None and step.position >= end:
            return
        drafted, accepted = len(step.draft_token_ids), step.num_accepted
        self.steps += 1
        self.drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted if end is None else min(accepted, end - step.position)
        self.draft_ms += step.draft_ms
        self.verify_ms += step.verify_ms


@dataclass(slots=True)
class RequestTraces:
    """The newest steps of one request, each with the text that it added. dropped: how many older ones there were."""

    request_id: str
    engine_run_id: str
    vocab: Vocab
    detokenizer: IncrementalDetokenizer
    num_prompt_tokens: int | None = None
    steps: deque[tuple[VerifiedDraft, str]] = field(default_factory=lambda: deque(maxlen=MAX_ENTRIES))
    dropped: int = 0
    dropped_text: str = ""
    before: Totals = field(default_factory=Totals)  # of the dropped steps
    tail: str = ""  # what the detokenizer held back to the end
    end: End | None = None

    def take(self, step: VerifiedDraft) -> str:
        """Keep one more step; returns the text that it adds."""
        if len(self.steps) == MAX_ENTRIES:
            oldest, text = self.steps[0]
            self.dropped += 1
            self.dropped_text += text
            self.before.add(oldest, None)
        text = self.detokenizer.push(step.token_ids)
        self.steps.append((step, text))
        return text

    def finish(self, end: End) -> None:
        """The request has ended so."""
        self.end, self.tail = end, self.detokenizer.finish()

    @property
    def end_position(self) -> int | None:
        """Where the first token would stand that is no longer the answer's."""
        if self.end is None or self.num_prompt_tokens is None:
            return None
        return self.num_prompt_tokens + self.end.num_tokens

    def view(self) -> dict[str, Any]:
        """All that is known, as `app.speculation_schemas.RequestTrace` has it."""
        end, end_position = self.end, self.end_position
        texts = [text for _, text in self.steps]
        if texts:
            texts[-1] += self.tail
        room = None if end is None else max(0, end.num_characters - len(self.dropped_text))
        totals = Totals(**{name: getattr(self.before, name) for name in Totals.__dataclass_fields__})
        entries = []
        for (step, _), text in zip(self.steps, texts, strict=True):
            totals.add(step, end_position)
            shown = text if room is None else text[:room]
            room = None if room is None else room - len(shown)
            if end_position is None or step.position < end_position:
                entries.append(readable(step, self.vocab, shown, end_position))
        return {
            "request_id": self.request_id,
            "engine_run_id": self.engine_run_id,
            "dropped": self.dropped,
            "dropped_text": self.dropped_text,
            "ended": end is not None,
            "finish_reason": None if end is None else end.finish_reason,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": None if end is None else end.num_tokens,
            "text": self.dropped_text + "".join(entry["text"] for entry in entries),
            "totals": {name: getattr(totals, name) for name in Totals.__dataclass_fields__},
            "entries": entries,
        }


class TraceLog:
    """Takes in traces and hands them out. Used from the event loop."""

    def __init__(self, publish: Callable[[str, dict[str, Any]], None]) -> None:
        self._publish = publish
        self._requests: OrderedDict[str, RequestTraces] = OrderedDict()

    def follow(self, generation: Generation) -> None:
        """Hear of a traced request's start and of its end, which is told to the topic `trace:{request}`."""
        row, sample = generation.row, generation.samples[0]
        engine = generation.engine
        found = self._of(row.id, engine.supervisor.run_id, engine.vocab, sample.token_bytes)
        found.num_prompt_tokens = row.num_prompt_tokens
        if row.finished_at is not None and found.end is None:
            found.finish(End(sample.num_tokens, sample.num_characters, row.finish_reason or "abort"))
            self._publish(f"trace:{row.id}", {"ended": True, "finish_reason": row.finish_reason})

    def take(self, trace: StepTrace, engine_run_id: str, vocab: Vocab) -> None:
        """Keep what steps gave to requests, and tell the topics `trace:{request}`."""
        for step in trace.drafts:
            found = self._of(step.request_id, engine_run_id, vocab, vocab)
            if found.end is None:  # else the engine had gone on before it heard that a stop string ended the answer
                self._publish(f"trace:{step.request_id}", readable(step, vocab, found.take(step)))

    def get(self, request_id: str) -> RequestTraces | None:
        """By the request's id, or by that of its answer."""
        for prefix in ID_PREFIXES:
            request_id = request_id.removeprefix(prefix)
        return self._requests.get(request_id)

    def _of(self, request_id: str, engine_run_id: str, vocab: Vocab, token_bytes: TokenBytes) -> RequestTraces:
        """The request's ring, from now on the one that was written last."""
        found = self._requests.get(request_id)
        if found is None:
            detokenizer = IncrementalDetokenizer(token_bytes)
            found = self._requests[request_id] = RequestTraces(request_id, engine_run_id, vocab, detokenizer)
        self._requests.move_to_end(request_id)
        if len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)
        return found


def readable(step: VerifiedDraft, vocab: Vocab, text: str, end_position: int | None = None) -> dict[str, Any]:
    """A step with the text of its tokens.

    drafted: each token with p and q where the engine told them, and its fate: "accepted", "rejected", or "not_judged"
    behind a rejected one; empty in a plain step. next: the token that came after the accepted ones: "recovered" (in
    place of a rejected draft), "bonus", or "plain"; None where the answer ended within the draft. text: what the step
    added to the answer. A token behind the answer's end is "unused".
    """
    accepted, count = step.num_accepted, len(step.draft_token_ids)

    def token(token_id: int, place: int) -> dict[str, Any]:
        unused = end_position is not None and step.position + place >= end_position
        return {**spelled(token_id, vocab), "unused": unused}

    def fate(place: int) -> str:
        if place < accepted:
            return "accepted"
        return "rejected" if place == accepted else "not_judged"

    drafted = [
        {
            **token(token_id, place),
            "fate": fate(place),
            "p": step.p[place] if place < len(step.p) else None,
            "q": step.q[place] if place < len(step.q) else None,
        }
        for place, token_id in enumerate(step.draft_token_ids)
    ]
    after = None
    if len(step.token_ids) > accepted:
        kind = "plain" if not count else "bonus" if accepted == count else "recovered"
        after = {**token(step.token_ids[accepted], accepted), "kind": kind}
    return {
        "index": step.index,
        "step": step.step,
        "t": step.t_s,
        "position": step.position,
        "proposer": step.proposer,
        "drafted": drafted,
        "num_accepted": accepted,
        "next": after,
        "text": text,
        "draft_ms": step.draft_ms,
        "verify_ms": step.verify_ms,
        "num_requests": step.num_requests,
    }


def spelled(token_id: int, vocab: Vocab) -> dict[str, Any]:
    """A token for people to read. bytes: in hex, where they are no whole characters. special: it is no text."""
    special = token_id in vocab.special_ids
    raw = vocab.token_bytes(token_id)
    try:
        text, broken = raw.decode(), None
    except UnicodeDecodeError:
        text, broken = "", raw.hex(" ")
    if not raw:
        text = vocab.decode([token_id], skip_special_tokens=False)
    return {"id": token_id, "text": text, "bytes": broken, "special": special}
