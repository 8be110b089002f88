"""The course that the fake engine tells of a request which says QUEUED: it waits for blocks behind two others, its
prompt is computed in four chunks, and it loses its blocks once."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.outputs import Preemption, PrefillChunk, QueueWait, RequestProgress, RequestTiming

WAIT_S, PREFILL_S = 0.5, 0.8
NUM_CHUNKS = 4


@dataclass(frozen=True)
class Course:
    """Of one request; times on the engine's two clocks."""

    request_id: str
    arrival_t: float
    arrival_s: float
    num_prompt_tokens: int

    def started(self, now: float) -> bool:
        """Whether it gives tokens by now."""
        return now - self.arrival_s >= WAIT_S + PREFILL_S

    def progress(self, now: float) -> RequestProgress | None:
        """What is told of it before."""
        since, total = now - self.arrival_s, self.num_prompt_tokens
        if since < WAIT_S:
            return RequestProgress(self.request_id, "waiting", total=total, ahead=2, cause="blocks")
        if self.started(now):
            return None
        done = int((since - WAIT_S) / PREFILL_S * NUM_CHUNKS) * total // NUM_CHUNKS
        return RequestProgress(self.request_id, "prefill", done=done, total=total)

    def timing(self, now: float) -> RequestTiming:
        """What is told at its end."""
        if now - self.arrival_s < WAIT_S:  # it was ended before anything was computed
            return RequestTiming(arrival_t=self.arrival_t, end_s=now - self.arrival_s, wait=QueueWait(2, 7))
        step = PREFILL_S / NUM_CHUNKS
        ends = [WAIT_S + step * (index + 1) for index in range(NUM_CHUNKS)]
        part = self.num_prompt_tokens // NUM_CHUNKS
        decode_s = max(0.0, now - self.arrival_s - WAIT_S - PREFILL_S)
        lost = WAIT_S + PREFILL_S + decode_s / 4
        return RequestTiming(
            queue_s=WAIT_S,
            prefill_s=PREFILL_S,
            decode_s=decode_s,
            arrival_t=self.arrival_t,
            end_s=now - self.arrival_s,
            wait=QueueWait(num_ahead=2, num_running=7, blocks_s=WAIT_S),
            chunks=[
                PrefillChunk(
                    end - step, end, part, part * (index + 1) if index < NUM_CHUNKS - 1 else self.num_prompt_tokens
                )
                for index, end in enumerate(ends)
            ],
            preemptions=[Preemption(lost, self.num_prompt_tokens + 3, lost + decode_s / 4)],
            decode_steps=9,
            others_mean=7.0,
            others_max=7,
            others_prompt_tokens=300,
        )
